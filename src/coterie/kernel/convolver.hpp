// What every way to convolve maps with the channels innermost offers to the graph (graph.cpp).
#pragma once

#include <cstring>
#include <utility>

#include "channels.hpp"
#include "normalise.hpp"

namespace coterie {

// What a convolution reads: a map, or with `norm` what that makes of it, which is then never in memory as a whole.
template <class T>
struct Source {
    const T* data;
    Normalise<T>* norm;

    // body(pixel, channel, value) for some of the batch's pixels
    template <class Body>
    COTERIE_INLINE void each_value(long step, long first, long last, Body&& body) const {
        if (norm) return norm->each_value(data, first, last, body);
        for (long p = first; p < last; p++)
            for (long c = 0; c < step; c += kLanes<T>) body(p, c, load(data + p * step + c));
    }
};

template <class T>
class Convolver {
   public:
    Convolver(const Layout& in, const Layout& out) : in_(in), out_(out) {}
    virtual ~Convolver() = default;

    // Whether its source may have a norm.
    virtual bool normalises() const { return true; }

    // Once per step.
    virtual void pack(const T* weights, bool for_backward) = 0;
    void set_bias(const T* bias) {
        if (!bias_.size()) bias_.resize(out_.step);
        std::memcpy(bias_.data(), bias, size_t(out_.shape.channels) * sizeof(T));
    }

    // Has `statistics`, where there is one, look at the result while it is in the cache.
    virtual void forward(const Source<T>& in, T* out, long samples, Normalise<T>* statistics) = 0;

    // From the gradient `g` of `out`, or of what `behind` made of it (`g` may then be changed), to that of the input, where one is
    // wanted: it is written, or added to what is there. The norm of a source has its sums taken.
    virtual void backward(const Source<T>& in, T* g, const T* out, Normalise<T>* behind, T* in_gradient, bool add,
                          long samples) = 0;

    // Adds the gradient of the weights, which lie as in `pack`, and of the bias if it is wanted.
    virtual void end_gradient(T* weights, T* bias) = 0;

   protected:
    // Whether a map of the whole batch is so large that it is out of the caches before it is read again.
    static bool is_large(const Layout& map, long samples) { return samples * map.sample() * long(sizeof(T)) >= kLargeBytes; }

    // Pixels one behind the other that lie in a small buffer: their statistics are taken, then they go to memory.
    void finish(const T* from, T* out, long first, long last, Normalise<T>* statistics) const {
        if (statistics) statistics->join(from, last - first);
        T* to = out + first * out_.step;
        for (long i = 0; i < (last - first) * out_.step; i += kLanes<T>) stream(to + i, load(from + i));
    }

    const T* bias() const { return bias_.size() ? bias_.data() : nullptr; }

    // body(pixel, channel, gradient of `out`) for some of the batch's pixels; the bias gets its share.
    template <class Body>
    COTERIE_INLINE void each_gradient(const T* g, const T* out, Normalise<T>* behind, long first, long last, long samples,
                                      Body&& body) {
        auto take = [&](long p, long c, Vec<T> value) COTERIE_INLINE_LAMBDA {
            if (bias_.size()) store(bias_gradient_.data() + c, load(bias_gradient_.data() + c) + value);
            body(p, c, value);
        };
        if (behind) return behind->each_gradient(g, out, first, last, samples, take);
        for (long p = first; p < last; p++)
            for (long c = 0; c < out_.step; c += kLanes<T>) take(p, c, load(g + p * out_.step + c));
    }

    void begin_bias() { clear(bias_gradient_, bias_.size()); }
    void end_bias(T* bias) const {
        for (long c = 0; bias && c < out_.shape.channels; c++) bias[c] += bias_gradient_.data()[c];
    }

    static void clear(Buffer<T>& buffer, long size) {
        if (buffer.size() != size)
            buffer.resize(size);
        else if (size)
            std::memset(buffer.data(), 0, size_t(size) * sizeof(T));
    }

    static constexpr long kLargeBytes = 8L << 20;
    Layout in_, out_;
    Buffer<T> bias_, bias_gradient_;  // filled up to whole vectors
};

// Ways that know neither norms nor biases: Winograd and Direct. A norm's work is done for some samples at a time.
template <class T, class Way>
class BySamples final : public Convolver<T> {
   public:
    BySamples(const Node& node, const Layout& in, const Layout& out) : Convolver<T>(in, out), way_(node, in, out) {}

    bool normalises() const override { return false; }
    void pack(const T* weights, bool for_backward) override { way_.pack(weights, for_backward); }

    void forward(const Source<T>& in, T* out, long samples, Normalise<T>* statistics) override {
        for_groups(samples, [&](long first, long count) {
            way_.forward(in.data + first * this->in_.sample(), this->bias(), out + first * this->out_.sample(), count);
            if (statistics) statistics->collect(out, first, count);
        });
    }

    void backward(const Source<T>& in, T* g, const T* out, Normalise<T>* behind, T* in_gradient, bool add,
                  long samples) override {
        way_.begin_gradient();
        this->begin_bias();
        for_groups(samples, [&](long first, long count) {
            const long from = first * this->in_.sample(), at = first * this->out_.sample();
            if (behind) behind->to_input(g, out, g, false, first, count, samples);
            T* own = in_gradient ? in_gradient + from : nullptr;
            if (own && !add) std::memset(own, 0, size_t(count * this->in_.sample()) * sizeof(T));
            way_.backward(in.data + from, g + at, own, count);
            for (long s = first; s < first + count && this->bias_.size(); s++) add_bias(g + s * this->out_.sample());
        });
    }

    void end_gradient(T* weights, T* bias) override {
        way_.end_gradient(weights);
        this->end_bias(bias);
    }

   private:
    template <class Body>
    void for_groups(long samples, Body&& body) {
        const long group = way_.group();
        for (long first = 0; first < samples; first += group) body(first, std::min(group, samples - first));
    }

    void add_bias(const T* g) {
        for (long c = 0; c < this->out_.step; c += kLanes<T>) {
            Vec<T> own{};  // a sum of sums, so that long ones lose little
            for (long p = 0; p < this->out_.pixels(); p++) own += load(g + p * this->out_.step + c);
            store(this->bias_gradient_.data() + c, load(this->bias_gradient_.data() + c) + own);
        }
    }

    Way way_;
};

}  // namespace coterie
