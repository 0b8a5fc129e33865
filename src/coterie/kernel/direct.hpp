// Convolutions of any kernel and stride on maps with the channels innermost.
//
// A sample's map is copied into one with a border of zeros, in which the inputs under a row of the kernel are neighbours: one run of
// (kernel columns x channels) values, for every position and whatever the stride.
#pragma once

#include <cstring>

#include "channels.hpp"
#include "graph.hpp"

namespace coterie {

template <class T>
class Direct {
   public:
    Direct(const Node& node, const Layout& in, const Layout& out)
        : node_(node), in_(in), out_(out), run_(node.kernel_width * in.step) {
        height_ = (out.shape.height - 1) * node.stride_height + node.kernel_height;
        row_ = ((out.shape.width - 1) * node.stride_width + node.kernel_width) * in.step;
        padded_.resize(height_ * row_);
        kernel_.resize(node.kernel_height * run_ * out.step);
    }

    // `weights` lie as [input][kernel row][kernel column][output].
    void pack(const T* weights, bool for_backward) {
        if (for_backward && !turned_kernel_.size()) turned_kernel_.resize(node_.kernel_height * out_.shape.channels * run_);
        for_weights([&](long ky, long place, long o, long weight) {
            kernel_.data()[(ky * run_ + place) * out_.step + o] = weights[weight];
            if (for_backward) turned_kernel_.data()[(ky * out_.shape.channels + o) * run_ + place] = weights[weight];
        });
    }

    void forward(const T* in, const T* bias, T* out, long samples) {
        for (long s = 0; s < samples; s++) {
            pad(in + s * in_.sample());
            for (long y = 0; y < out_.shape.height; y++) {
                const T* from = padded_.data() + y * node_.stride_height * row_;
                T* to = out + s * out_.sample() + y * out_.row();
                for_vectors(out_.step, [&](auto vectors, long first) {
                    forward_row<decltype(vectors)::value>(from, bias ? bias + first : nullptr, kernel_.data() + first, to + first);
                });
            }
        }
    }

    long group() const { return 1; }

    void begin_gradient() {
        if (!kernel_gradient_.size()) kernel_gradient_.resize(kernel_.size());
        std::memset(kernel_gradient_.data(), 0, size_t(kernel_.size()) * sizeof(T));
    }

    // Adds to the kernel's gradient, and to that of the input where one is wanted.
    void backward(const T* in, const T* dz, T* in_gradient, long samples) {
        for (long s = 0; s < samples; s++) {
            const T* own = dz + s * out_.sample();
            pad(in + s * in_.sample());
            for (long ky = 0; ky < node_.kernel_height; ky++)
                for_vectors(out_.step, [&](auto vectors, long first) {
                    weight_gradient<decltype(vectors)::value>(padded_.data() + ky * row_, own + first,
                                                              kernel_gradient_.data() + ky * run_ * out_.step + first);
                });
            if (in_gradient) to_input(own, in_gradient + s * in_.sample());
        }
    }

    // Adds the gradient of the weights, which lie as in `pack`.
    void end_gradient(T* gradient) const {
        for_weights([&](long ky, long place, long o, long weight) {
            gradient[weight] += kernel_gradient_.data()[(ky * run_ + place) * out_.step + o];
        });
    }

   private:
    // body(kernel row, place in its run, output, place among the weights)
    template <class Body>
    void for_weights(Body&& body) const {
        long outputs = out_.shape.channels;
        for (long c = 0; c < in_.shape.channels; c++)
            for (long ky = 0; ky < node_.kernel_height; ky++)
                for (long kx = 0; kx < node_.kernel_width; kx++)
                    for (long o = 0; o < outputs; o++)
                        body(ky, kx * in_.step + c, o, ((c * node_.kernel_height + ky) * node_.kernel_width + kx) * outputs + o);
    }

    template <class Body>
    static COTERIE_INLINE void for_vectors(long columns, Body&& body) {
        long first = 0;
        for (; first + 2 * kLanes<T> <= columns; first += 2 * kLanes<T>) body(std::integral_constant<int, 2>{}, first);
        if (first < columns) body(std::integral_constant<int, 1>{}, first);
    }

    // body(row of the padded map, row of the sample's) where both have it; columns from `left` to `right` of the padded one.
    template <class Body>
    void for_inner_rows(Body&& body) const {
        long left = node_.pad_width * in_.step, right = std::min(row_, left + in_.row());
        for (long y = node_.pad_height; y < std::min(height_, node_.pad_height + in_.shape.height) && left < right; y++)
            body(y * row_ + left, (y - node_.pad_height) * in_.row(), right - left);
    }

