// The linear layers of a network, for a whole batch at once.
#pragma once

#include <memory>
#include <vector>

#include "linear.hpp"
#include "maps.hpp"
#include "masks.hpp"
#include "parameters.hpp"
#include "residual.hpp"
#include "transpose.hpp"

namespace coterie {

template <class T>
class Head {
   public:
    // `turned_input`: the inputs arrive as [feature][sample] (from a trunk) and not as [sample][feature].
    Head(const Network& net, const Parameters<T>& parameters, long batch, bool turned_input)
        : stride_(round_up(batch, kLanes<T>)), turned_input_(turned_input), dropped_before_(net.dropped_in_trunk) {
        long features = round_up(net.head[0].inputs, kInputRows);
        input_row_ = round_up(net.head[0].inputs, kLanes<T>);
        input_.resize(turned_input ? features * stride_ : batch * input_row_ + kInputRows);
        for (const HeadStage& s : net.head) {
            Stage stage{{s.inputs, s.outputs}, s.activation, parameters.find(s.weight), -1, s.dropout, {}, {}, {}, {}, {}};
            if (s.bias.present()) stage.bias = parameters.find(s.bias);
            stage.z.resize(batch * stage.shape.row_length() + kInputRows);
            stage.dz.resize(batch * stage.shape.row_length());
            stage.turned.resize(round_up(s.outputs, kInputRows) * stride_);
            stage.bias_gradient.resize(stage.shape.row_length());
            if (s.domain.domains)
                stage.residual = std::make_unique<ResidualLinear<T>>(
                    stage.shape, DomainKernels<T>(s.domain, s.weight, net.mix, parameters),
                    stage.bias >= 0 ? stage.bias - stage.weight : -1, batch, stride_);
            stages_.push_back(std::move(stage));
        }
        if (turned_input || !net.graph.empty() || !net.lookups.empty()) input_gradient_.resize(features * stride_);
    }

    T* input_rows() { return input_.data(); }
    long input_row() const { return input_row_; }

    // A trunk's last map as it lies in the head's input, for samples from `first` on; and its gradient likewise.
    Map<T> input_map(const MapShape& shape, long first) { return map_of(input_.data(), shape, first); }
    Map<T> input_gradient_map(const MapShape& shape, long first) { return map_of(input_gradient_.data(), shape, first); }

    // [feature][sample], `stride` values from feature to feature.
    const T* input_gradient() const { return input_gradient_.data(); }
    long stride() const { return stride_; }

    const T* output() const { return stages_.back().z.data(); }
    T* output() { return stages_.back().z.data(); }
    T* output_gradient() { return stages_.back().dz.data(); }
    long output_row() const { return stages_.back().shape.row_length(); }

    // What dropout keeps in the next `forward` and `backward`.
    void drop_by(const Masks& masks) { masks_ = masks; }

    // `domains` of the data set's samples, of which `order` names these; null where no layer has any.
    void forward(const T* weights, long samples, const int64_t* domains, const int64_t* order) {
        for (size_t i = 0; i < stages_.size(); i++) {
            Stage& stage = stages_[i];
            if (stage.residual) {
                stage.residual->forward(input_of(i), weights, stage.z.data(), domains, order, samples, stage.activation);
                continue;
            }
            linear_forward<T>(stage.shape, input_of(i), weights + stage.weight,
                              stage.bias >= 0 ? weights + stage.bias : nullptr, stage.z.data(), samples,
                              stage.activation);
            drop(stage, stage.z.data(), samples);
        }
    }

    // From `output_gradient` (with respect to the activated output) down, updating the weights on the way.
    void backward(const T* weights, long samples, Optimiser<T>& optimiser, bool input_gradient) {
        through_last_activation(samples);
        for (long i = long(stages_.size()) - 1; i >= 0; i--) {
            Stage& stage = stages_[i];
            T* dx = i > 0 ? stages_[i - 1].turned.data() : input_gradient ? input_gradient_.data() : nullptr;
            if (stage.residual) {
                stage.residual->backward(weights, stage.dz.data(), dx, samples, optimiser);
            } else {
                linear_backward<T>(stage.shape, input_of(i), weights + stage.weight, stage.dz.data(), stage.turned.data(),
                                   dx, stride_, samples, optimiser, stage.weight);
                if (stage.bias >= 0)
                    bias_backward<T>(stage.shape, stage.dz.data(), samples, optimiser, stage.bias,
                                     stage.bias_gradient.data());
            }
            if (i > 0) through_activation_below(stages_[i - 1], samples, i > 1 || input_gradient);
        }
    }

