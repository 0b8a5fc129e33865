// Convolutions of each channel by itself, any kernel and stride, on maps with the channels innermost.
//
// There is next to nothing to multiply: reading and writing the maps is what takes time. So a sample's rows go through a ring of as
// many rows as the kernel has, each brought in once, normalised and activated on the way; on the way back the gradients of these
// rows are summed up beside them and leave when a row leaves the ring. A row lies as [vector of channels][column][lane].
#pragma once

#include "convolver.hpp"

namespace coterie {

template <class T>
class Depthwise final : public Convolver<T> {
   public:
    Depthwise(const Node& node, const Layout& in, const Layout& out) : Convolver<T>(in, out), node_(node) {
        width_ = std::max((out.shape.width - 1) * node.stride_width + node.kernel_width, node.pad_width + in.shape.width);
        slot_ = width_ * in.step;
        ring_.resize(node.kernel_height * slot_);
        kernel_.resize(node.taps() * in.step);
    }

    // `weights` lie as [kernel row][kernel column][channel].
    void pack(const T* weights, bool) override {
        const long channels = in_.shape.channels;
        for (long tap = 0; tap < node_.taps(); tap++)
            std::memcpy(kernel_.data() + tap * in_.step, weights + tap * channels, size_t(channels) * sizeof(T));
    }

    void forward(const Source<T>& in, T* out, long samples, Normalise<T>* statistics) override {
        const long height = out_.shape.height, width = out_.shape.width;
        const bool past_caches = this->is_large(out_, samples) && !(statistics && !statistics->by_batch());
        if (past_caches && !results_.size()) results_.resize((kPixelsTaken + width) * out_.step);
        long taken = 0;
        for (long s = 0; s < samples; s++) {
            long next = 0;
            for (long y = 0; y < height; y++) {
                for (; next < y * node_.stride_height + node_.kernel_height; next++) enter(in, s, next);
                const long begun = (s * height + y) * width;
                T* to = past_caches ? results_.data() + (begun - taken) * out_.step : out + begun * out_.step;
                with_kernel([&](auto kernel) { forward_row<decltype(kernel)::value>(y, to); });
                const long done = begun + width;
                if (done - taken < kPixelsTaken && y + 1 < height) continue;
                if (past_caches)
                    this->finish(results_.data(), out, taken, done, statistics);
                else if (statistics)
                    statistics->collect_pixels(out, taken, done);
                taken = done;
            }
        }
    }

    void backward(const Source<T>& in, T* g, const T* out, Normalise<T>* behind, T* in_gradient, bool add,
                  long samples) override {
        const long height = out_.shape.height, width = out_.shape.width, kernel_height = node_.kernel_height;
        this->clear(kernel_gradient_, kernel_.size());
        this->begin_bias();
        const bool past_caches = !add && this->is_large(in_, samples);
        if (!row_.size()) row_.resize(out_.row());
        if (in_gradient && !gradients_.size()) gradients_.resize(ring_.size());
        for (long s = 0; s < samples; s++) {
            long next = 0;
            auto enter_next = [&] {
                if (in_gradient && next >= kernel_height) leave(in, s, next - kernel_height, in_gradient, add, past_caches);
                enter(in, s, next);
                if (in_gradient) std::memset(slot(gradients_, next), 0, size_t(slot_) * sizeof(T));
                next++;
            };
            for (long y = 0; y < height; y++) {
                while (next < y * node_.stride_height + kernel_height) enter_next();
                const long first = (s * height + y) * width;
                this->each_gradient(g, out, behind, first, first + width, samples,
                                    [&](long p, long c, Vec<T> value) COTERIE_INLINE_LAMBDA {
                                        store(row_.data() + c * width + (p - first) * kLanes<T>, value);
                                    });
                with_kernel([&](auto kernel) { weight_gradients<decltype(kernel)::value>(y); });
                if (in_gradient) with_kernel([&](auto kernel) { to_inputs<decltype(kernel)::value>(y); });
            }
            if (!in_gradient) continue;
            while (next < node_.pad_height + in_.shape.height) enter_next();  // rows that no output reads
            for (long row = std::max<long>(0, next - kernel_height); row < next; row++)
                leave(in, s, row, in_gradient, add, past_caches);
        }
    }

