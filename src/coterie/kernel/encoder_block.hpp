// One block of a transformer's encoder, normalised first, on rows [sample][step]:
//
//   y = x + attention(norm1(x)) W_out,   result = y + relu(norm2(y) W_1) W_2
//
// Of the last block only the last step is read, so only its query is made, and all that follows from it: the keys and values of
// all steps are needed, nothing else of them.
#pragma once

#include <vector>

#include "attention.hpp"
#include "dense.hpp"
#include "parameters.hpp"

namespace coterie {

// (x - mean) / deviation * weight + bias for every row; values behind `width` are zero, and stay so.
template <class T>
class RowNorm {
   public:
    RowNorm(long width, double eps, long rows)
        : width_(width), length_(round_up(width, kLanes<T>)), eps_(eps), shapes_(rows * length_), scales_(rows) {}

    void forward(const T* x, long rows, const T* weight, const T* bias, T* out) {
        for (long r = 0; r < rows; r++, x += length_, out += length_) {
            Vec<T> sums{}, squares{};
            for (long c = 0; c < length_; c += kLanes<T>) sums += load_first(x + c, width_ - c);
            const T mean = sum_lanes<T>(sums) / T(width_);
            for (long c = 0; c < length_; c += kLanes<T>) {
                Vec<T> apart = first_lanes<T>(width_ - c) ? load(x + c) - mean : Vec<T>{};
                squares += apart * apart;
            }
            const T scale = T(1) / std::sqrt(sum_lanes<T>(squares) / T(width_) + T(eps_));
            scales_.data()[r] = scale;
            for (long c = 0; c < length_; c += kLanes<T>) {
                Vec<T> shape = first_lanes<T>(width_ - c) ? (load(x + c) - mean) * scale : Vec<T>{};
                store(shapes_.data() + r * length_ + c, shape);
                store(out + c, shape * load_first(weight + c, width_ - c) + load_first(bias + c, width_ - c));
            }
        }
    }

    // Adds to dx; the gradients of weight and bias are written.
    void backward(const T* dy, long rows, const T* weight, T* dweight, T* dbias, T* dx) {
        std::memset(dweight, 0, size_t(length_) * sizeof(T));
        std::memset(dbias, 0, size_t(length_) * sizeof(T));
        for (long r = 0; r < rows; r++, dy += length_, dx += length_) {
            const T *shape = shapes_.data() + r * length_, scale = scales_.data()[r];
            Vec<T> sums{}, along{};
            for (long c = 0; c < length_; c += kLanes<T>) {
                Vec<T> own = load_first(dy + c, width_ - c), slope = own * load_first(weight + c, width_ - c);
                sums += slope;
                along += slope * load(shape + c);
                store(dweight + c, load(dweight + c) + own * load(shape + c));
                store(dbias + c, load(dbias + c) + own);
            }
            const T mean = sum_lanes<T>(sums) / T(width_), share = sum_lanes<T>(along) / T(width_);
            for (long c = 0; c < length_; c += kLanes<T>) {
                Vec<T> slope = load(dy + c) * load(weight + c) - mean - load(shape + c) * share;
                store(dx + c, load(dx + c) + (first_lanes<T>(width_ - c) ? slope * scale : Vec<T>{}));
            }
        }
    }

   private:
    long width_, length_;
    double eps_;
    Buffer<T> shapes_, scales_;
};

// A linear layer on rows, with its gradient written where the packed order has it.
template <class T>
class RowLinear {
   public:
    RowLinear(long inputs, long outputs, long weight, long bias)
        : layer_{inputs, outputs}, back_{outputs, inputs}, weight_(weight), bias_(bias) {}

    long length() const { return layer_.row_length(); }

    void forward(const T* x, long rows, const T* weights, T* out, Activation activation = Activation::none) const {
        linear_forward<T>(layer_, {x, round_up(layer_.inputs, kLanes<T>), 1}, weights + weight_, weights + bias_, out, rows, activation);
    }

    // dx (written) may be anything but x.
    void backward(const T* x, const T* dz, long rows, const T* weights, T* gradient, T* dx, WeightGradients<T>& sums) {
        if (!back_weights_.size()) back_weights_.resize(back_.size());
        pack_back<T>(layer_, weights + weight_, back_, 0, back_weights_.data());
        linear_forward<T>(back_, {dz, length(), 1}, back_weights_.data(), nullptr, dx, rows, Activation::none);
        sums.make(layer_, 1, x, round_up(layer_.inputs, kLanes<T>), [&](int) { return dz; }, rows,
                  [&](int) { return gradient + weight_; });
        sum_of_rows<T>(dz, length(), rows, gradient + bias_);
    }

   private:
    PackedLinear<T> layer_, back_;
    long weight_, bias_;  // in the packed order
    Buffer<T> back_weights_;
};

template <class T>
class EncoderBlock {
   public:
    EncoderBlock(const SequenceLayer& shape, const Parameters<T>& parameters, long steps, long batch, bool last)
        : EncoderBlock(shape, places(shape, parameters), steps, batch, last ? 1 : steps) {}

