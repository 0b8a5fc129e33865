// The products of a convolution with stride 1 on maps with the samples innermost (maps.hpp), a tile at a time.
//
// Forward and backward-to-input are the same product: rows of outputs (channels) against 1 or 2 vectors of neighbouring
// (column, sample) positions, summed over taps. A tap is (kernel row, kernel column, input channel), in that order, so
// that the taps of a part of the kernel are a few contiguous runs. At the edge of a map only that part is visited.
//
// Where few samples on a small map would leave vectors half empty, the vectors hold the channels of the output instead: forward,
// rows of positions against vectors of channels; the gradient, which then needs no sums over lanes, the same; and backward, a sum
// over vectors of outputs.
#pragma once

#include <algorithm>
#include <vector>

#include "activation.hpp"
#include "linear.hpp"
#include "maps.hpp"
#include "transpose.hpp"

namespace coterie {

constexpr int kChannelRows = kManyRegisters ? 12 : 6;     // height of the product's tile
constexpr int kGradientRows = kManyRegisters ? 6 : 4;     // output channels ...
constexpr int kGradientTaps = kManyRegisters ? 4 : 3;     // ... and taps of the weight gradient's tile
constexpr int kTurnedRows = kManyRegisters ? 8 : 6;        // height of the turned tiles: each row is a pointer
constexpr int kSumPositions = 2;                          // positions ...
constexpr int kSumChannels = kManyRegisters ? 8 : 4;      // ... and channels of the tile that sums over outputs
constexpr long kGradientChunkBytes = 24 * 1024;           // of gradient kept in the first-level cache meanwhile

// The part of the kernel that can touch the map from some place.
struct KernelPart {
    long row_begin, row_end, column_begin, column_end;
};

template <class T>
struct TapTable {
    long per_row = 0, per_column = 0;  // taps per kernel row, and per kernel column: channels summed over, or vectors of them
    std::vector<int32_t> offset;       // where each tap reads, relative to the tile's position
    std::vector<int32_t> weight;       // where its weights are, outputs innermost (turned products alone)