    void end_gradient(T* weights, T* bias) override {
        const long channels = in_.shape.channels;
        for (long tap = 0; tap < node_.taps(); tap++)
            for (long c = 0; c < channels; c++) weights[tap * channels + c] += kernel_gradient_.data()[tap * in_.step + c];
        this->end_bias(bias);
    }

   private:
    using Convolver<T>::in_;
    using Convolver<T>::out_;
    static constexpr long kPixelsTaken = 128;  // at least, where a map has so many

    // Rows are counted from the first of the border above the map.
    T* slot(Buffer<T>& ring, long row) const { return ring.data() + row % node_.kernel_height * slot_; }
    bool is_inside(long row) const { return row >= node_.pad_height && row < node_.pad_height + in_.shape.height; }
    long first_pixel(long sample, long row) const { return sample * in_.pixels() + (row - node_.pad_height) * in_.shape.width; }

    void enter(const Source<T>& in, long sample, long row) {
        T* to = slot(ring_, row);
        if (!is_inside(row)) {
            std::memset(to, 0, size_t(slot_) * sizeof(T));
            return;
        }
        const long first = first_pixel(sample, row), left = node_.pad_width - first;
        in.each_value(in_.step, first, first + in_.shape.width, [&](long p, long c, Vec<T> value) COTERIE_INLINE_LAMBDA {
            store(to + c * width_ + (p + left) * kLanes<T>, value);
        });
    }

    void leave(const Source<T>& in, long sample, long row, T* in_gradient, bool add, bool past_caches) {
        if (!is_inside(row)) return;
        const long first = first_pixel(sample, row), last = first + in_.shape.width, left = node_.pad_width - first;
        const T* from = slot(gradients_, row);
        auto get = [&](long p, long c) COTERIE_INLINE_LAMBDA { return load(from + c * width_ + (p + left) * kLanes<T>); };
        auto put = [&](long p, long c, Vec<T> value) COTERIE_INLINE_LAMBDA {
            T* to = in_gradient + p * in_.step + c;
            if (past_caches)
                stream(to, value);
            else
                store(to, add ? load(to) + value : value);
        };
        if (in.norm) return in.norm->gather_pixels(in.data, first, last, get, put);
        for (long p = first; p < last; p++)
            for (long c = 0; c < in_.step; c += kLanes<T>) put(p, c, get(p, c));
    }

    // With the side of a square kernel where it is known when this is compiled, otherwise with 0.
    template <class Body>
    COTERIE_INLINE void with_kernel(Body&& body) const {
        if (node_.kernel_height == 3 && node_.kernel_width == 3)
            body(std::integral_constant<int, 3>{});
        else
            body(std::integral_constant<int, 0>{});
    }
    template <int K>
    void forward_row(long y, T* out) {
        const long step = node_.stride_width * kLanes<T>;
        for (long c = 0; c < in_.step; c += kLanes<T>) {
            const Vec<T> base = this->bias() ? load(this->bias() + c) : Vec<T>{};
            if constexpr (K > 0) {
                Vec<T> kernel[K][K];
                const T* from[K];
                for (int ky = 0; ky < K; ky++) {
                    from[ky] = slot(ring_, y * node_.stride_height + ky) + c * width_;
                    for (int kx = 0; kx < K; kx++) kernel[ky][kx] = load(kernel_.data() + (ky * K + kx) * in_.step + c);
                }
                for (long x = 0; x < out_.shape.width; x++) {
                    Vec<T> sums[K] = {base};
                    for (int ky = 0; ky < K; ky++)
                        for (int kx = 0; kx < K; kx++) sums[ky] += kernel[ky][kx] * load(from[ky] + x * step + kx * kLanes<T>);
                    for (int ky = 1; ky < K; ky++) sums[0] += sums[ky];
                    store(out + x * out_.step + c, sums[0]);
                }
            } else {
                for (long x = 0; x < out_.shape.width; x++) {
                    Vec<T> sum = base;
                    for_taps(y, x, c, [&](long tap, long at) { sum += load(kernel_.data() + tap) * load(ring_.data() + at); });
                    store(out + x * out_.step + c, sum);
                }
            }
        }
    }

