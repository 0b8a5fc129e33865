// Convolutions of 1x1 with stride 1 on maps with the channels innermost: products of matrices, over some pixels at a time.
//
// What a product reads is brought into tiles of kChunk channels, [chunk][pixel][kChunk]: rows are then at a distance that is known
// when this is compiled, and one that spreads over all sets of a cache. On the way into a tile inputs are normalised and activated
// and gradients led through the norm behind, so neither is ever written to memory: large maps are read and written as few times
// as can be, which is what decides here.
#pragma once

#include "convolver.hpp"
#include "transpose.hpp"

namespace coterie {

template <class T>
class Pointwise final : public Convolver<T> {
   public:
    static bool fits(const Node& node, const Layout& in) {
        return node.work == Work::convolution && node.kernel_height * node.kernel_width == 1 && node.stride_height == 1 &&
               node.stride_width == 1 && node.pad_height == 0 && node.pad_width == 0 && in.step % kLanes<T> == 0;
    }

    Pointwise(const Node&, const Layout& in, const Layout& out) : Convolver<T>(in, out) {
        pixels_ = std::clamp<long>(kTileValues / (in.step + out.step) / kRows * kRows, 4 * kRows, 16 * kRows);
        inputs_.resize(chunks_of(in) * pixels_ * kChunk);
        kernel_.resize(in.shape.channels * out.step);
    }

    // `weights` lie as [input][output].
    void pack(const T* weights, bool for_backward) override {
        const long channels = in_.shape.channels, outputs = out_.shape.channels;
        for_strips(out_.step, [&](auto, long first, long width) {
            for (long c = 0; c < channels; c++)
                for (long o = first; o < first + width; o += kLanes<T>)
                    store(kernel_.data() + first * channels + c * width + o - first,
                          load_first(weights + c * outputs + o, outputs - o));
        });
        if (!for_backward) return;
        if (!turned_kernel_.size()) turned_kernel_.resize(outputs * in_.step);
        for_strips(in_.step, [&](auto, long first, long width) {
            transpose<T>([&](long c) { return weights + (first + c) * outputs; }, std::min(width, channels - first), outputs,
                         turned_kernel_.data() + first * outputs, width);
        });
    }

    void forward(const Source<T>& in, T* out, long samples, Normalise<T>* statistics) override {
        const bool past_caches = this->is_large(out_, samples) && !(statistics && !statistics->by_batch());
        if (past_caches && results_.size() < pixels_ * out_.step) results_.resize(pixels_ * out_.step);
        for_tiles(samples, [&](long first, long last) {
            read(in, first, last);
            multiply(inputs_.data(), last - first, in_.shape.channels, kernel_.data(), out_.step, this->bias(),
                     past_caches ? results_.data() : out + first * out_.step, false);
            if (past_caches)
                this->finish(results_.data(), out, first, last, statistics);
            else if (statistics)
                statistics->collect_pixels(out, first, last);
        });
    }

    void backward(const Source<T>& in, T* g, const T* out, Normalise<T>* behind, T* in_gradient, bool add,
                  long samples) override {
        if (!gradients_.size()) gradients_.resize(chunks_of(out_) * pixels_ * kChunk);
        this->clear(kernel_gradient_, kernel_.size());
        this->begin_bias();
        const bool past_caches = in.norm && this->is_large(in_, samples);
        if (past_caches && results_.size() < pixels_ * in_.step) results_.resize(pixels_ * in_.step);
        for_tiles(samples, [&](long first, long last) {
            read(in, first, last);
            this->each_gradient(g, out, behind, first, last, samples, [&](long p, long c, Vec<T> value) COTERIE_INLINE_LAMBDA {
                store(place(gradients_, p - first, c), value);
            });
            add_weight_gradients(last - first);
            if (!in_gradient) return;
            T* to = past_caches ? results_.data() : in_gradient + first * in_.step;
            multiply(gradients_.data(), last - first, out_.shape.channels, turned_kernel_.data(), in_.step, nullptr, to, add);
            if (!in.norm) return;
            auto get = [&](long p, long c) COTERIE_INLINE_LAMBDA { return load(to + (p - first) * in_.step + c); };
            auto put = [&](long p, long c, Vec<T> value) COTERIE_INLINE_LAMBDA {
                T* place = in_gradient + p * in_.step + c;
                past_caches ? stream(place, value) : store(place, value);
            };
            in.norm->gather_pixels(in.data, first, last, get, put);
        });
    }

    void end_gradient(T* weights, T* bias) override {
        const long outputs = out_.shape.channels;
        for (long c = 0; c < in_.shape.channels; c++)
            for (long o = 0; o < outputs; o += kLanes<T>) {
                T* to = weights + c * outputs + o;
                store_first(to, load_first(to, outputs - o) + load(kernel_gradient_.data() + c * out_.step + o), outputs - o);
            }
        this->end_bias(bias);
    }

