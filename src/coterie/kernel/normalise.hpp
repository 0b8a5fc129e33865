// BatchNorm and GroupNorm on maps with the channels innermost, with an addition and an activation behind them:
//
//   y = activation((z - mean) * inverse * weight + bias [+ other])
//
// Statistics belong to a set: all samples of a batch, or each sample alone. Moments are taken sample by sample, around the
// sample's own mean, and then joined (Chan et al. 1983), so nothing large is ever subtracted from something large.
#pragma once

#include <cmath>
#include <cstring>

#include "activation.hpp"
#include "channels.hpp"
#include "graph.hpp"

namespace coterie {

template <class T>
class Normalise {
   public:
    Normalise(const Node& node, const Layout& layout, long batch)
        : node_(node), layout_(layout), sets_(node.by_batch() ? 1 : batch) {
        for (Buffer<T>* each : {&mean_, &inverse_, &sums_, &products_}) each->resize(sets_ * layout.step);
        for (Buffer<T>* each : {&weight_, &bias_, &spread_, &slope_, &shift_}) each->resize(layout.step);
        for (long c = 0; c < layout.shape.channels; c++) weight_.data()[c] = T(1);
    }

    // Once per step; null where there is none.
    void pack(const T* weight, const T* bias) {
        size_t bytes = size_t(layout_.shape.channels) * sizeof(T);
        if (weight) std::memcpy(weight_.data(), weight, bytes);
        if (bias) std::memcpy(bias_.data(), bias, bytes);
    }

    // Instead of the batch's own statistics.
    void use_running(const T* mean, const T* variance) {
        for (long c = 0; c < layout_.shape.channels; c++) {
            mean_.data()[c] = mean[c];
            inverse_.data()[c] = inverse_of(variance[c]);
        }
    }

    void begin() { seen_ = 0; }

    // Takes the statistics of some samples.
    void collect(const T* z, long first, long samples) {
        for (long s = first; s < first + samples; s++) {
            const T* own = z + s * layout_.sample();
            if (node_.by_batch())
                join(own, layout_.pixels());
            else
                moments_of_groups(own, s);
        }
    }

    // The same for the batch's pixels from `first` to before `last`, those before them being taken already.
    void collect_pixels(const T* z, long first, long last) {
        if (node_.by_batch()) return join(z + first * layout_.step, last - first);
        for (long s = first / layout_.pixels(); s < last / layout_.pixels(); s++) moments_of_groups(z + s * layout_.sample(), s);
    }

    bool by_batch() const { return node_.by_batch(); }

    // The same for the next pixels of the batch, wherever they lie.
    void join(const T* z, long count) {
        const T pixels = T(count), total = seen_ + pixels;
        for (long c = 0; c < layout_.step; c += kLanes<T>) {
            Vec<T> mean, squares;
            moments(z + c, count, mean, squares);
            T *all = mean_.data() + c, *spread = spread_.data() + c;
            if (seen_ == 0) {
                store(all, mean);
                store(spread, squares);
                continue;
            }
            Vec<T> distance = mean - load(all);
            store(all, load(all) + distance * (pixels / total));
            store(spread, load(spread) + squares + distance * distance * (seen_ * pixels / total));
        }
        seen_ = total;
    }

    // For whoever reads z alone and normalises as it reads: body(pixel, channel, y) for some of the batch's pixels.
    template <class Body>
    COTERIE_INLINE void each_value(const T* z, long first, long last, Body&& body) {
        with_activation([&](auto kind) {
            for_sets(first, last, [&](long sample, long from, long to) {
                const T *mean = set(mean_, sample), *inverse = set(inverse_, sample);
                for (long p = from; p < to; p++)
                    for (long c = 0; c < layout_.step; c += kLanes<T>) {
                        Vec<T> scale = load(weight_.data() + c) * load(inverse + c);
                        Vec<T> value = (load(z + p * layout_.step + c) - load(mean + c)) * scale + load(bias_.data() + c);
                        body(p, c, activate<T>(value, decltype(kind)::value));
                    }
            });
        });
    }

    // After all samples: what normalises the batch. Running statistics, if there are some, move towards it.
    void settle(T* running_mean, T* running_variance) {
        if (!node_.by_batch()) return;
        T momentum = T(node_.momentum);
        for (long c = 0; c < layout_.shape.channels; c++) {
            inverse_.data()[c] = inverse_of(spread_.data()[c] / seen_);
            if (!running_mean) continue;
            running_mean[c] = momentum * mean_.data()[c] + (1 - momentum) * running_mean[c];
            running_variance[c] = momentum * (spread_.data()[c] / (seen_ - 1)) + (1 - momentum) * running_variance[c];
        }
    }

    void apply(const T* z, const T* other, T* y, long samples) {
        with_activation([&](auto kind) {
            for (long s = 0; s < samples; s++) {
                for (long c = 0; c < layout_.step; c += kLanes<T>) {
                    const Vec<T> mean = load(set(mean_, s) + c), bias = load(bias_.data() + c), scale = scale_of(s, c);
                    for_pixels(s, c, [&](long at) COTERIE_INLINE_LAMBDA {
                        Vec<T> value = (load(z + at) - mean) * scale + bias;
                        if (other) value += load(other + at);
                        store(y + at, activate<T>(value, decltype(kind)::value));
                    });
                }
            }
        });
    }

