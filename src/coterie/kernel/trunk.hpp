// The part of a network on maps: convolutions, pools, activations, dropout, for blocks of samples that fit the cache.
#pragma once

#include <memory>
#include <vector>

#include "convolution.hpp"
#include "maps.hpp"
#include "masks.hpp"
#include "parameters.hpp"
#include "pool.hpp"

namespace coterie {

// All stages for blocks of `samples` samples. What the way back needs is kept per block; scratch is shared.
template <class T>
class Trunk {
   public:
    Trunk(const Network& net, const Parameters<T>& parameters, long samples) : samples_(samples) {
        for (const TrunkStage& shape : net.trunk) stages_.emplace_back(shape, parameters, samples);
        while (lowest_ < long(stages_.size()) && !stages_[lowest_].shape.convolves) lowest_++;
    }

    bool learns() const { return lowest_ < long(stages_.size()); }

    // Memory per sample that a block works on, to choose the size of blocks.
    static long bytes_per_sample(const Network& net) {
        long values = 0;
        for (const TrunkStage& s : net.trunk)
            values += 2 * s.in.size() + (s.convolves ? s.convolved.channels * s.used_height() * s.used_width() : 0);
        return values * long(sizeof(T));
    }

    // Once per step, as the weights have changed.
    void begin_step(const T* weights, bool for_backward, bool to_input = false) {
        for (long i = 0; i < long(stages_.size()); i++)
            if (Stage& stage = stages_[i]; stage.shape.convolves)
                stage.convolution->pack(weights, stage.weight, stage.bias, for_backward && (to_input || i > lowest_));
    }

    // The same for one stage with domains: every group of samples has its kernel.
    void begin_step(const std::vector<SampleGroup<T>>& groups) { stages_[0].convolution->pack(groups, stages_[0].bias); }

    // What dropout keeps of the block that comes next, forward or back, whose samples begin with `first`.
    void drop_by(const Masks& masks, long first) {
        masks_ = masks;
        first_ = first;
    }

    // The first map of block `block`, to be filled before `forward`.
    Map<T> input(long block) {
        while (long(kept_.size()) <= block) {
            kept_.emplace_back();
            for (const Stage& stage : stages_) {
                kept_.back().inputs.emplace_back(stage.in.size);
                kept_.back().winners.emplace_back(stage.shape.pools ? stage.winners_channel() * stage.shape.out.channels : 0);
            }
        }
        return stages_[0].in.view(kept_[block].inputs[0].data());
    }

    void forward(long block, Map<T> out) {
        for (size_t i = 0; i < stages_.size(); i++) {
            Stage& stage = stages_[i];
            bool last = i + 1 == stages_.size();
            Map<T> to = last ? out : stages_[i + 1].in.view(kept_[block].inputs[i + 1].data());
            forward_stage(stage, stage.in.view(kept_[block].inputs[i].data()), kept_[block].winners[i].data(), to);
        }
    }

    // `gradient` has the packed order of the trunk's parameters; this block's share is added.
    void backward(long block, Map<T> out_gradient, Map<T> out_value, T* gradient) {
        for (long i = long(stages_.size()) - 1; i >= lowest_; i--) {
            begin_backward(block, out_gradient, out_value, i);
            if (stages_[i].shape.convolves) weight_gradient(block, 0, gradient, false, i);
            if (i > lowest_) out_gradient = to_input(i);
            out_value = input_of(block, i);
        }
    }

    // The way back through one stage, in three parts: from the gradient and value of its output to that of its product, ...
    void begin_backward(long block, Map<T> out_gradient, Map<T> out_value, long i = 0) {
        Stage& stage = stages_[i];
        backward_to(stage, out_gradient, out_value, kept_[block].winners[i].data(), target(stage));
        if (stage.shape.convolves) stage.convolution->begin_backward();
    }
    // ... to the gradient of the weights, to which is added what comes from one group of samples (convolution.hpp), ...
    void weight_gradient(long block, long group, T* gradient, bool fresh, long i = 0) {
        Stage& stage = stages_[i];
        T* bias_gradient = stage.shape.bias.present() ? gradient + stage.bias : nullptr;
        stage.convolution->weight_gradient(input_of(block, i), target(stage), group, gradient + stage.weight, bias_gradient,
                                           fresh);
    }
    // ... and to that of its input.
    Map<T> to_input(long i = 0) {
        Stage& stage = stages_[i];
        Map<T> in_gradient = stage.gradient.view(stage.in_gradient.data());
        if (stage.shape.convolves) stage.convolution->backward(target(stage), in_gradient);
        return in_gradient;
    }

    // Down to the gradient of the block's inputs, leaving the weights alone.
    Map<T> backward_to_input(long block, Map<T> out_gradient, Map<T> out_value) {
        for (long i = long(stages_.size()) - 1; i >= 0; i--) {
            begin_backward(block, out_gradient, out_value, i);
            out_gradient = to_input(i);
            out_value = input_of(block, i);
        }
        return out_gradient;
    }

   private:
    struct Stage {
        TrunkStage shape;
        long samples;
        long weight = -1, bias = -1;  // in the packed order
        std::unique_ptr<Convolution<T>> convolution;
        MapLayout<T> in, gradient;
        Buffer<T> dz, in_gradient, strip;

