// A linear layer: z = x W^T + b, its backward pass, and the update of its weights in the same pass over memory.
//
// The weights are kept packed while a client trains. A panel holds two vectors' worth of outputs for every input:
//
//   panel 0: [input 0: o0 .. o31] [input 1: o0 .. o31] ...   panel 1: [input 0: o32 .. o63] ...
//
// so that all three products run along memory, whatever the batch size:
//   forward   z[sample][outputs]   = sum over inputs  x[sample][input]  * W[input][outputs]
//   gradient  dW[input][outputs]   = sum over samples x[sample][input]  * dz[sample][outputs]   (+ update, fused)
//   backward  dx[input][samples]   = sum over outputs W[input][output]  * dz[output][samples]
// A narrow last panel has one vector. Lanes and rows behind the real sizes hold garbage that nothing reads.
#pragma once

#include <algorithm>
#include <type_traits>

#include "activation.hpp"
#include "optimise.hpp"
#include "vector.hpp"

namespace coterie {

constexpr int kSampleRows = kManyRegisters ? 12 : 6;  // height of the forward tile
constexpr int kInputRows = kManyRegisters ? 8 : 6;    // height of the gradient and backward tiles
// On the way back some rows of all panels are done in turn, so that their inputs stay in a cache: few rows, or more where weights
// come from memory, which is fastest when much is read in one go.
constexpr long kFewRows = 48, kManyRows = 768, kCachedBytes = 2L << 20;

template <class T>
struct PackedLinear {
    long inputs, outputs;

    static constexpr int kPanel = 2 * kLanes<T>;
    long rows() const { return round_up(inputs, kInputRows); }
    long vectors() const { return (outputs + kLanes<T> - 1) / kLanes<T>; }
    long panels() const { return (vectors() + 1) / 2; }
    int vectors_of(long panel) const { return panel * 2 + 2 <= vectors() ? 2 : 1; }
    long start(long panel) const { return panel * rows() * kPanel; }
    long size() const { return rows() * vectors() * kLanes<T>; }
    long row_length() const { return vectors() * kLanes<T>; }  // of z and dz

    long position(long output, long input) const {
        long panel = output / kPanel;
        return start(panel) + input * vectors_of(panel) * kLanes<T> + output % kPanel;
    }
};

// Activations as the left factor: x(sample, feature) lies at sample * sample_step + feature * feature_step.
template <class T>
struct Rows {
    const T* data;
    long sample_step, feature_step;

