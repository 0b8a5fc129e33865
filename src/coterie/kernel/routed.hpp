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
          fills_vectors_(fills_vectors(stage_.in.channels) && fills_vectors(stage_.convolved.channels)),
          kernels_(stage_.domain, stage_.weight, net.mix, parameters),
          layout_(stage_.in, round_up(batch, kLanes<T>), 0, 0),
          values_(layout_.size),
          gradient_(layout_.size) {}

    // The map that enters the stage, for samples from `first` on, and its gradient.
    Map<T> values(long first) { return from(layout_.view(values_.data()), first); }
    Map<T> gradient(long first) { return from(layout_.view(gradient_.data()), first); }

    void forward(const Samples<T>& inputs, const int64_t* order, long samples, const T* weights, bool keep, Map<T> out) {
        // Long runs are cut, so that few sizes occur and each has its working memory.
        std::vector<Run> runs = runs_of(inputs.domains, order, samples, kLanes<T>);
        kernels_.begin_step(weights, runs);
        kernels_.merge(weights);
        if (keep) kernels_.clear_shares();
        bool mixes = fills_vectors_ && kernels_.present().size() > 1;
        if (keep && mixes) turn_kernels();
        for (auto& [key, part] : parts_) part.packed = nullptr;
        make_blocks(runs, mixes, keep);
        for (const Block& block : blocks_) {
            Trunk<T>& part = part_for(block, keep);
            copy(values(block.first), part.input(block.place), block.size);
            part.forward(block.place, from(out, block.first));
        }
    }

    // After `forward`: updates the residuals, adds the other gradients to `total` (the packed order of all parameters), and
    // fills `gradient` if somebody wants it.
    void backward(const T* weights, Map<T> out_gradient, Map<T> out_value, T* total, Optimiser<T>& optimiser,
                  bool to_input) {
        // from the end: what was packed last need not be packed again
        for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) {
            Map<T> back = part_for(*block, to_input)
                              .backward(block->place, from(out_gradient, block->first), from(out_value, block->first),
                                        block->groups[0].share, to_input);
            if (to_input) copy(back, gradient(block->first), block->size);
        }
        kernels_.share_with_all(weights, total + kernels_.common(), optimiser);
    }

    // Where the residuals lie in the packed order: from here to there.
    long residuals_begin() const { return kernels_.residual(0); }
    long residuals_end() const { return kernels_.scale(); }

   private:
    static Network one_stage(TrunkStage stage, const DomainPart& domain) {
        stage.domain = domain;
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

    struct Block {
        long first, size, place;  // and where its part keeps what the way back needs
        std::vector<SampleGroup<T>> groups;
    };

    struct Part {
        std::unique_ptr<Trunk<T>> trunk;
        const void* packed = nullptr;  // whose weights it has ready in this step
    };

    static bool fills_vectors(long channels) { return 3 * channels >= 2 * round_up(channels, kLanes<T>); }

    // The kernels of all domains that occur, for the way back through mixed blocks.
    void turn_kernels() {
        long needed = Convolution<T>::backward_size(stage_) * long(kernels_.present().size());
        if (turned_.size() < needed) turned_.resize(needed);
        for (long domain : kernels_.present()) Convolution<T>::turn_kernel(stage_, kernels_.kernel(domain), turned(domain));
    }
    T* turned(long domain) { return turned_.data() + kernels_.place_of(domain) * Convolution<T>::backward_size(stage_); }

    // Runs that leave a vector of samples half empty share a block.
    void make_blocks(const std::vector<Run>& runs, bool mixes, bool keep) {
        blocks_.clear();
        bool may_join = false;
        for (const Run& run : runs) {
            bool is_short = mixes && run.size < kLanes<T>;
            if (!may_join || !is_short || blocks_.back().size + run.size > 2 * kLanes<T>) blocks_.push_back({run.first, 0, 0, {}});
            may_join = is_short;
            Block& block = blocks_.back();
            block.groups.push_back({block.size, run.size, kernels_.kernel(run.domain), nullptr, nullptr});
            block.size += run.size;
            if (!keep) continue;
            block.groups.back().share = kernels_.share(run.domain);
            if (mixes) block.groups.back().backward = turned(run.domain);
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
    bool fills_vectors_;     // whether channels do, where a block of many kernels has them (tiles.hpp)
    DomainKernels<T> kernels_;
    MapLayout<T> layout_;
    Buffer<T> values_, gradient_;
    Buffer<T> turned_;  // kernels for the way back, by place among the domains that occur
    std::vector<Block> blocks_;  // of the present batch
    std::map<std::pair<long, bool>, Part> parts_;  // by number of samples, and whether they are mixed
};

}  // namespace coterie