        Stage(const TrunkStage& s, const Parameters<T>& parameters, long block) : shape(s), samples(block) {
            if (s.convolves) {
                convolution = std::make_unique<Convolution<T>>(s, block);
                weight = parameters.find(s.weight);
                bias = s.bias.present() ? parameters.find(s.bias) : -1;
                in = convolution->in_layout();
                dz.resize(convolution->dz_layout().size);
                strip.resize(s.convolved.channels * 2 * strip_row());
            } else {
                in = MapLayout<T>(s.in, block, 0, 0);
            }
            gradient = MapLayout<T>(s.in, block, 0, 0);
            gradient.row = round_up(gradient.row, kLanes<T>);  // a row may be overrun by part of a vector
            gradient.channel = gradient.row * s.in.height;
            in_gradient.resize(gradient.channel * s.in.channels);
        }
        // Two rows of a convolution's output, for one row of the pool.
        long strip_row() const { return round_up(shape.used_width() * samples, kLanes<T>) + kLanes<T>; }
        long winners_row() const { return shape.out.width * samples + kLanes<T>; }
        long winners_channel() const { return winners_row() * shape.out.height; }
    };

    struct Kept {
        std::vector<Buffer<T>> inputs;
        std::vector<Buffer<uint8_t>> winners;
    };

    Map<T> input_of(long block, long i) { return stages_[i].in.view(kept_[block].inputs[i].data()); }

    // Where the gradient goes that comes down through a stage's pool and activation.
    static Map<T> target(Stage& stage) {
        return stage.shape.convolves ? stage.convolution->dz_layout().view(stage.dz.data())
                                     : stage.gradient.view(stage.in_gradient.data());
    }

    void forward_stage(Stage& stage, Map<T> in, uint8_t* winners, Map<T> out) {
        const TrunkStage& s = stage.shape;
        Activation before = s.pools && !s.activate_before_pool ? Activation::none : s.activation;
        Activation after = s.pools && !s.activate_before_pool ? s.activation : Activation::none;
        long strip_row = stage.strip_row(), channels = s.convolved.channels;
        T* strip = stage.strip.data();
        for (long y = 0; y < s.out.height; y++) {
            if (s.average_height) {
                for (long c = 0; c < channels; c++)
                    average_row<T>(in, c, y * s.average_height, s, samples_, out.at(c, y), out.column);
            } else if (drops(s)) {
                for (long c = 0; c < channels; c++) drop_row(s, c, y, in.at(c, y), in.column, out.at(c, y), out.column);
            } else if (s.pools) {
                if (s.convolves)
                    for (long r = 0; r < 2; r++)
                        stage.convolution->forward_row(in, 2 * y + r, before, strip + r * strip_row, 2 * strip_row, true);
                for (long c = 0; c < channels; c++) {
                    const T* upper = s.convolves ? strip + 2 * c * strip_row : in.at(c, 2 * y);
                    const T* lower = s.convolves ? upper + strip_row : in.at(c, 2 * y + 1);
                    pool_row<T>(upper, lower, s.out.width, samples_, after, out.at(c, y), out.column,
                                winners + c * stage.winners_channel() + y * stage.winners_row());
                }
            } else if (s.convolves && out.column == samples_) {
                stage.convolution->forward_row(in, y, before, out.at(0, y), out.channel, false);
            } else {
                if (s.convolves) stage.convolution->forward_row(in, y, before, strip, strip_row, true);
                for (long c = 0; c < channels; c++)
                    copy_row(s.convolves ? strip + c * strip_row : in.at(c, y), s.out.width,
                             s.convolves ? Activation::none : before, out.at(c, y), out.column);
            }
        }
    }

    void copy_row(const T* from, long width, Activation activation, T* to, long to_column) const {
        for (long x = 0; x < width; x++)
            for (long j = 0; j < samples_; j += kLanes<T>)
                store_first(to + x * to_column + j, activate<T>(load(from + x * samples_ + j), activation), samples_ - j);
    }

    bool drops(const TrunkStage& s) const { return s.dropout.present() && masks_.data; }

    // The same forward and back.
    void drop_row(const TrunkStage& s, long c, long y, const T* from, long from_column, T* to, long to_column) const {
        long value = (c * s.out.height + y) * s.out.width;
        for (long x = 0; x < s.out.width; x++)
            for (long j = 0; j < samples_; j += kLanes<T>)
                store_first(to + x * to_column + j,
                            load(from + x * from_column + j) *
                                factors<T>(masks_.in_trunk(s.dropout, value + x, first_ + j), s.dropout),
                            samples_ - j);
    }

    // From the gradient of a stage's output to the gradient before its pool and activation.
    void backward_to(Stage& stage, Map<T> gradient, Map<T> value, const uint8_t* winners, Map<T> target) const {
        const TrunkStage& s = stage.shape;
        for (long c = 0; c < s.out.channels; c++)
            for (long y = 0; y < s.out.height; y++) {
                if (s.average_height) {
                    spread_row<T>(gradient.at(c, y), gradient.column, s, samples_, target, c, y * s.average_height);
                    continue;
                }
                if (drops(s)) {
                    drop_row(s, c, y, gradient.at(c, y), gradient.column, target.at(c, y), target.column);
                    continue;
                }
                if (s.pools) {
                    unpool_row<T>(gradient.at(c, y), gradient.column, value.at(c, y), value.column,
                                  winners + c * stage.winners_channel() + y * stage.winners_row(), s.out.width, samples_,
                                  s.activation, target.at(c, 2 * y), target.at(c, 2 * y + 1), target.column);
                    continue;
                }
                for (long x = 0; x < s.out.width; x++)
                    for (long j = 0; j < samples_; j += kLanes<T>)
                        store_first(target.at(c, y, x) + j,
                                    through_activation<T>(load(gradient.at(c, y, x) + j), load(value.at(c, y, x) + j),
                                                          s.activation),
                                    samples_ - j);
            }
    }

    long samples_;
    long lowest_ = 0;  // the first stage with weights: no gradient is needed below it
    std::vector<Stage> stages_;
    std::vector<Kept> kept_;
    Masks masks_;
    long first_ = 0;
};

}  // namespace coterie
