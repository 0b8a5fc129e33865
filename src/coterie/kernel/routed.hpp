// A last convolution with kernels for domains (domains.hpp), computed by trunks of this one stage: a block of samples of one
// domain has the kernel of its domain for weights, a mixed block of short runs a kernel for every run.
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
          alone_(one_stage(stage_, {})),
          mixed_(one_stage(stage_, stage_.domain)),
          own_(alone_),
          kernels_(stage_.domain, stage_.weight, net.mix, parameters),
          layout_(stage_.in, round_up(batch, kLanes<T>), 0, 0),
          values_(layout_.size),
          gradient_(layout_.size) {
        for (long size = 0; size < kLanes<T>; size++) joins_[size] = Convolution<T>::pays_to_join(stage_, size);
    }

    // The map that enters the stage, for samples from `first` on, and its gradient.
    Map<T> values(long first) { return from(layout_.view(values_.data()), first); }
    Map<T> gradient(long first) { return from(layout_.view(gradient_.data()), first); }

    void forward(const Samples<T>& inputs, const int64_t* order, long samples, const T* weights, bool keep, Map<T> out) {
        // Long runs are cut, so that few sizes occur and each has its working memory.
        std::vector<Run> runs = runs_of(inputs.domains, order, samples, kLanes<T>);
        kernels_.begin_step(weights, runs);
        kernels_.merge(weights);
        for (auto& [key, part] : parts_) part.packed = nullptr;
        make_blocks(runs, keep);
        for (const Block& block : blocks_) {
            Trunk<T>& part = part_for(block, keep);
            copy(values(block.first), part.input(block.place), block.size);
            part.forward(block.place, from(out, block.first));
        }
    }

    // After `forward`: updates the residuals, adds the other gradients to `total` (the packed order of the trunk's parameters), and
    // fills `gradient` if somebody wants it.
    void backward(const T* weights, Map<T> out_gradient, Map<T> out_value, T* total, Optimiser<T>& optimiser,
                  bool to_input) {
        const Sharing sharing{weights, total + kernels_.common(), optimiser};
        T scale_gradient = 0;
        // from the end: what was packed last need not be packed again
        for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) {
            Trunk<T>& part = part_for(*block, to_input);
            part.begin_backward(block->place, from(out_gradient, block->first), from(out_value, block->first));
            for (size_t g = 0; g < block->groups.size(); g++) {
                long domain = block->domains[g];
                bool fresh = !kernels_.has_share(domain);
                part.weight_gradient(block->place, long(g), kernels_.share(domain), fresh);
                scale_gradient += kernels_.end_run(domain, sharing);
            }
            if (to_input) copy(part.to_input(), gradient(block->first), block->size);
        }
        total[kernels_.scale()] += scale_gradient + kernels_.end_shares(sharing);
    }

    // Where the residuals lie in the packed order: from here to there.
    long residuals_begin() const { return kernels_.residual(0); }
    long residuals_end() const { return kernels_.scale(); }

   private:
    using Sharing = typename DomainKernels<T>::Sharing;

    static Network one_stage(TrunkStage stage, const DomainPart& domain) {
        stage.domain = domain;
        stage.weight.offset = 0;
        if (stage.bias.present()) stage.bias.offset = stage.weights();
        return {stage.in, {stage}, {}, Loss::cross_entropy};
    }

    static Map<T> from(Map<T> map, long first) { return {map.data + first, map.channel, map.row, map.column}; }

    void copy(Map<T> source, Map<T> target, long samples) const {
        for (long c = 0; c < stage_.in.channels; c++)
            for (long y = 0; y < stage_.in.height; y++)
                for (long x = 0; x < stage_.in.width; x++)
                    for (long j = 0; j < samples; j += kLanes<T>)
                        store_first(target.at(c, y, x) + j, load(source.at(c, y, x) + j), samples - j);
    }

    struct Block {
        long first, size, place;  // and where its part keeps what the way back needs
        std::vector<SampleGroup<T>> groups;
        std::vector<long> domains;  // of the groups
    };

    struct Part {
        std::unique_ptr<Trunk<T>> trunk;
        const void* packed = nullptr;  // whose weights it has ready in this step
    };

    // Short runs share a block where that costs less.
    void make_blocks(const std::vector<Run>& runs, bool keep) {
        bool mixes = kernels_.present().size() > 1;
        blocks_.clear();
        bool may_join = false;
        for (const Run& run : runs) {
            bool is_short = mixes && run.size < kLanes<T> && joins_[run.size];
            if (!may_join || !is_short || blocks_.back().size + run.size > 2 * kLanes<T>)
                blocks_.push_back({run.first, 0, 0, {}, {}});
            may_join = is_short;
            Block& block = blocks_.back();
            block.groups.push_back({block.size, run.size, kernels_.kernel(run.domain)});
            block.domains.push_back(run.domain);
            block.size += run.size;
        }
        std::map<std::pair<long, bool>, long> seen;
        for (Block& block : blocks_)
            if (keep) block.place = seen[{block.size, block.groups.size() > 1}]++;
    }

    // Parts are few, so that they stay in the cache: another block may have used this one since.
    Trunk<T>& part_for(const Block& block, bool for_backward) {
        bool is_mixed = block.groups.size() > 1;
        Part& part = parts_[{block.size, is_mixed}];
        if (!part.trunk) part.trunk = std::make_unique<Trunk<T>>(is_mixed ? mixed_ : alone_, own_, block.size);
        const void* name = is_mixed ? static_cast<const void*>(&block) : block.groups[0].kernel;
        if (part.packed != name) {
            if (is_mixed)
                part.trunk->begin_step(block.groups);
            else
                part.trunk->begin_step(block.groups[0].kernel, for_backward, true);
        }
        part.packed = name;
        return *part.trunk;
    }

    TrunkStage stage_;
    Network alone_, mixed_;  // this stage as a network of its own, for one domain and for many
    Parameters<T> own_;      // which packs the weights of `alone_` as a block of `kernels_`
    bool joins_[kLanes<T>];  // whether a run of so many samples shares a block with others
    DomainKernels<T> kernels_;
    MapLayout<T> layout_;
    Buffer<T> values_, gradient_;
    std::vector<Block> blocks_;  // of the present batch
    std::map<std::pair<long, bool>, Part> parts_;  // by number of samples, and whether they are mixed
};

}  // namespace coterie