    template <int K>
    void weight_gradients(long y) {
        const long step = node_.stride_width * kLanes<T>, width = out_.shape.width;
        for (long c = 0; c < in_.step; c += kLanes<T>) {
            const T* g = row_.data() + c * width;
            if constexpr (K > 0) {
                Vec<T> sums[K][K] = {};
                const T* from[K];
                for (int ky = 0; ky < K; ky++) from[ky] = slot(ring_, y * node_.stride_height + ky) + c * width_;
                for (long x = 0; x < width; x++) {
                    const Vec<T> own = load(g + x * kLanes<T>);
                    for (int ky = 0; ky < K; ky++)
                        for (int kx = 0; kx < K; kx++) sums[ky][kx] += own * load(from[ky] + x * step + kx * kLanes<T>);
                }
                for (int tap = 0; tap < K * K; tap++) {
                    T* to = kernel_gradient_.data() + tap * in_.step + c;
                    store(to, load(to) + sums[tap / K][tap % K]);
                }
            } else {
                for (long x = 0; x < width; x++)
                    for_taps(y, x, c, [&](long tap, long at) {
                        T* to = kernel_gradient_.data() + tap;
                        store(to, load(to) + load(g + x * kLanes<T>) * load(ring_.data() + at));
                    });
            }
        }
    }

    template <int K>
    void to_inputs(long y) {
        const long width = out_.shape.width;
        for (long c = 0; c < in_.step; c += kLanes<T>) {
            const T* g = row_.data() + c * width;
            if constexpr (K == 3) {
                if (node_.stride_width == 1) {
                    for (int ky = 0; ky < K; ky++)
                        add_row_of_three(g, kernel_.data() + ky * K * in_.step + c,
                                         slot(gradients_, y * node_.stride_height + ky) + c * width_);
                    continue;
                }
            }
            for (long x = 0; x < width; x++)
                for_taps(y, x, c, [&](long tap, long at) {
                    T* to = gradients_.data() + at;
                    store(to, load(to) + load(g + x * kLanes<T>) * load(kernel_.data() + tap));
                });
        }
    }

    // With stride 1: what three neighbours add to a place is summed up in registers.
    void add_row_of_three(const T* g, const T* kernel, T* to) const {
        const Vec<T> first = load(kernel), second = load(kernel + in_.step), third = load(kernel + 2 * in_.step);
        Vec<T> here{}, ahead{};
        for (long x = 0; x < out_.shape.width; x++, to += kLanes<T>) {
            const Vec<T> own = load(g + x * kLanes<T>);
            store(to, load(to) + (here + own * first));
            here = ahead + own * second;
            ahead = own * third;
        }
        store(to, load(to) + here);
        store(to + kLanes<T>, load(to + kLanes<T>) + ahead);
    }

    // body(place in the kernel, place in a ring) for an output and a vector of channels
    template <class Body>
    COTERIE_INLINE void for_taps(long y, long x, long c, Body&& body) const {
        for (long ky = 0; ky < node_.kernel_height; ky++) {
            const long row = (y * node_.stride_height + ky) % node_.kernel_height * slot_ + c * width_;
            for (long kx = 0; kx < node_.kernel_width; kx++)
                body((ky * node_.kernel_width + kx) * in_.step + c, row + (x * node_.stride_width + kx) * kLanes<T>);
        }
    }

    Node node_;
    long width_, slot_;
    Buffer<T> ring_, gradients_, row_, results_;
    Buffer<T> kernel_, kernel_gradient_;  // [tap][channel]
};

}  // namespace coterie
