// Networks that read tokens (sequence.hpp).
#include "sequence.hpp"

#include <vector>

#include "lstm.hpp"

namespace coterie {

// Embedding, then LSTM layers.
template <class T>
class Recurrent final : public GraphTrunk<T> {
   public:
    Recurrent(const Network& net, const Parameters<T>& parameters, long batch)
        : tokens_(net.lookups.at(0)),
          embedding_(parameters.find(tokens_.weight)),
          stride_(round_up(batch, kLanes<T>)),
          row_(round_up(tokens_.width, kLanes<T>)),
          sample_(net.in.size()),
          x_(tokens_.columns * batch * row_ + kInputRows),
          turned_(tokens_.columns * tokens_.width * stride_),
          top_(batch * round_up(net.sequence.back().outputs, kLanes<T>)) {
        for (const SequenceLayer& layer : net.sequence) {
            layers_.emplace_back(layer, parameters, tokens_.columns, batch);
            longest_ = std::max(longest_, layers_.back().input_length());
        }
        batch_ = batch;
    }

    bool learns() const override { return true; }

    void forward(const Samples<T>& inputs, const int64_t* order, long samples, T* weights, bool, T* rows, long row) override {
        weights_ = weights;
        look_up(inputs, order, samples);
        TurnedBlocks<T> x{turned_.data(), stride_, tokens_.width * stride_, samples, tokens_.columns};
        for (Lstm<T>& layer : layers_) {
            layer.forward(x, weights);
            x = layer.turned(samples);
        }
        const Lstm<T>& end = layers_.back();
        for (long j = 0; j < samples; j++)
            std::memcpy(rows + j * row, end.last(samples) + j * end.length(), size_t(x.block / x.step) * sizeof(T));
    }

    void backward(const T* features, long stride, long samples, T* gradient) override {
        const long hidden = layers_.back().turned(samples).block / stride_, length = layers_.back().length();
        transpose<T>([&](long f) { return features + f * stride; }, hidden, samples, top_.data(), length, true);
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
        for (long t = 0; t < tokens_.columns; t++) {
            const T* from = x_.data() + t * samples * row_;
            transpose<T>([&](long j) { return from + j * row_; }, samples, tokens_.width,
                         turned_.data() + t * tokens_.width * stride_, stride_, true);
        }
    }

    Lookup tokens_;
    long embedding_;  // in the packed order
    long stride_, row_, batch_ = 0, longest_ = 0;
    Buffer<T> sample_, x_, turned_, top_, below_[2];
    std::vector<Lstm<T>> layers_;
    std::vector<long> named_;  // where in the weights the rows of the present tokens begin
    const T* weights_ = nullptr;
};

template <class T>
std::unique_ptr<GraphTrunk<T>> make_sequence(const Network& net, const Parameters<T>& parameters, long batch) {
    return std::make_unique<Recurrent<T>>(net, parameters, batch);
}

template std::unique_ptr<GraphTrunk<float>> make_sequence(const Network&, const Parameters<float>&, long);
template std::unique_ptr<GraphTrunk<double>> make_sequence(const Network&, const Parameters<double>&, long);

}  // namespace coterie