    void begin_gather() {
        std::memset(sums_.data(), 0, size_t(sets_ * layout_.step) * sizeof(T));
        std::memset(products_.data(), 0, size_t(sets_ * layout_.step) * sizeof(T));
        has_slopes_ = false;
    }

    // The way back in two passes. First `g`, the gradient of y, becomes that before the activation, which also is the other
    // summand's; the sums of the second pass are taken.
    void gather(T* g, const T* y, const T* z, T* other_gradient, bool add_other, long samples) {
        begin_gather();
        with_activation([&](auto kind) {
            for (long s = 0; s < samples; s++) {
                for (long c = 0; c < layout_.step; c += kLanes<T>) {
                    Vec<T> sum{}, product{}, mean = load(set(mean_, s) + c);
                    for_pixels(s, c, [&](long at) COTERIE_INLINE_LAMBDA {
                        Vec<T> gradient = through_activation<T>(load(g + at), load(y + at), decltype(kind)::value);
                        if (decltype(kind)::value != Activation::none) store(g + at, gradient);
                        if (other_gradient) store(other_gradient + at, add_other ? load(other_gradient + at) + gradient : gradient);
                        sum += gradient;
                        product += gradient * (load(z + at) - mean);
                    });
                    store(set(sums_, s) + c, load(set(sums_, s) + c) + sum);
                    store(set(products_, s) + c, load(set(products_, s) + c) + product);
                }
            }
        });
    }

    // The same for some of the batch's pixels where y was never kept, after `begin_gather`: get(pixel, channel) is the gradient of
    // y, put(pixel, channel, gradient) takes what it becomes.
    template <class Get, class Put>
    COTERIE_INLINE void gather_pixels(const T* z, long first, long last, Get&& get, Put&& put) {
        with_activation([&](auto kind) {
            for_sets(first, last, [&](long sample, long from, long to) {
                for (long c = 0; c < layout_.step; c += kLanes<T>) {
                    const Vec<T> mean = load(set(mean_, sample) + c), bias = load(bias_.data() + c), scale = scale_of(sample, c);
                    Vec<T> sum{}, product{};
                    for (long p = from; p < to; p++) {
                        Vec<T> distance = load(z + p * layout_.step + c) - mean;
                        Vec<T> y = activate<T>(distance * scale + bias, decltype(kind)::value);
                        Vec<T> gradient = through_activation<T>(get(p, c), y, decltype(kind)::value);
                        put(p, c, gradient);
                        sum += gradient;
                        product += gradient * distance;
                    }
                    store(set(sums_, sample) + c, load(set(sums_, sample) + c) + sum);
                    store(set(products_, sample) + c, load(set(products_, sample) + c) + product);
                }
            });
        });
    }

    // Adds the gradients of weight and bias, where they are wanted.
    void parameter_gradients(T* weight, T* bias, long samples) const {
        for (long s = 0; s < (node_.by_batch() ? 1 : samples); s++)
            for (long c = 0; c < layout_.shape.channels; c++) {
                long at = s * layout_.step + c;
                if (weight) weight[c] += products_.data()[at] * inverse_.data()[at];
                if (bias) bias[c] += sums_.data()[at];
            }
    }

    // From `g` to the gradient of z, for some samples; both may be the same.
    void to_input(const T* g, const T* z, T* to, bool add, long first, long samples, long batch) {
        for (long s = first; s < first + samples; s++) {
            make_slopes(s, batch);
            for (long c = 0; c < layout_.step; c += kLanes<T>) {
                const Vec<T> mean = load(set(mean_, s) + c), scale = scale_of(s, c);
                const Vec<T> slope = load(slope_.data() + c), shift = load(shift_.data() + c);
                for_pixels(s, c, [&](long at) COTERIE_INLINE_LAMBDA {
                    Vec<T> value = load(g + at) * scale - (load(z + at) - mean) * slope - shift;
                    store(to + at, add ? load(to + at) + value : value);
                });
            }
        }
    }

    // The same for some of the batch's pixels: body(pixel, channel, gradient of z).
    template <class Body>
    COTERIE_INLINE void each_gradient(const T* g, const T* z, long first, long last, long batch, Body&& body) {
        for_sets(first, last, [&](long sample, long from, long to) {
            if (!has_slopes_ || !node_.by_batch()) make_slopes(sample, batch);
            has_slopes_ = true;
            const T *mean = set(mean_, sample), *inverse = set(inverse_, sample);
            for (long p = from; p < to; p++)
                for (long c = 0; c < layout_.step; c += kLanes<T>) {
                    const long at = p * layout_.step + c;
                    Vec<T> scale = load(weight_.data() + c) * load(inverse + c);
                    body(p, c, load(g + at) * scale - (load(z + at) - load(mean + c)) * load(slope_.data() + c) -
                                   load(shift_.data() + c));
                }
        });
    }

