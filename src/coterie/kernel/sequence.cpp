// Networks that read tokens (sequence.hpp).
#include "sequence.hpp"

#include <vector>

#include "encoder_block.hpp"
#include "lstm.hpp"

namespace coterie {

// Embedding, then LSTM layers.
template <class T>
class Recurrent final : public GraphTrunk<T> {
   public:
    Recurrent(const Network& net, const Parameters<T>& parameters, long batch)
        : tokens_(net.lookups.at(0)),
          embedding_(parameters.find(tokens_.weight)),
          row_(round_up(tokens_.width, kLanes<T>)),
          sample_(net.in.size()),
          x_(tokens_.columns * batch * row_ + kInputRows),
          turned_(tokens_.columns * turned_size(batch, tokens_.width)),
          top_(batch * round_up(net.sequence.back().outputs, kLanes<T>)) {
        for (const SequenceLayer& layer : net.sequence) {
            if (layer.kind != Kind::lstm) throw std::invalid_argument("layers over sequences that do not go together");
            layers_.emplace_back(layer, parameters, tokens_.columns, batch);
            longest_ = std::max(longest_, layers_.back().input_length());
        }
        batch_ = batch;
    }

    bool learns() const override { return true; }

    void forward(const Samples<T>& inputs, const int64_t* order, long samples, T* weights, bool, T* rows, long row) override {
        weights_ = weights;
        look_up(inputs, order, samples);
        TurnedBlocks<T> x{turned_.data(), turned_size(samples, tokens_.width), samples, tokens_.columns};
        for (Lstm<T>& layer : layers_) {
            layer.forward(x, weights);
            x = layer.turned(samples);
        }
        const Lstm<T>& end = layers_.back();
        for (long j = 0; j < samples; j++)
            std::memcpy(rows + j * row, end.last(samples) + j * end.length(), size_t(end.hidden()) * sizeof(T));
    }

    void backward(const T* features, long stride, long samples, T* gradient) override {
        const Lstm<T>& end = layers_.back();
        transpose<T>([&](long f) { return features + f * stride; }, end.hidden(), samples, top_.data(), end.length(), true);
        if (!below_[0].size())
            for (Buffer<T>& each : below_) each.resize(tokens_.columns * batch_ * longest_ + kInputRows, false);
        const T* dh = top_.data();
        for (size_t i = layers_.size(); i-- > 0;) {
            const T* x = i > 0 ? layers_[i - 1].values() : x_.data();
            const long x_row = i > 0 ? layers_[i - 1].length() : row_;
            T* dx = below_[i % 2].data();
            layers_[i].backward(dh, i + 1 == layers_.size(), x, x_row, samples, weights_, gradient, dx);
            dh = dx;
        }
        const long width = tokens_.width, from_row = layers_[0].input_length();
        for (size_t r = 0; r < named_.size(); r++, dh += from_row) {
            T* to = gradient + named_[r];
            for (long i = 0; i < width; i++) to[i] += dh[i];
        }
    }

   private:
    // Rows [step][sample], and turned.
    void look_up(const Samples<T>& inputs, const int64_t* order, long samples) {
        named_.resize(size_t(tokens_.columns * samples));
        for (long j = 0; j < samples; j++) {
            gather_rows(inputs, order + j, 1, sample_.data(), sample_.size());
            for (long t = 0; t < tokens_.columns; t++)
                named_[size_t(t * samples + j)] = embedding_ + long(sample_.data()[tokens_.first + t]) * tokens_.width;
        }
        for (size_t r = 0; r < named_.size(); r++)
            std::memcpy(x_.data() + long(r) * row_, weights_ + named_[r], size_t(tokens_.width) * sizeof(T));
        for (long t = 0; t < tokens_.columns; t++)
            turn_block<T>(x_.data() + t * samples * row_, row_, samples, tokens_.width,
                          turned_.data() + t * turned_size(samples, tokens_.width));
    }

