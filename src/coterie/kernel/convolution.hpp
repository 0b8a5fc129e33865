// Convolution with stride 1 on maps with the samples innermost (maps.hpp): forward, backward to the input, gradient.
//
// Forward and backward-to-input are the same product: rows of outputs (channels) against 1 or 2 vectors of neighbouring
// (column, sample) positions, summed over taps. A tap is (kernel row, kernel column, input channel), in that order, so
// that the taps of a part of the kernel are a few contiguous runs. At the edge of a map only that part is visited.
#pragma once

#include <algorithm>
#include <vector>

#include "activation.hpp"
#include "maps.hpp"
#include "transpose.hpp"

namespace coterie {

constexpr int kChannelRows = kManyRegisters ? 12 : 6;     // height of the product's tile
constexpr int kGradientRows = kManyRegisters ? 6 : 4;     // output channels ...
constexpr int kGradientTaps = kManyRegisters ? 4 : 3;     // ... and taps of the weight gradient's tile
constexpr long kGradientChunkBytes = 24 * 1024;           // of gradient kept in the first-level cache meanwhile

// The part of the kernel that can touch the map from some place.
struct KernelPart {
    long row_begin, row_end, column_begin, column_end;
};

template <class T>
struct TapTable {
    long per_row = 0, per_column = 0;  // taps per kernel row; per kernel column = channels summed over
    std::vector<int32_t> offset;       // where each tap reads, relative to the tile's position

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

// One convolution for blocks of a fixed number of samples.
template <class T>
class Convolution {
   public:
    Convolution(const TrunkStage& stage, long samples)
        : stage_(stage),
          samples_(samples),
          in_(stage.in, samples, stage.pad_width, stage.pad_width),
          // Going back, the kernel overhangs the map by (kernel - 1 - padding), further right where a pool dropped a column.
          overhang_(std::max<long>(0, stage.kernel_width - 1 - stage.pad_width)),
          dz_({stage.convolved.channels, stage.used_height(), stage.used_width()}, samples, overhang_,
              std::max<long>(0, stage.in.width + stage.pad_width - stage.used_width())),
          forward_weights_(stage.weights()),
          backward_weights_(stage.weights()) {
        long channels = stage.in.channels, outputs = stage.convolved.channels;
        forward_.per_column = channels;
        forward_.per_row = channels * stage.kernel_width;
        backward_.per_column = outputs;
        backward_.per_row = outputs * stage.kernel_width;
        for (long ky = 0; ky < stage.kernel_height; ky++)
            for (long kx = 0; kx < stage.kernel_width; kx++) {
                for (long c = 0; c < channels; c++)
                    forward_.offset.push_back(int32_t(c * in_.channel + ky * in_.row + kx * in_.column));
                for (long o = 0; o < outputs; o++)
                    backward_.offset.push_back(int32_t(o * dz_.channel - ky * dz_.row - kx * dz_.column));
            }
        long taps = stage.kernel_height * stage.kernel_width;
        // The tiles read weights as [block of rows][tap][row].
        for_blocks(outputs, [&](long first, long rows) {
            for (long tap = 0; tap < taps; tap++)
                for (long c = 0; c < channels; c++)
                    for (long i = 0; i < rows; i++)
                        forward_source_.push_back(int32_t(((first + i) * channels + c) * taps + tap));
        });
        for_blocks(channels, [&](long first, long rows) {
            for (long tap = 0; tap < taps; tap++)
                for (long o = 0; o < outputs; o++)
                    for (long i = 0; i < rows; i++)
                        backward_source_.push_back(int32_t((o * channels + first + i) * taps + tap));
        });
    }

    const MapLayout<T>& in_layout() const { return in_; }
    const MapLayout<T>& dz_layout() const { return dz_; }

    // Put the weights into the order of the tiles; done once per step.
    void pack(const T* weights, bool for_backward) {
        for (long k = 0; k < stage_.weights(); k++) forward_weights_.data()[k] = weights[forward_source_[size_t(k)]];
        if (!for_backward) return;
        for (long k = 0; k < stage_.weights(); k++) backward_weights_.data()[k] = weights[backward_source_[size_t(k)]];
    }