   private:
    // body(sample, first pixel, pixel behind the last) for pixels that share their statistics
    template <class Body>
    COTERIE_INLINE void for_sets(long first, long last, Body&& body) const {
        const long pixels = layout_.pixels();
        for (long next; first < last; first = next) {
            next = node_.by_batch() ? last : std::min(last, (first / pixels + 1) * pixels);
            body(first / pixels, first, next);
        }
    }

    T* set(Buffer<T>& of, long sample) { return of.data() + (node_.by_batch() ? 0 : sample) * layout_.step; }
    T inverse_of(T variance) const { return T(1) / std::sqrt(variance + T(node_.eps)); }

    Vec<T> scale_of(long sample, long c) { return load(weight_.data() + c) * load(set(inverse_, sample) + c); }

    // body(place) for the channels from `c` on of every pixel of a sample
    template <class Body>
    COTERIE_INLINE void for_pixels(long sample, long c, Body&& body) const {
        const long step = layout_.step, end = (sample + 1) * layout_.sample();
        for (long at = sample * layout_.sample() + c; at < end; at += step) body(at);
    }

    template <class Body>
    void with_activation(Body&& body) const {
        switch (node_.activation) {
            case Activation::none: return body(std::integral_constant<Activation, Activation::none>{});
            case Activation::relu: return body(std::integral_constant<Activation, Activation::relu>{});
            case Activation::relu6: return body(std::integral_constant<Activation, Activation::relu6>{});
            case Activation::tanh: return body(std::integral_constant<Activation, Activation::tanh>{});
            default: return body(std::integral_constant<Activation, Activation::sigmoid>{});
        }
    }

    // Of some pixels and one vector of channels: the mean, and the sum of squares around it.
    COTERIE_INLINE void moments(const T* z, long pixels, Vec<T>& mean, Vec<T>& squares) const {
        const long step = layout_.step;
        Vec<T> sums[4] = {}, around[4] = {};
        long p = 0;
        for (; p + 4 <= pixels; p += 4)
            for (int i = 0; i < 4; i++) sums[i] += load(z + (p + i) * step);
        for (; p < pixels; p++) sums[0] += load(z + p * step);
        mean = ((sums[0] + sums[1]) + (sums[2] + sums[3])) / T(pixels);
        for (p = 0; p + 4 <= pixels; p += 4)
            for (int i = 0; i < 4; i++) {
                Vec<T> distance = load(z + (p + i) * step) - mean;
                around[i] += distance * distance;
            }
        for (; p < pixels; p++) {
            Vec<T> distance = load(z + p * step) - mean;
            around[0] += distance * distance;
        }
        squares = (around[0] + around[1]) + (around[2] + around[3]);
    }

    void moments_of_groups(const T* z, long sample) {
        T *mean = set(mean_, sample), *inverse = set(inverse_, sample), *spread = spread_.data();
        for (long c = 0; c < layout_.step; c += kLanes<T>) {
            Vec<T> own, squares;
            moments(z + c, layout_.pixels(), own, squares);
            store(mean + c, own);
            store(spread + c, squares);
        }
        const long size = layout_.shape.channels / node_.groups;
        const T pixels = T(layout_.pixels());
        for (long first = 0; first < layout_.shape.channels; first += size) {
            T middle = 0, squares = 0;
            for (long c = first; c < first + size; c++) middle += mean[c];
            middle /= T(size);
            for (long c = first; c < first + size; c++)
                squares += spread[c] + pixels * (mean[c] - middle) * (mean[c] - middle);
            for (long c = first; c < first + size; c++) {
                mean[c] = middle;
                inverse[c] = inverse_of(squares / (pixels * T(size)));
            }
        }
    }

    // What is taken from the gradient of z: how far it moves the set's mean (`shift`) and deviation (`slope`).
    void make_slopes(long sample, long batch) {
        const T *sums = set(sums_, sample), *products = set(products_, sample), *inverse = set(inverse_, sample);
        const long channels = layout_.shape.channels, size = node_.by_batch() ? 1 : channels / node_.groups;
        const T count = T(layout_.pixels()) * T(node_.by_batch() ? batch : size);
        for (long first = 0; first < channels; first += size) {
            T sum = 0, product = 0;
            for (long c = first; c < first + size; c++) {
                sum += sums[c] * weight_.data()[c];
                product += products[c] * weight_.data()[c];
            }
            for (long c = first; c < first + size; c++) {
                shift_.data()[c] = sum * inverse[c] / count;
                slope_.data()[c] = product * inverse[c] * inverse[c] * inverse[c] / count;
            }
        }
    }

    Node node_;
    Layout layout_;
    long sets_;
    T seen_ = 0;                                  // values of a channel so far
    bool has_slopes_ = false;
    Buffer<T> mean_, inverse_, sums_, products_;  // [set][channel]: statistics, and sums of g and of g (z - mean)
    Buffer<T> weight_, bias_, spread_, slope_, shift_;
};

}  // namespace coterie