   private:
    using Convolver<T>::in_;
    using Convolver<T>::out_;
    static constexpr long kChunk = 48;
    static constexpr long kTileValues = 64 << 10;
    static constexpr int kRows = kManyRegisters ? 8 : 6, kStrip = kManyRegisters ? 3 : 2;  // of a tile of registers

    static long chunks_of(const Layout& layout) { return (layout.step + kChunk - 1) / kChunk; }

    // Where a value is in a tile.
    T* place(Buffer<T>& tile, long pixel, long c) const {
        return tile.data() + (c / kChunk * pixels_ + pixel) * kChunk + c % kChunk;
    }

    template <class Body>
    void for_tiles(long samples, Body&& body) const {
        const long all = samples * in_.pixels();
        const int tiles = blocks_of(all, pixels_);
        for (int t = 0; t < tiles; t++) body(block_start(all, tiles, t), block_start(all, tiles, t + 1));
    }

    // body(vectors as a constant, first column, columns) for all columns, which are whole vectors
    template <class Body>
    static COTERIE_INLINE void for_strips(long columns, Body&& body) {
        constexpr long L = kLanes<T>;
        for (long first = 0; first < columns; first += kStrip * L) {
            const long width = std::min(kStrip * L, columns - first);
            with_constant<kStrip>(int(width / L), [&](auto vectors) { body(vectors, first, width); });
        }
    }

    void read(const Source<T>& in, long first, long last) {
        in.each_value(in_.step, first, last, [&](long p, long c, Vec<T> value) COTERIE_INLINE_LAMBDA {
            store(place(inputs_, p - first, c), value);
        });
    }

    // out[pixel][column] (+)= sum over k of tile[pixel][k] * right[k][column]; `right` lies strip by strip.
    void multiply(const T* tile, long pixels, long count, const T* right, long columns, const T* bias, T* out, bool add) const {
        for_strips(columns, [&](auto vectors, long first, long) {
            constexpr int N = decltype(vectors)::value;
            const T* strip = right + first * count;
            for_row_blocks<kRows>(pixels, [&](auto rows, long row) {
                constexpr int R = decltype(rows)::value;
                Vec<T> sums[R][N];
                T* to = out + row * columns + first;
                for (int i = 0; i < R; i++)
                    for (int j = 0; j < N; j++) {
                        sums[i][j] = bias ? load(bias + first + j * kLanes<T>) : Vec<T>{};
                        if (add) sums[i][j] += load(to + i * columns + j * kLanes<T>);
                    }
                for (long k = 0; k < count; k += kChunk) {
                    const T *left = tile + k * pixels_ + row * kChunk, *own = strip + k * N * kLanes<T>;
                    multiply_add<T>(
                        sums, std::min(kChunk, count - k), [left](int i, long at) COTERIE_INLINE_LAMBDA { return left[i * kChunk + at]; },
                        [own, width = N * kLanes<T>](long at) COTERIE_INLINE_LAMBDA { return own + at * width; });
                }
                for (int i = 0; i < R; i++)
                    for (int j = 0; j < N; j++) store(to + i * columns + j * kLanes<T>, sums[i][j]);
            });
        });
    }

    // kernel_gradient[input][output] += sum over pixels of input * gradient
    void add_weight_gradients(long pixels) {
        const long channels = in_.shape.channels;
        for (long a = 0; a < channels; a += kChunk)
            for (long b = 0; b < out_.step; b += kChunk)
                for_strips(std::min(kChunk, out_.step - b), [&](auto vectors, long first, long) {
                    constexpr int N = decltype(vectors)::value;
                    const T* right = gradients_.data() + b * pixels_ + first;
                    for_row_blocks<kRows>(std::min(kChunk, channels - a), [&](auto rows, long row) {
                        constexpr int R = decltype(rows)::value;
                        Vec<T> sums[R][N] = {};
                        const T* left = inputs_.data() + a * pixels_ + row;
                        multiply_add<T>(
                            sums, pixels, [left](int i, long p) COTERIE_INLINE_LAMBDA { return left[p * kChunk + i]; },
                            [right](long p) COTERIE_INLINE_LAMBDA { return right + p * kChunk; });
                        T* to = kernel_gradient_.data() + (a + row) * out_.step + b + first;
                        for (int i = 0; i < R; i++)
                            for (int j = 0; j < N; j++) {
                                T* at = to + i * out_.step + j * kLanes<T>;
                                store(at, load(at) + sums[i][j]);
                            }
                    });
                });
    }

    long pixels_;
    Buffer<T> inputs_, gradients_, results_;              // tiles
    Buffer<T> kernel_, turned_kernel_, kernel_gradient_;  // strips of [input][output] and of [output][input]; [input][output]
};

}  // namespace coterie
