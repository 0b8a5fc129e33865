// Products of the same packed weights (linear.hpp) with many blocks of rows, as sequences have them: one block a step.
//
// The left factor of a block is turned, tile by tile, [tile][feature][row of the tile]: a tile is read one value behind the other,
// and no lane is lost, however few rows a block has. Weights for the way back are packed once a batch, so it is the same product.
#pragma once

#include <cstring>

#include "linear.hpp"
#include "transpose.hpp"

namespace coterie {

// `count` blocks of `rows` rows, `block` values from one to the next.
template <class T>
struct TurnedBlocks {
    const T* data;
    long block, rows, count;
};

// Values of a turned block.
inline long turned_size(long rows, long features) { return blocks_of(rows, kSampleRows) * features * kSampleRows; }

template <class T>
void turn_block(const T* from, long row, long rows, long features, T* to) {
    const int tiles = blocks_of(rows, kSampleRows);
    for (int tile = 0; tile < tiles; tile++, to += features * kSampleRows) {
        const long first = block_start(rows, tiles, tile), size = block_start(rows, tiles, tile + 1) - first;
        transpose<T>([&](long j) { return from + (first + j) * row; }, size, features, to, kSampleRows, true);
    }
}

template <class T, int R, int N>
COTERIE_INLINE void turned_tile(const T* left, long inputs, const T* weights, const T* bias, T* out, long out_row, bool add) {
    Vec<T> sums[R][N];
    for (int i = 0; i < R; i++)
        for (int j = 0; j < N; j++)
            sums[i][j] = add ? load(out + i * out_row + j * kLanes<T>) : bias ? load(bias + j * kLanes<T>) : Vec<T>{};
    multiply_add<T>(
        sums, inputs, [&](int i, long k) { return left[k * kSampleRows + i]; },
        [&](long k) { return weights + k * N * kLanes<T>; });
    for (int i = 0; i < R; i++)
        for (int j = 0; j < N; j++) store(out + i * out_row + j * kLanes<T>, sums[i][j]);
}

template <class T, int N>
void turned_panel(const T* left, long rows, long inputs, const T* weights, const T* bias, T* out, long out_row, bool add) {
    for_row_blocks<kSampleRows>(rows, [&](auto size, long first) {
        turned_tile<T, decltype(size)::value, N>(left, inputs, weights, bias, out + first * out_row, out_row, add);
        left += inputs * kSampleRows;
    });
}

// out[block * rows + row][outputs] = bias + left * weights; with `add`, added to what is there.
template <class T>
void turned_product(const PackedLinear<T>& layer, TurnedBlocks<T> left, const T* weights, const T* bias, T* out, bool add) {
    const long length = layer.row_length();
    for (long p = 0; p < layer.panels(); p++) {
        const long column = p * layer.kPanel;
        const T *panel = weights + layer.start(p), *own = bias ? bias + column : nullptr;
        for (long b = 0; b < left.count; b++) {
            const T* from = left.data + b * left.block;
            T* to = out + b * left.rows * length + column;
            if (layer.vectors_of(p) == 2)
                turned_panel<T, 2>(from, left.rows, layer.inputs, panel, own, to, length, add);
            else
                turned_panel<T, 1>(from, left.rows, layer.inputs, panel, own, to, length, add);
        }
    }
}

// gradients (packed) = sums over rows of x[row][inputs] * dz[row][outputs], for several layers that read the same x.
//
// Rows are taken in chunks, and both factors are copied so that a tile reads them one behind the other: as they lie, rows are
// often a power of two apart, and few of them fit the first cache together.
template <class T>
class WeightGradients {
   public:
    // `x` may be read kInputRows values beyond its last row.
    template <class Gradients, class Right>
    void make(const PackedLinear<T>& layer, int layers, const T* x, long x_row, Right&& dz, long rows, Gradients&& gradient) {
        if (!rows)
            for (int g = 0; g < layers; g++) std::memset(gradient(g), 0, size_t(layer.size()) * sizeof(T));
        const int chunks = blocks_of(rows, kChunk);
        for (int chunk = 0; chunk < chunks; chunk++) {
            const long first = block_start(rows, chunks, chunk), count = block_start(rows, chunks, chunk + 1) - first;
            copy_left(layer, x + first * x_row, x_row, count);
            for (int g = 0; g < layers; g++)
                for (long p = 0; p < layer.panels(); p++) {
                    const T* from = dz(g) + first * layer.row_length() + p * layer.kPanel;
                    T* to = gradient(g) + layer.start(p);
                    if (layer.vectors_of(p) == 2)
                        panel<2>(layer, from, count, to, chunk > 0);
                    else
                        panel<1>(layer, from, count, to, chunk > 0);
                }
        }
    }

   private:
    static constexpr long kChunk = 160;

    void copy_left(const PackedLinear<T>& layer, const T* x, long x_row, long count) {
        if (left_.size() < layer.rows() * kChunk) left_.resize(layer.rows() * kChunk, false);
        if (!right_.size()) right_.resize(kChunk * layer.kPanel, false);
        for (long k = 0; k < count; k++)
            for (long row = 0; row < layer.rows(); row += kInputRows)
                std::memcpy(left_.data() + row * count + k * kInputRows, x + k * x_row + row, kInputRows * sizeof(T));
    }

    template <int N>
    void panel(const PackedLinear<T>& layer, const T* dz, long count, T* to, bool add) {
        for (long k = 0; k < count; k++)
            for (int j = 0; j < N; j++)
                store(right_.data() + (k * N + j) * kLanes<T>, load(dz + k * layer.row_length() + j * kLanes<T>));
        for (long row = 0; row < layer.rows(); row += kInputRows, to += kInputRows * N * kLanes<T>) {
            Vec<T> sums[kInputRows][N];
            for (int i = 0; i < kInputRows; i++)
                for (int j = 0; j < N; j++) sums[i][j] = add ? load(to + (i * N + j) * kLanes<T>) : Vec<T>{};
            const T *left = left_.data() + row * count, *right = right_.data();
            multiply_add<T>(
                sums, count, [&](int i, long k) { return left[k * kInputRows + i]; },
                [&](long k) { return right + k * N * kLanes<T>; });
            for (int i = 0; i < kInputRows; i++)
                for (int j = 0; j < N; j++) store(to + (i * N + j) * kLanes<T>, sums[i][j]);
        }
    }

    Buffer<T> left_, right_;
};

// gradient[outputs] = sum over rows of dz[row][outputs].
template <class T>
void sum_of_rows(const T* dz, long length, long rows, T* gradient) {
    for (long column = 0; column < length; column += kLanes<T>) {
        Vec<T> sum{};
        for (long j = 0; j < rows; j++) sum += load(dz + j * length + column);
        store(gradient + column, sum);
    }
}

// The weights of `layer` as rows `first` and on of `back`, which goes from outputs to inputs.
template <class T>
void pack_back(const PackedLinear<T>& layer, const T* weights, const PackedLinear<T>& back, long first, T* to) {
    for (long q = 0; q < back.panels(); q++) {
        const long width = back.vectors_of(q) * kLanes<T>, input = q * back.kPanel;
        for (long p = 0; p < layer.panels(); p++) {
            const long own = layer.vectors_of(p) * kLanes<T>, output = p * layer.kPanel;
            const T* from = weights + layer.start(p) + input * own;
            transpose<T>([&](long i) { return from + i * own; }, std::min(width, layer.inputs - input),
                         std::min(own, layer.outputs - output), to + back.start(q) + (first + output) * width, width, true);
        }
    }
}

}  // namespace coterie
