// A last convolution with a residual for every domain (FedCG, equation 4): samples of domain d meet the kernel
//
//   K[d] = U + scale * sum over e of A[d][e] V[e]
//
// U is common to all, A says how domains borrow from each other (none: each has its own V alone). The samples of one
// domain that follow each other in a batch are a run, computed by a trunk of this one stage with K[d] for its weights.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

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
          mix_(static_cast<const T*>(net.mix)),
          weight_(parameters.find(stage_.weight)),
          bias_(stage_.bias.present() ? parameters.find(stage_.bias) : -1),
          residual_(parameters.find(stage_.residual)),
          scale_(parameters.find(stage_.scale)),
          own_bias_(stage_.bias.present() ? own_.find(alone_.trunk[0].bias) : -1),
          layout_(stage_.in, round_up(batch, kLanes<T>), 0, 0),
          values_(layout_.size),
          gradient_(layout_.size),
          mixed_(mix_ ? stage_.domains * stage_.values() : 0),
          kernels_(stage_.domains * own_.size()),
          shares_(stage_.domains * own_.size()) {}

    // The map that enters the stage, for samples from `first` on, and its gradient.
    Map<T> values(long first) { return from(layout_.view(values_.data()), first); }
    Map<T> gradient(long first) { return from(layout_.view(gradient_.data()), first); }

    void forward(const Samples<T>& inputs, const int64_t* order, long samples, const T* weights, bool keep, Map<T> out) {
        find_runs(inputs.domains, order, samples);
        merge(weights);
        for (const Run& run : runs_) {
            Trunk<T>& part = part_of(run);
            part.begin_step(kernel(run.domain), keep, true);
            long place = keep ? run.place : 0;
            copy(values(run.first), part.input(place), run.size);
            part.forward(place, kernel(run.domain), from(out, run.first));
        }
    }

    // After `forward`: adds to `total` (the packed order of all parameters), and fills `gradient` if somebody wants it.
    void backward(const T* weights, Map<T> out_gradient, Map<T> out_value, T* total, bool to_input) {
        for (long d : present_) std::memset(shares_.data() + d * own_.size(), 0, size_t(own_.size()) * sizeof(T));
        for (const Run& run : runs_) {
            Map<T> back = part_of(run).backward(run.place, from(out_gradient, run.first), from(out_value, run.first),
                                                shares_.data() + run.domain * own_.size(), to_input);
            if (to_input) copy(back, gradient(run.first), run.size);
        }
        share_out(weights, total);
    }

   private:
    struct Run {
        long domain, first, size, place;
    };

    static Network one_stage(TrunkStage stage) {
        stage.domains = 0;
        stage.weight.offset = 0;
        if (stage.bias.present()) stage.bias.offset = stage.weights();
        return {stage.in, {stage}, {}, Loss::cross_entropy, nullptr};
    }

    static Map<T> from(Map<T> map, long first) { return {map.data + first, map.channel, map.row, map.column}; }

    void copy(Map<T> source, Map<T> target, long samples) const {
        for (long c = 0; c < stage_.in.channels; c++)
            for (long y = 0; y < stage_.in.height; y++)
                for (long x = 0; x < stage_.in.width; x++)
                    for (long j = 0; j < samples; j += kLanes<T>)
                        store_first(target.at(c, y, x) + j, load(source.at(c, y, x) + j), samples - j);
    }

    // Long runs are cut, so that few sizes occur and each has its working memory.
    void find_runs(const int64_t* domains, const int64_t* order, long samples) {
        runs_.clear();
        present_.clear();
        std::map<std::pair<long, long>, long> seen;
        for (long first = 0; first < samples;) {
            long domain = long(domains[order[first]]), size = 1;
            while (size < kLanes<T> && first + size < samples && domains[order[first + size]] == domain) size++;
            runs_.push_back({domain, first, size, seen[{domain, size}]++});
            if (std::find(present_.begin(), present_.end(), domain) == present_.end()) present_.push_back(domain);
            first += size;
        }
    }

    Trunk<T>& part_of(const Run& run) {
        std::unique_ptr<Trunk<T>>& slot = parts_[{run.domain, run.size}];
        if (!slot) slot = std::make_unique<Trunk<T>>(alone_, own_, run.size);
        return *slot;
    }

    T* kernel(long domain) { return kernels_.data() + domain * own_.size(); }

    // Calls `body(place in V[d], place in the stage's own packed order, place among all parameters, count)`.
    template <class Body>
    void for_tensors(Body&& body) const {
        body(0, 0, weight_, stage_.weights());
        if (bias_ >= 0) body(stage_.weights(), own_bias_, bias_, stage_.convolved.channels);
    }

    const T* mixed(long domain, const T* weights) const {
        return (mix_ ? mixed_.data() : weights + residual_) + domain * stage_.values();
    }

    void merge(const T* weights) {
        long q = stage_.values();
        for (long d : present_) {
            T* row = mixed_.data() + d * q;
            if (mix_) std::memset(row, 0, size_t(q) * sizeof(T));
            for (long e = 0; mix_ && e < stage_.domains; e++)
                add_scaled(weights + residual_ + e * q, mix_[d * stage_.domains + e], q, row);
            for_tensors([&](long place, long own, long all, long count) {
                std::memcpy(kernel(d) + own, weights + all, size_t(count) * sizeof(T));
                add_scaled(mixed(d, weights) + place, weights[scale_], count, kernel(d) + own);
            });
        }
    }

    // From the gradients of the K[d] to those of U, V and the scale.
    void share_out(const T* weights, T* total) const {
        long q = stage_.values();
        for (long d : present_)
            for_tensors([&](long place, long own, long all, long count) {
                const T* share = shares_.data() + d * own_.size() + own;
                add_scaled(share, T(1), count, total + all);
                total[scale_] += product(share, mixed(d, weights) + place, count);
                for (long e = 0; e < stage_.domains; e++) {
                    T weight = mix_ ? mix_[d * stage_.domains + e] : T(d == e);
                    if (weight != 0) add_scaled(share, weights[scale_] * weight, count, total + residual_ + e * q + place);
                }
            });
    }

    static void add_scaled(const T* values, T factor, long count, T* to) {
        for (long i = 0; i < count; i++) to[i] += factor * values[i];
    }

    static T product(const T* one, const T* other, long count) {
        Vec<T> sum{};
        for (long i = 0; i < count; i += kLanes<T>) sum += load_first(one + i, count - i) * load_first(other + i, count - i);
        return sum_lanes<T>(sum);
    }

    TrunkStage stage_;
    Network alone_;      // this stage as a network of its own, without domains
    Parameters<T> own_;  // how that one packs its weights
    const T* mix_;
    long weight_, bias_, residual_, scale_, own_bias_;
    MapLayout<T> layout_;
    Buffer<T> values_, gradient_, mixed_, kernels_, shares_;
    std::vector<Run> runs_;  // of the present batch
    std::vector<long> present_;
    std::map<std::pair<long, long>, std::unique_ptr<Trunk<T>>> parts_;  // by domain and number of samples
};

}  // namespace coterie