    // From x, [samples][steps] rows, to the rows of the queries.
    const T* forward(const T* x, long samples, const T* weights) {
        const long all = samples * steps_, some = samples * queries_;
        norm1_.forward(x, all, weights + at_[10], weights + at_[11], normal_.data());
        kv_.forward(normal_.data(), all, weights, keys_.data());
        pick(x, samples, sum_.data());
        pick(normal_.data(), samples, asked_.data());
        q_.forward(asked_.data(), some, weights, queried_.data());
        for (long j = 0; j < samples; j++)
            attention_.forward(rows_of(j, queried_, keys_), kept_.data() + j * attention_.probabilities(),
                               mixed_.data() + j * queries_ * length_, length_);
        out_.forward(mixed_.data(), some, weights, scratch_.data());
        add(scratch_.data(), some * length_, sum_.data());
        norm2_.forward(sum_.data(), some, weights + at_[12], weights + at_[13], renewed_.data());
        wide_.forward(renewed_.data(), some, weights, inner_.data(), Activation::relu);
        narrow_.forward(inner_.data(), some, weights, result_.data());
        add(sum_.data(), some * length_, result_.data());
        return result_.data();
    }

    // From the gradient of the result, which is overwritten, to that of x.
    T* backward(T* dy, long samples, const T* weights, T* gradient, WeightGradients<T>& sums) {
        const long all = samples * steps_, some = samples * queries_;
        narrow_.backward(inner_.data(), dy, some, weights, gradient, dinner_.data(), sums);
        for (long i = 0; i < some * wide_.length(); i += kLanes<T>)
            store(dinner_.data() + i,
                  through_activation<T>(load(dinner_.data() + i), load(inner_.data() + i), Activation::relu));
        wide_.backward(renewed_.data(), dinner_.data(), some, weights, gradient, scratch_.data(), sums);
        norm2_.backward(scratch_.data(), some, weights + at_[12], gradient + at_[12], gradient + at_[13], dy);
        out_.backward(mixed_.data(), dy, some, weights, gradient, scratch_.data(), sums);
        for (long j = 0; j < samples; j++)
            attention_.backward(rows_of(j, queried_, keys_), kept_.data() + j * attention_.probabilities(),
                                scratch_.data() + j * queries_ * length_, length_, rows_of(j, dqueried_, dkeys_));
        q_.backward(asked_.data(), dqueried_.data(), some, weights, gradient, scratch_.data(), sums);
        kv_.backward(normal_.data(), dkeys_.data(), all, weights, gradient, dnormal_.data(), sums);
        std::memset(dx_.data(), 0, size_t(all * length_) * sizeof(T));
        put_back(scratch_.data(), samples, dnormal_.data());
        put_back(dy, samples, dx_.data());
        norm1_.backward(dnormal_.data(), all, weights + at_[10], gradient + at_[10], gradient + at_[11], dx_.data());
        return dx_.data();
    }

   private:
    EncoderBlock(const SequenceLayer& shape, std::vector<long> at, long steps, long batch, long queries)
        : at_(std::move(at)),
          steps_(steps),
          queries_(queries),
          width_(shape.outputs),
          length_(round_up(width_, kLanes<T>)),
          q_(width_, width_, at_[0], at_[2]),
          kv_(width_, 2 * width_, at_[1], at_[3]),
          out_(width_, width_, at_[4], at_[5]),
          wide_(width_, shape.inner, at_[6], at_[7]),
          narrow_(shape.inner, width_, at_[8], at_[9]),
          norm1_(width_, shape.eps, batch * steps),
          norm2_(width_, shape.eps, batch * queries),
          attention_(width_, shape.heads, steps, queries) {
        const long all = batch * steps, some = batch * queries;
        for (Buffer<T>* each : {&normal_, &dnormal_, &dx_}) each->resize(all * length_ + kInputRows);
        for (Buffer<T>* each : {&asked_, &queried_, &dqueried_, &mixed_, &sum_, &renewed_, &result_, &scratch_})
            each->resize(some * length_ + kInputRows);
        for (Buffer<T>* each : {&keys_, &dkeys_}) each->resize(all * kv_.length() + kInputRows);
        for (Buffer<T>* each : {&inner_, &dinner_}) each->resize(some * wide_.length() + kInputRows);
        kept_.resize(batch * attention_.probabilities());
    }

    static std::vector<long> places(const SequenceLayer& shape, const Parameters<T>& parameters) {
        std::vector<long> found;
        for (const SequencePart& part : shape.parts()) found.push_back(parameters.find(part.parameter));
        return found;
    }

    AttentionRows<T> rows_of(long sample, Buffer<T>& queries, Buffer<T>& keys) const {
        T* own = keys.data() + sample * steps_ * kv_.length();
        return {queries.data() + sample * queries_ * length_, length_, own, own + width_, kv_.length()};
    }

    static void add(const T* from, long count, T* to) {
        for (long i = 0; i < count; i += kLanes<T>) store(to + i, load(to + i) + load(from + i));
    }

    // The rows of the queries, which are the last ones of every sample.
    void pick(const T* rows, long samples, T* to) const {
        for (long j = 0; j < samples; j++)
            std::memcpy(to + j * queries_ * length_, rows + ((j + 1) * steps_ - queries_) * length_,
                        size_t(queries_ * length_) * sizeof(T));
    }

    void put_back(const T* from, long samples, T* rows) const {
        for (long j = 0; j < samples; j++)
            add(from + j * queries_ * length_, queries_ * length_, rows + ((j + 1) * steps_ - queries_) * length_);
    }

    std::vector<long> at_;  // of the parameters, in the packed order
    long steps_, queries_, width_, length_;
    RowLinear<T> q_, kv_, out_, wide_, narrow_;
    RowNorm<T> norm1_, norm2_;
    Attention<T> attention_;
    Buffer<T> normal_, asked_, queried_, keys_, kept_, mixed_, sum_, renewed_, inner_, result_;
    Buffer<T> dnormal_, dqueried_, dkeys_, dinner_, dx_, scratch_;
};

}  // namespace coterie
