// A last convolution with kernels for domains (domains.hpp): every run of a batch is computed by a trunk of this one stage
// with the kernel of its domain for weights.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "domains.hpp"
#include "gather.hpp"
#include "trunk.hpp"

namespace coterie {

template <class T>
class Routed {
   public:
    Routed(const Network& net, const Parameters<T>& parameters, long batch)
        : stage_(net.trunk.back()),
          alone_(one_stage(stage_)),
          own_(alone_),
          kernels_(stage_.domain, stage_.weight, net.mix, parameters),
          layout_(stage_.in, round_up(batch, kLanes<T>), 0, 0),
          values_(layout_.size),
          gradient_(layout_.size) {}

    // The map that enters the stage, for samples from `first` on, and its gradient.
    Map<T> values(long first) { return from(layout_.view(values_.data()), first); }
    Map<T> gradient(long first) { return from(layout_.view(gradient_.data()), first); }

    void forward(const Samples<T>& inputs, const int64_t* order, long samples, const T* weights, bool keep, Map<T> out) {
        // Long runs are cut, so that few sizes occur and each has its working memory.
        runs_ = runs_of(inputs.domains, order, samples, kLanes<T>);
        kernels_.begin_step(weights, runs_);
        kernels_.merge(weights);
        if (keep) kernels_.clear_shares();
        places_.clear();
        std::map<long, long> seen;
        for (const Run& run : runs_) {
            Trunk<T>& part = part_of(run);
            places_.push_back(keep ? seen[run.size]++ : 0);
            part.begin_step(kernels_.kernel(run.domain), false);
            copy(values(run.first), part.input(places_.back()), run.size);
            part.forward(places_.back(), kernels_.kernel(run.domain), from(out, run.first));
        }
    }

    // After `forward`: updates the residuals, adds the other gradients to `total` (the packed order of all parameters), and
    // fills `gradient` if somebody wants it.
    void backward(const T* weights, Map<T> out_gradient, Map<T> out_value, T* total, Optimiser<T>& optimiser,
                  bool to_input) {
        for (size_t i = 0; i < runs_.size(); i++) {
            const Run& run = runs_[i];
            // parts are few, so that they stay in the cache: another domain may have used this one since
            if (to_input) part_of(run).begin_step(kernels_.kernel(run.domain), true, true);
            Map<T> back = part_of(run).backward(places_[i], from(out_gradient, run.first), from(out_value, run.first),
                                                kernels_.share(run.domain), to_input);
            if (to_input) copy(back, gradient(run.first), run.size);
        }
        kernels_.share_with_common(weights, total + kernels_.common());
        kernels_.update_residuals(weights[kernels_.scale()], optimiser);
    }

    // Where the residuals lie in the packed order: from here to there.
    long residuals_begin() const { return kernels_.residual(0); }
    long residuals_end() const { return kernels_.scale(); }

   private:
    static Network one_stage(TrunkStage stage) {
        stage.domain = {};
        stage.weight.offset = 0;
        if (stage.bias.present()) stage.bias.offset = stage.weights();
        return {stage.in, {stage}, {}, Loss::cross_entropy, nullptr};
    }

    static Map<T> from(Map<T> map, long first) { return {map.data + first, map.channel, map.row, map.column}; }

    void copy(Map<T> source, Map<T> target, long samples) const {
        for (long c = 0; c < stage_.in.channels; c++)
            for (long y = 0; y < stage_.in.height; y++)
                for (long x = 0; x < stage_.in.width; x++)
                    store_first(target.at(c, y, x), load(source.at(c, y, x)), samples);
    }

    Trunk<T>& part_of(const Run& run) {
        std::unique_ptr<Trunk<T>>& slot = parts_[run.size];
        if (!slot) slot = std::make_unique<Trunk<T>>(alone_, own_, run.size);
        return *slot;
    }

    TrunkStage stage_;
    Network alone_;      // this stage as a network of its own, without domains
    Parameters<T> own_;  // which packs its weights as a block of `kernels_`
    DomainKernels<T> kernels_;
    MapLayout<T> layout_;
    Buffer<T> values_, gradient_;
    std::vector<Run> runs_;     // of the present batch
    std::vector<long> places_;  // where the part of each run keeps what the way back needs
    std::map<long, std::unique_ptr<Trunk<T>>> parts_;  // by number of samples
};

}  // namespace coterie