    void pad(const T* in) {
        for_inner_rows([&](long to, long from, long count) {
            std::memcpy(padded_.data() + to, in + from, size_t(count) * sizeof(T));
        });
    }

    template <int N>
    void forward_row(const T* from, const T* bias, const T* kernel, T* to) const {
        const long step = node_.stride_width * in_.step, out_step = out_.step;
        for_row_blocks<kProductRows>(out_.shape.width, [&](auto size, long first) {
            constexpr int R = decltype(size)::value;
            Vec<T> sums[R][N];
            for (int i = 0; i < R; i++)
                for (int j = 0; j < N; j++) sums[i][j] = bias ? load(bias + j * kLanes<T>) : Vec<T>{};
            for (long ky = 0; ky < node_.kernel_height; ky++) {
                const T* left[R];
                for (int i = 0; i < R; i++) left[i] = from + ky * row_ + (first + i) * step;
                const T* right = kernel + ky * run_ * out_step;
                multiply_add<T>(
                    sums, run_, [&](int i, long k) { return left[i][k]; }, [&](long k) { return right + k * out_step; });
            }
            for (int i = 0; i < R; i++)
                for (int j = 0; j < N; j++) store(to + (first + i) * out_step + j * kLanes<T>, sums[i][j]);
        });
    }

    template <int N>
    void weight_gradient(const T* from, const T* dz, T* to) const {
        const long step = node_.stride_width * in_.step, out_step = out_.step;
        for_row_blocks<kColumnRows>(run_, [&](auto size, long first) {
            constexpr int R = decltype(size)::value;
            Vec<T> sums[R][N] = {};
            for (long y = 0; y < out_.shape.height; y++) {
                const T* left = from + y * node_.stride_height * row_ + first;
                const T* right = dz + y * out_.row();
                multiply_add<T>(
                    sums, out_.shape.width, [&](int i, long k) { return left[k * step + i]; },
                    [&](long k) { return right + k * out_step; });
            }
            for (int i = 0; i < R; i++)
                for (int j = 0; j < N; j++) {
                    T* place = to + (first + i) * out_step + j * kLanes<T>;
                    store(place, load(place) + sums[i][j]);
                }
        });
    }

    void to_input(const T* dz, T* in_gradient) {
        if (!padded_gradient_.size()) padded_gradient_.resize(padded_.size());
        std::memset(padded_gradient_.data(), 0, size_t(padded_.size()) * sizeof(T));
        for (long y = 0; y < out_.shape.height; y++)
            for (long ky = 0; ky < node_.kernel_height; ky++)
                for_vectors(run_, [&](auto vectors, long first) {
                    to_input_row<decltype(vectors)::value>(
                        dz + y * out_.row(), turned_kernel_.data() + ky * out_.shape.channels * run_ + first,
                        padded_gradient_.data() + (y * node_.stride_height + ky) * row_ + first);
                });
        for_inner_rows([&](long from, long to, long count) {
            for (long i = 0; i < count; i += kLanes<T>)
                store(in_gradient + to + i, load(in_gradient + to + i) + load(padded_gradient_.data() + from + i));
        });
    }

    template <int N>
    void to_input_row(const T* dz, const T* kernel, T* to) const {
        const long step = node_.stride_width * in_.step;
        for_row_blocks<kProductRows>(out_.shape.width, [&](auto size, long first) {
            constexpr int R = decltype(size)::value;
            Vec<T> sums[R][N] = {};
            const T* left[R];
            for (int i = 0; i < R; i++) left[i] = dz + (first + i) * out_.step;
            multiply_add<T>(
                sums, out_.shape.channels, [&](int i, long k) { return left[i][k]; }, [&](long k) { return kernel + k * run_; });
            for (int i = 0; i < R; i++)  // one after the other: neighbours share columns
                for (int j = 0; j < N; j++) {
                    T* place = to + (first + i) * step + j * kLanes<T>;
                    store(place, load(place) + sums[i][j]);
                }
        });
    }

    Node node_;
    Layout in_, out_;
    long run_, height_, row_;
    Buffer<T> padded_, padded_gradient_;
    Buffer<T> kernel_, turned_kernel_, kernel_gradient_;  // [row][place in the run][output], [row][output][place], as the first
};

}  // namespace coterie