    Rows from(long sample) const { return {data + sample * sample_step, sample_step, feature_step}; }
};

// sums[i][j] += left(i, k) * right[j] over k, where `right_at(k, right)` fills the right side.
template <class T, int R, int N, class Left, class Right>
COTERIE_INLINE void multiply_add_made(Vec<T> (&sums)[R][N], long count, Left&& left, Right&& right_at) {
    for (long k = 0; k < count; k++) {
        Vec<T> right[N];
        right_at(k, right);
        for (int i = 0; i < R; i++) {
            T a = left(i, k);
            for (int j = 0; j < N; j++) sums[i][j] += a * right[j];
        }
    }
}

// sums[i][j] += left(i, k) * right(k)[j] over k: the one inner loop of linear layers, and of turned convolutions (tiles.hpp).
template <class T, int R, int N, class Left, class Right>
COTERIE_INLINE void multiply_add(Vec<T> (&sums)[R][N], long count, Left&& left, Right&& right) {
    multiply_add_made<T>(sums, count, left, [&](long k, Vec<T> (&values)[N]) {
        const T* row = right(k);
        for (int j = 0; j < N; j++) values[j] = load(row + j * kLanes<T>);
    });
}

template <class T, int N>
void forward_panel(Rows<T> x, long inputs, const T* weights, const T* bias, T* z, long row_length, long samples,
                   Activation activation) {
    for_row_blocks<kSampleRows>(samples, [&](auto rows, long first) {
        constexpr int R = decltype(rows)::value;
        Vec<T> sums[R][N];
        for (int i = 0; i < R; i++)
            for (int j = 0; j < N; j++) sums[i][j] = bias ? load(bias + j * kLanes<T>) : Vec<T>{};
        auto right = [&](long k) { return weights + k * N * kLanes<T>; };
        if (x.feature_step == 1) {
            const T* left = x.data + first * x.sample_step;
            multiply_add<T>(sums, inputs, [&](int i, long k) { return left[i * x.sample_step + k]; }, right);
        } else {
            const T* left = x.data + first;
            multiply_add<T>(sums, inputs, [&](int i, long k) { return left[k * x.feature_step + i]; }, right);
        }
        T* out = z + first * row_length;
        for (int i = 0; i < R; i++)
            for (int j = 0; j < N; j++) store(out + i * row_length + j * kLanes<T>, activate<T>(sums[i][j], activation));
    });
}

template <class T>
void linear_forward(const PackedLinear<T>& layer, Rows<T> x, const T* weights, const T* bias, T* z, long samples,
                    Activation activation) {
    for (long p = 0; p < layer.panels(); p++) {
        long column = p * layer.kPanel;
        const T* panel = weights + layer.start(p);
        const T* panel_bias = bias ? bias + column : nullptr;
        if (layer.vectors_of(p) == 2)
            forward_panel<T, 2>(x, layer.inputs, panel, panel_bias, z + column, layer.row_length(), samples, activation);
        else
            forward_panel<T, 1>(x, layer.inputs, panel, panel_bias, z + column, layer.row_length(), samples, activation);
    }
}

// dx[row .. row + R][samples] += W[row .. row + R][panel's outputs] * dz[panel's outputs][samples].
// `turned` is dz as [output][samples], `stride` its distance between outputs and that of dx between inputs.
template <class T, int N, int Width>
COTERIE_INLINE void backward_tile(const T* weights, long outputs, const T* turned, long stride, T* dx, bool first_panel) {
    Vec<T> sums[kInputRows][N];
    for (int i = 0; i < kInputRows; i++)
        for (int j = 0; j < N; j++) sums[i][j] = first_panel ? Vec<T>{} : load(dx + i * stride + j * kLanes<T>);
    multiply_add<T>(
        sums, outputs, [&](int i, long k) { return weights[i * Width + k]; }, [&](long k) { return turned + k * stride; });
    for (int i = 0; i < kInputRows; i++)
        for (int j = 0; j < N; j++) store(dx + i * stride + j * kLanes<T>, sums[i][j]);
}

// Both halves of the backward pass, tile by tile: dx needs the weights as they were, then they are updated while they
// are still in the cache. For a layer larger than the cache this reads and writes its memory once, not three times.
template <class T, int N, UpdateKind kind>
void backward_panel(const PackedLinear<T>& layer, long panel, long first_row, long last_row, Rows<T> x, const T* weights,
                    const T* dz, const T* turned, T* dx, long stride, long samples, Optimiser<T>& optimiser, long offset) {
    constexpr int kWidth = N * kLanes<T>;
    long column = panel * layer.kPanel, outputs = std::min<long>(kWidth, layer.outputs - column);
    long row_length = layer.row_length(), start = layer.start(panel);
    for (long row = first_row; row < last_row; row += kInputRows) {
        long at = start + row * kWidth;
        if (dx) {
            long lane = 0;
            const T* dz_turned = turned + column * stride;
            for (; lane + kLanes<T> < samples; lane += 2 * kLanes<T>)
                backward_tile<T, 2, kWidth>(weights + at, outputs, dz_turned + lane, stride, dx + row * stride + lane,
                                            panel == 0);
            if (lane < samples)
                backward_tile<T, 1, kWidth>(weights + at, outputs, dz_turned + lane, stride, dx + row * stride + lane,
                                            panel == 0);
        }
        Vec<T> sums[kInputRows][N] = {};
        auto right = [&](long k) { return dz + k * row_length + column; };
        if (x.feature_step == 1) {
            const T* left = x.data + row;
            multiply_add<T>(sums, samples, [&](int i, long k) { return left[k * x.sample_step + i]; }, right);
        } else {
            const T* left = x.data + row * x.feature_step;
            multiply_add<T>(sums, samples, [&](int i, long k) { return left[i * x.feature_step + k]; }, right);
        }
        optimiser.template update<kind>(offset + at, sums);
    }
}

// `offset` is where the layer's weights begin among all packed weights; `dx` may be null (nothing below learns).
template <class T>
void linear_backward(const PackedLinear<T>& layer, Rows<T> x, const T* weights, const T* dz, const T* turned, T* dx,
                     long stride, long samples, Optimiser<T>& optimiser, long offset) {
    optimiser.with_every_kind([&](auto kind) {
        const long chunk = layer.size() * long(sizeof(T)) > kCachedBytes ? kManyRows : kFewRows;
        for (long row = 0; row < layer.rows(); row += chunk)
            for (long p = 0; p < layer.panels(); p++) {
                const long last = std::min(row + chunk, layer.rows());
                if (layer.vectors_of(p) == 2)
                    backward_panel<T, 2, decltype(kind)::value>(layer, p, row, last, x, weights, dz, turned, dx, stride, samples,
                                                                optimiser, offset);
                else
                    backward_panel<T, 1, decltype(kind)::value>(layer, p, row, last, x, weights, dz, turned, dx, stride, samples,
                                                                optimiser, offset);
            }
    });
}

// The first half alone, for whoever wants the gradient of the inputs and leaves the weights as they are.
template <class T>
void linear_to_input(const PackedLinear<T>& layer, const T* weights, const T* turned, T* dx, long stride, long samples) {
    auto panel_to_input = [&](auto vectors, long panel) {
        constexpr int kWidth = decltype(vectors)::value * kLanes<T>;
        long column = panel * layer.kPanel, outputs = std::min<long>(kWidth, layer.outputs - column);
        const T* from = turned + column * stride;
        for (long row = 0; row < layer.rows(); row += kInputRows) {
            const T* tile = weights + layer.start(panel) + row * kWidth;
            long lane = 0;
            for (; lane + kLanes<T> < samples; lane += 2 * kLanes<T>)
                backward_tile<T, 2, kWidth>(tile, outputs, from + lane, stride, dx + row * stride + lane, panel == 0);
            if (lane < samples)
                backward_tile<T, 1, kWidth>(tile, outputs, from + lane, stride, dx + row * stride + lane, panel == 0);
        }
    };
    for (long p = 0; p < layer.panels(); p++)
        if (layer.vectors_of(p) == 2)
            panel_to_input(std::integral_constant<int, 2>{}, p);
        else
            panel_to_input(std::integral_constant<int, 1>{}, p);
}

// db[outputs] = sum over samples dz[sample][outputs], then the update.
template <class T>
void bias_backward(const PackedLinear<T>& layer, const T* dz, long samples, Optimiser<T>& optimiser, long offset,
                   T* gradient) {
    for (long column = 0; column < layer.row_length(); column += kLanes<T>) {
        Vec<T> sum{};
        for (long j = 0; j < samples; j++) sum += load(dz + j * layer.row_length() + column);
        store(gradient + column, sum);
    }
    optimiser.update_all(offset, gradient, layer.row_length());
}

}  // namespace coterie