    // The same way down without touching the weights; the gradient of the inputs is then in `input_gradient`.
    void backward_to_input(const T* weights, long samples) {
        if (!input_gradient_.size()) input_gradient_.resize(stages_[0].shape.rows() * stride_);
        through_last_activation(samples);
        for (long i = long(stages_.size()) - 1; i >= 0; i--) {
            Stage& stage = stages_[i];
            T* dx = i > 0 ? stages_[i - 1].turned.data() : input_gradient_.data();
            linear_to_input<T>(stage.shape, weights + stage.weight, stage.turned.data(), dx, stride_, samples);
            if (i > 0) through_activation_below(stages_[i - 1], samples, true);
        }
    }

   private:
    struct Stage {
        PackedLinear<T> shape;
        Activation activation;
        long weight, bias;  // in the packed order
        Dropout dropout;
        Buffer<T> z, dz;    // [sample][output], z after activation and dropout
        Buffer<T> turned;   // dz as [output][sample]
        Buffer<T> bias_gradient;
        std::unique_ptr<ResidualLinear<T>> residual;  // of a layer with domains
    };

    Map<T> map_of(T* memory, const MapShape& shape, long first) const {
        return {memory + first, shape.height * shape.width * stride_, shape.width * stride_, stride_};
    }

    Rows<T> input_of(size_t i) const {
        if (i > 0) return {stages_[i - 1].z.data(), stages_[i - 1].shape.row_length(), 1};
        if (turned_input_) return {input_.data(), 1, stride_};
        return {input_.data(), input_row_, 1};
    }

    // dz holds the gradient behind the last activation.
    void through_last_activation(long samples) { before_activation(stages_.back(), samples, true); }

    // `turned` holds the gradient behind the activation, as [output][sample].
    void through_activation_below(Stage& stage, long samples, bool turn) {
        auto row = [&](long o) { return stage.turned.data() + o * stride_; };
        transpose<T>(row, stage.shape.outputs, samples, stage.dz.data(), stage.shape.row_length());
        before_activation(stage, samples, turn);
    }

    // From the gradient behind an activation to the one before it, in dz and, if asked for, in `turned`.
    void before_activation(Stage& stage, long samples, bool turn) {
        long length = stage.shape.row_length();
        T* dz = stage.dz.data();
        T kept = drop(stage, dz, samples) ? T(1 - stage.dropout.rate) : T(1);  // what was dropped has no gradient any more
        if (stage.activation != Activation::none)
            for (long i = 0; i < samples * length; i += kLanes<T>)
                store(dz + i, through_activation<T>(load(dz + i), kept * load(stage.z.data() + i), stage.activation));
        if (turn)
            transpose<T>([&](long j) { return dz + j * length; }, samples, stage.shape.outputs, stage.turned.data(), stride_);
    }

    // Multiplies rows of outputs, or of their gradients, by the layer's mask, if it has one.
    bool drop(const Stage& stage, T* rows, long samples) const {
        if (!stage.dropout.present() || !masks_.data) return false;
        const uint8_t* mask = masks_.in_head(dropped_before_, stage.dropout);
        for (long j = 0; j < samples; j++, rows += stage.shape.row_length(), mask += stage.shape.outputs)
            for (long o = 0; o < stage.shape.outputs; o += kLanes<T>)
                store(rows + o, load(rows + o) * factors<T>(mask + o, stage.dropout));
        return true;
    }

    long stride_;     // between features where samples are innermost
    long input_row_;  // between samples of the input where features are innermost
    bool turned_input_;
    long dropped_before_;  // values of the trunk with masks
    Masks masks_;
    Buffer<T> input_, input_gradient_;
    std::vector<Stage> stages_;
};

}  // namespace coterie