    Lookup tokens_;
    long embedding_;  // in the packed order
    long row_, batch_ = 0, longest_ = 0;
    Buffer<T> sample_, x_, turned_, top_, below_[2];
    std::vector<Lstm<T>> layers_;
    std::vector<long> named_;  // where in the weights the rows of the present tokens begin
    const T* weights_ = nullptr;
};

// Embedding, learnt positions where there are some, then blocks of an encoder.
template <class T>
class Encoder final : public GraphTrunk<T> {
   public:
    Encoder(const Network& net, const Parameters<T>& parameters, long batch)
        : tokens_(net.lookups.at(0)),
          embedding_(parameters.find(tokens_.weight)),
          length_(round_up(tokens_.width, kLanes<T>)),
          sample_(net.in.size()),
          x_(tokens_.columns * batch * length_ + kInputRows),
          top_(batch * length_) {
        for (const SequenceLayer& layer : net.sequence) {
            const bool last = &layer == &net.sequence.back();
            if (layer.kind == Kind::positions && blocks_.empty() && !last)
                positions_ = parameters.find(layer.first);
            else if (layer.kind == Kind::block && layer.outputs == tokens_.width)
                blocks_.emplace_back(layer, parameters, tokens_.columns, batch, last);
            else
                throw std::invalid_argument("layers over sequences that do not go together");
        }
    }

    bool learns() const override { return true; }

    void forward(const Samples<T>& inputs, const int64_t* order, long samples, T* weights, bool, T* rows, long row) override {
        weights_ = weights;
        look_up(inputs, order, samples);
        const T* x = x_.data();
        for (EncoderBlock<T>& block : blocks_) x = block.forward(x, samples, weights);
        for (long j = 0; j < samples; j++) std::memcpy(rows + j * row, x + j * length_, size_t(tokens_.width) * sizeof(T));
    }

    void backward(const T* features, long stride, long samples, T* gradient) override {
        const long width = tokens_.width, steps = tokens_.columns;
        transpose<T>([&](long f) { return features + f * stride; }, width, samples, top_.data(), length_, true);
        T* dx = top_.data();
        for (size_t i = blocks_.size(); i-- > 0;) dx = blocks_[i].backward(dx, samples, weights_, gradient, sums_);
        for (long r = 0; r < samples * steps; r++) {
            T* to = gradient + named_[size_t(r)];
            for (long i = 0; i < width; i++) to[i] += dx[r * length_ + i];
        }
        for (long t = 0; t < steps && positions_ >= 0; t++)
            for (long i = 0; i < width; i++) {
                T sum = 0;
                for (long j = 0; j < samples; j++) sum += dx[(j * steps + t) * length_ + i];
                gradient[positions_ + t * width + i] = sum;
            }
    }

   private:
    // Rows [sample][step].
    void look_up(const Samples<T>& inputs, const int64_t* order, long samples) {
        const long width = tokens_.width, steps = tokens_.columns;
        named_.resize(size_t(steps * samples));
        for (long j = 0; j < samples; j++) {
            gather_rows(inputs, order + j, 1, sample_.data(), sample_.size());
            for (long t = 0; t < steps; t++) {
                long from = embedding_ + long(sample_.data()[tokens_.first + t]) * width;
                named_[size_t(j * steps + t)] = from;
                T* to = x_.data() + (j * steps + t) * length_;
                for (long i = 0; i < width; i++)
                    to[i] = weights_[from + i] + (positions_ >= 0 ? weights_[positions_ + t * width + i] : T(0));
            }
        }
    }

    Lookup tokens_;
    long embedding_, positions_ = -1;  // in the packed order
    long length_;
    Buffer<T> sample_, x_, top_;
    std::vector<EncoderBlock<T>> blocks_;
    std::vector<long> named_;  // where in the weights the rows of the present tokens begin
    WeightGradients<T> sums_;
    const T* weights_ = nullptr;
};

template <class T>
std::unique_ptr<GraphTrunk<T>> make_sequence(const Network& net, const Parameters<T>& parameters, long batch) {
    if (net.sequence[0].kind == Kind::lstm) return std::make_unique<Recurrent<T>>(net, parameters, batch);
    return std::make_unique<Encoder<T>>(net, parameters, batch);
}

template std::unique_ptr<GraphTrunk<float>> make_sequence(const Network&, const Parameters<float>&, long);
template std::unique_ptr<GraphTrunk<double>> make_sequence(const Network&, const Parameters<double>&, long);

}  // namespace coterie