    long count() const { return long(offset.size()); }
};

// out[i][lanes] = bias[i] + sum over taps weights[tap][i] * in[offset[tap] + lanes].
template <class T, int R, int N>
void convolve_tile(const TapTable<T>& taps, const KernelPart& part, const T* weights, const T* in, const T* bias,
                   Activation activation, T* out, long out_channel, long lanes) {
    Vec<T> sums[R][N];
    for (int i = 0; i < R; i++)
        for (int j = 0; j < N; j++) sums[i][j] = bias ? broadcast<T>(bias[i]) : Vec<T>{};
    for (long row = part.row_begin; row < part.row_end; row++) {
        long first = row * taps.per_row + part.column_begin * taps.per_column;
        const int32_t* offset = taps.offset.data() + first;
        const T* weight = weights + first * R;
        for (long left = (part.column_end - part.column_begin) * taps.per_column; left > 0; left--) {
            const T* from = in + *offset++;
            Vec<T> values[N];
            for (int j = 0; j < N; j++) values[j] = load(from + j * kLanes<T>);
            for (int i = 0; i < R; i++)
                for (int j = 0; j < N; j++) sums[i][j] += weight[i] * values[j];
            weight += R;
        }
    }
    for (int i = 0; i < R; i++)
        for (int j = 0; j < N; j++) {
            long count = lanes - j * kLanes<T>;
            if (count > 0) store_first(out + i * out_channel + j * kLanes<T>, activate<T>(sums[i][j], activation), count);
        }
}

// All channels of the lanes [0, lanes) of one row. `part_at(first lane, last lane)` says which part of the kernel counts.
template <class T, class PartAt>
void convolve_row(const TapTable<T>& taps, const T* packed, long channels, const T* in, const T* bias,
                  Activation activation, T* out, long out_channel, long lanes, bool may_overrun, PartAt&& part_at) {
    constexpr long kTile = 2 * kLanes<T>;
    for (long lane = 0; lane < lanes; lane += kTile) {
        long real = std::min(kTile, lanes - lane);
        KernelPart part = part_at(lane, lane + real - 1);
        for_row_blocks<kChannelRows>(channels, [&](auto rows, long first) {
            constexpr int R = decltype(rows)::value;
            const T* weights = packed + first * taps.count();
            const T* from_bias = bias ? bias + first : nullptr;
            T* to = out + first * out_channel + lane;
            if (real > kLanes<T>)
                convolve_tile<T, R, 2>(taps, part, weights, in + lane, from_bias, activation, to, out_channel,
                                       may_overrun ? kTile : real);
            else
                convolve_tile<T, R, 1>(taps, part, weights, in + lane, from_bias, activation, to, out_channel,
                                       may_overrun ? kTile : real);
        });
    }
}

// sum over rows and lanes of dz[o][row][lane] * in[tap][row][lane], for a tile of output channels and taps; `sums_out` has
// room for whole vectors.
template <class T, int R, int N>
void gradient_tile(const T* dz, long dz_channel, long dz_row, const T* in, const int32_t* offset, long in_row, long rows,
                   long lanes, T* sums_out) {
    Vec<T> sums[R][N] = {};
    long whole = lanes / kLanes<T> * kLanes<T>;
    for (long y = 0; y < rows; y++) {
        const T* d = dz + y * dz_row;
        const T* from[N];
        for (int j = 0; j < N; j++) from[j] = in + y * in_row + offset[j];
        for (long lane = 0; lane < whole; lane += kLanes<T>) {
            Vec<T> values[N];
            for (int j = 0; j < N; j++) values[j] = load(from[j] + lane);
            for (int i = 0; i < R; i++) {
                Vec<T> g = load(d + i * dz_channel + lane);
                for (int j = 0; j < N; j++) sums[i][j] += g * values[j];
            }
        }
        if (whole < lanes) {
            Vec<T> values[N];
            for (int j = 0; j < N; j++) values[j] = load_first(from[j] + whole, lanes - whole);
            for (int i = 0; i < R; i++) {
                Vec<T> g = load_first(d + i * dz_channel + whole, lanes - whole);
                for (int j = 0; j < N; j++) sums[i][j] += g * values[j];
            }
        }
    }
    sum_lanes_of_all<T, R * N>(&sums[0][0], sums_out);
}

// out[position][channels] = bias + sum over taps in[offset[tap] + position] * weights[tap][channels], for some positions.
template <class T, int R, int N>
void convolve_tile_turned(const TapTable<T>& taps, const KernelPart& part, const T* weights, const T* in,
                          const int32_t* positions, const T* bias, Activation activation, T* out, long length) {
    Vec<T> sums[R][N];
    for (int i = 0; i < R; i++)
        for (int j = 0; j < N; j++) sums[i][j] = bias ? load(bias + j * kLanes<T>) : Vec<T>{};
    const T* from[R];
    for (int i = 0; i < R; i++) from[i] = in + positions[i];
    for (long row = part.row_begin; row < part.row_end; row++) {
        long first = row * taps.per_row + part.column_begin * taps.per_column;
        const int32_t *offset = taps.offset.data() + first, *weight = taps.weight.data() + first;
        multiply_add<T>(
            sums, (part.column_end - part.column_begin) * taps.per_column,
            [&](int i, long k) { return from[i][offset[k]]; }, [&](long k) { return weights + weight[k]; });
    }
    for (int i = 0; i < R; i++)
        for (int j = 0; j < N; j++)
            store(out + positions[i] * length + j * kLanes<T>, activate<T>(sums[i][j], activation));
}

// Some positions of one row, with the channels in vectors: row[position][channels].
template <class T, class PartAt>
void convolve_turned(const TapTable<T>& taps, const T* weights, long channels, const T* in, const T* bias, Activation activation,
                     T* row, const std::vector<int32_t>& positions, PartAt&& part_at) {
    long length = round_up(channels, kLanes<T>);
    for_row_blocks<kTurnedRows>(long(positions.size()), [&](auto rows, long at) {
        constexpr int R = decltype(rows)::value;
        const int32_t* some = positions.data() + at;
        KernelPart part = part_at(some[0], some[R - 1]);
        for (long first = 0; first < channels; first += 2 * kLanes<T>) {
            const T* from_bias = bias ? bias + first : nullptr;
            if (channels - first > kLanes<T>)
                convolve_tile_turned<T, R, 2>(taps, part, weights + first, in, some, from_bias, activation, row + first, length);
            else
                convolve_tile_turned<T, R, 1>(taps, part, weights + first, in, some, from_bias, activation, row + first, length);
        }
    });
}

// sums[tap][channels] over some positions of a map, in[offset[tap] + in_at] * dz[dz_at][channels].
template <class T, int R, int N>
void gradient_tile_turned(Vec<T> (&sums)[R][N], const T* in, const int32_t* offset, const int32_t* in_at, const T* dz,
                          const int32_t* dz_at, long positions) {
    const T* left[R];
    for (int i = 0; i < R; i++) left[i] = in + offset[i];
    multiply_add<T>(
        sums, positions, [&](int i, long k) { return left[i][in_at[k]]; }, [&](long k) { return dz + dz_at[k]; });
}

// out[channel][position] = sum over taps and outputs of dz[position - tap][outputs] * weights[channel][tap][outputs], for some
// positions and channels; here a tap is a vector of outputs. `length` is the distance between positions of `dz`, whose lanes
// behind the outputs are zero, and `kernel` that between the weights of channels.
template <class T, int P, int C>
void backward_tile_turned(const TapTable<T>& taps, const KernelPart& part, const T* weights, long kernel, const T* dz,
                          long length, const int32_t* positions, T* out, long out_channel) {
    Vec<T> sums[P][C];
    for (int i = 0; i < P; i++)
        for (int j = 0; j < C; j++) sums[i][j] = Vec<T>{};
    const T* from[P];
    for (int i = 0; i < P; i++) from[i] = dz + positions[i] * length;
    for (long row = part.row_begin; row < part.row_end; row++) {
        long first = row * taps.per_row + part.column_begin * taps.per_column;
        const int32_t *offset = taps.offset.data() + first, *weight = taps.weight.data() + first;
        for (long k = 0; k < (part.column_end - part.column_begin) * taps.per_column; k++) {
            Vec<T> right[C];
            for (int j = 0; j < C; j++) right[j] = load(weights + j * kernel + weight[k]);
            for (int i = 0; i < P; i++) {
                Vec<T> left = load(from[i] + offset[k]);
                for (int j = 0; j < C; j++) sums[i][j] += left * right[j];
            }
        }
    }
    T flat[round_up(P * C, kLanes<T>)];
    sum_lanes_of_all<T, P * C>(&sums[0][0], flat);
    for (int i = 0; i < P; i++)
        for (int j = 0; j < C; j++) out[j * out_channel + positions[i]] = flat[i * C + j];
}

}  // namespace coterie