    // Row `y` of the output for all channels: `out` is (channel 0, column 0) of that row.
    void forward_row(Map<T> in, long y, const T* bias, Activation activation, T* out, long out_channel,
                     bool may_overrun) const {
        const TrunkStage& s = stage_;
        long row_begin = std::max<long>(0, s.pad_height - y);
        long row_end = std::min(s.kernel_height, s.in.height + s.pad_height - y);
        const T* origin = in.at(0, y - s.pad_height, -s.pad_width);
        convolve_row<T>(forward_, forward_weights_.data(), s.convolved.channels, origin, bias, activation, out,
                        out_channel, s.used_width() * samples_, may_overrun, [&](long first, long last) {
                            return KernelPart{row_begin, row_end, std::max<long>(0, s.pad_width - last / samples_),
                                              std::min(s.kernel_width, s.in.width + s.pad_width - first / samples_)};
                        });
    }

    // Row `y` of the gradient with respect to the input; may write up to two vectors behind the row's end.
    void backward_row(Map<T> dz, long y, T* out, long out_channel) const {
        const TrunkStage& s = stage_;
        long row_begin = std::max<long>(0, y + s.pad_height - s.used_height() + 1);
        long row_end = std::min(s.kernel_height, y + s.pad_height + 1);
        const T* origin = dz.at(0, y + s.pad_height, s.pad_width);
        convolve_row<T>(backward_, backward_weights_.data(), s.in.channels, origin, nullptr, Activation::none, out,
                        out_channel, s.in.width * samples_, true, [&](long first, long last) {
                            return KernelPart{row_begin, row_end,
                                              std::max<long>(0, first / samples_ + s.pad_width - s.used_width() + 1),
                                              std::min(s.kernel_width, last / samples_ + s.pad_width + 1)};
                        });
    }

    // Adds this block's share to the gradients (in torch's order of weights).
    void weight_gradient(Map<T> in, Map<T> dz, T* gradient, T* bias_gradient) const {
        const TrunkStage& s = stage_;
        long height = s.used_height(), lanes = s.used_width() * samples_, channels = s.in.channels;
        long outputs = s.convolved.channels, taps = s.kernel_height * s.kernel_width;
        long chunk = std::max<long>(1, kGradientChunkBytes / long(sizeof(T)) / (kGradientRows * lanes));
        chunk = (height + blocks_of(height, chunk) - 1) / blocks_of(height, chunk);
        for (long top = 0; top < height; top += chunk)
            for_row_blocks<kGradientRows>(outputs, [&](auto rows, long first_output) {
                constexpr int R = decltype(rows)::value;
                for (long ky = 0; ky < s.kernel_height; ky++) {
                    long y0 = std::max({top, s.pad_height - ky});
                    long y1 = std::min({top + chunk, height, s.in.height + s.pad_height - ky});
                    if (y0 >= y1) continue;
                    const T* origin = in.at(0, y0 - s.pad_height, -s.pad_width);
                    for_row_blocks<kGradientTaps>(forward_.per_row, [&](auto width, long first) {
                        constexpr int N = decltype(width)::value;
                        long tap = ky * forward_.per_row + first;
                        T sums[round_up(R * N, kLanes<T>)];
                        gradient_tile<T, R, N>(dz.at(first_output, y0), dz.channel, dz.row, origin,
                                               forward_.offset.data() + tap, in.row, y1 - y0, lanes, sums);
                        for (int j = 0; j < N; j++) {
                            long place = (tap + j) / channels, c = (tap + j) % channels;
                            for (int i = 0; i < R; i++)
                                gradient[((first_output + i) * channels + c) * taps + place] += sums[i * N + j];
                        }
                    });
                }
            });
        if (!bias_gradient) return;
        for (long o = 0; o < outputs; o++) {
            Vec<T> sum{}, other{};  // two chains of additions run at once
            for (long y = 0; y < height; y++) {
                const T* row = dz.at(o, y);
                long lane = 0;
                for (; lane + 2 * kLanes<T> <= lanes; lane += 2 * kLanes<T>) {
                    sum += load(row + lane);
                    other += load(row + lane + kLanes<T>);
                }
                for (; lane < lanes; lane += kLanes<T>) sum += load_first(row + lane, lanes - lane);
            }
            bias_gradient[o] += sum_lanes<T>(sum + other);
        }
    }

   private:
    template <class Body>
    static void for_blocks(long rows, Body&& body) {
        int blocks = blocks_of(rows, kChannelRows);
        for (int b = 0; b < blocks; b++) {
            long first = block_start(rows, blocks, b);
            body(first, block_start(rows, blocks, b + 1) - first);
        }
    }

    TrunkStage stage_;
    long samples_;
    MapLayout<T> in_;
    long overhang_;
    MapLayout<T> dz_;
    TapTable<T> forward_, backward_;
    std::vector<int32_t> forward_source_, backward_source_;  // where each packed weight comes from
    Buffer<T> forward_weights_, backward_weights_;
};

}  // namespace coterie
