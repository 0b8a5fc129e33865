// A network with its working memory: one step of training, or the outputs for some samples.
#pragma once

#include <map>
#include <memory>

#include "gather.hpp"
#include "graph_trunk.hpp"
#include "head.hpp"
#include "lookup.hpp"
#include "loss.hpp"
#include "routed.hpp"
#include "sequence.hpp"
#include "trunk.hpp"

namespace coterie {

// What the samples should give: labels, or values (another data set, or the inputs themselves).
template <class T>
struct Targets {
    const int64_t* labels = nullptr;
    Samples<T> values;
};

// The trunk walks through a batch in blocks that fit the cache, the head takes the whole batch at once: a large linear
// layer is bound by reading its weights, a convolution by the size of its maps.
template <class T>
class Model {
   public:
    Model(const Network& net, long batch, long block_bytes)
        : net_(net),
          front_(net),
          parameters_(net),
          head_(net, parameters_, batch, !net.trunk.empty()),
          size_of_trunk_(parameters_.find(net.head[0].weight)),  // whose parameters come first
          gradient_(size_of_trunk_),
          targets_(net.outputs()),
          scratch_(round_up(net.outputs(), kLanes<T>)) {
        if (net.routes_trunk()) {
            front_.trunk.pop_back();
            routed_ = std::make_unique<Routed<T>>(net, parameters_, batch);
        }
        if (!net.graph.empty()) graph_ = make_graph_trunk<T>(net, parameters_, batch);
        if (!net.sequence.empty())
            graph_ = make_sequence<T>(net, parameters_, batch);
        else if (!net.lookups.empty())
            graph_ = std::make_unique<Lookups<T>>(net, parameters_);
        long fitting = block_bytes / std::max<long>(1, Trunk<T>::bytes_per_sample(net));
        // Whole vectors of samples, at least one: narrower blocks cost more in tails than the cache gives back.
        block_ = std::min(batch, std::max<long>(kLanes<T>, fitting / kLanes<T> * kLanes<T>));
    }

    const Parameters<T>& parameters() const { return parameters_; }

    // One step on the samples `order[0 .. samples)`, with the masks of dropout or null; returns the sum of their losses.
    double step(const Samples<T>& inputs, const Targets<T>& targets, const int64_t* order, long samples, T* weights,
                Optimiser<T>& optimiser, const uint8_t* masks) {
        masks_ = {masks, samples};
        head_.drop_by(masks_);
        if (graph_) {
            graph_->drop_by(masks_);
            graph_->forward(inputs, order, samples, weights, true, head_.input_rows(), head_.input_row());
            head_.forward(weights, samples, nullptr, order);
        } else {
            forward(inputs, order, samples, weights, true);
        }
        double loss = 0;
        for (long j = 0; j < samples; j++)
            loss += double(loss_of(targets, order, j, T(1) / T(samples), head_.output_gradient() + j * head_.output_row()));
        optimiser.begin_step();
        bool front_learns = !front_.trunk.empty() && trunk(std::min(block_, samples)).learns();
        bool learns = routed_ || front_learns || (graph_ && graph_->learns());
        head_.backward(weights, samples, optimiser, learns);
        if (learns && graph_)
            backward_graph(samples, optimiser);
        else if (learns)
            backward_trunk(samples, weights, optimiser, front_learns);
        return loss;
    }

    // The gradient of each sample's own loss with respect to its inputs, [samples][values]; returns the sum of losses.
    double input_gradient(const Samples<T>& inputs, const Targets<T>& targets, const int64_t* order, long samples,
                          const T* weights, T* out) {
        if (net_.domains() || graph_) throw std::invalid_argument("such a network has no gradient of its inputs here");
        forward(inputs, order, samples, weights, true, true);
        double loss = 0;
        for (long j = 0; j < samples; j++)
            loss += double(loss_of(targets, order, j, T(1), head_.output_gradient() + j * head_.output_row()));
        head_.backward_to_input(weights, samples);
        if (net_.trunk.empty()) {
            scatter_map(head_.input_gradient_map(net_.in, 0), net_.in, samples, out);
            return loss;
        }
        const MapShape& shape = net_.trunk.back().out;
        for_blocks(samples, [&](long block, long first, long size, bool) {
            Map<T> gradient = trunk(size).backward_to_input(block, head_.input_gradient_map(shape, first),
                                                            head_.input_map(shape, first));
            scatter_map(gradient, net_.in, size, out + first * net_.in.size());
        });
        return loss;
    }

    // Outputs (logits, or activated values) of `samples` samples, row j at `output(j)`.
    void forward(const Samples<T>& inputs, const int64_t* order, long samples, const T* weights, bool keep = false,
                 bool to_input = false) {
        if (graph_)  // which changes weights, the running statistics, in training alone
            graph_->forward(inputs, order, samples, const_cast<T*>(weights), false, head_.input_rows(), head_.input_row());
        else if (net_.trunk.empty())
            gather_rows(inputs, order, samples, head_.input_rows(), head_.input_row());
        else
            forward_trunk(inputs, order, samples, weights, keep, to_input);
        head_.forward(weights, samples, inputs.domains, order);
    }

    const T* output(long j) const { return head_.output() + j * head_.output_row(); }

    // The loss of sample `j` of the last `forward`.
    T loss_of(const Targets<T>& targets, const int64_t* order, long j, T scale, T* gradient) {
        if (net_.loss == Loss::cross_entropy)
            return cross_entropy<T>(output(j), net_.outputs(), targets.labels[order[j]], scale, gradient, scratch_.data());
        gather_rows(targets.values, order + j, 1, targets_.data(), net_.outputs());
        return squared_error<T>(output(j), targets_.data(), net_.outputs(), scale, gradient);
    }

   private:
    Trunk<T>& trunk(long samples) {
        std::unique_ptr<Trunk<T>>& slot = trunks_[samples];
        if (!slot) slot = std::make_unique<Trunk<T>>(front_, parameters_, samples);
        return *slot;
    }

    template <class Body>
    void for_blocks(long samples, Body&& body) {
        int blocks = blocks_of(samples, block_);
        for (int b = 0; b < blocks; b++) {
            long first = block_start(samples, blocks, b), size = block_start(samples, blocks, b + 1) - first;
            bool new_size = b == 0 || size != first - block_start(samples, blocks, b - 1);
            body(b, first, size, new_size);
        }
    }

    void forward_trunk(const Samples<T>& inputs, const int64_t* order, long samples, const T* weights, bool keep,
                       bool to_input) {
        const MapShape& shape = net_.trunk.back().out;
        if (front_.trunk.empty()) gather_map(inputs, order, samples, routed_->values(0));
        for_blocks(front_.trunk.empty() ? 0 : samples, [&](long block, long first, long size, bool new_size) {
            Trunk<T>& part = trunk(size);
            if (new_size) part.begin_step(weights, keep, to_input);
            long place = keep ? block : 0;  // without a way back one place serves all blocks
            gather_map(inputs, order + first, size, part.input(place));
            part.drop_by(masks_, first);
            part.forward(place, routed_ ? routed_->values(first) : head_.input_map(shape, first));
        });
        if (routed_) routed_->forward(inputs, order, samples, weights, keep, head_.input_map(shape, 0));
    }

    void backward_trunk(long samples, const T* weights, Optimiser<T>& optimiser, bool front_learns) {
        const MapShape& shape = net_.trunk.back().out;
        // all but the residuals, which are updated on the way
        long until = routed_ ? routed_->residuals_begin() : size_of_trunk_;
        long again = routed_ ? routed_->residuals_end() : size_of_trunk_;
        std::memset(gradient_.data(), 0, size_t(until) * sizeof(T));
        std::memset(gradient_.data() + again, 0, size_t(size_of_trunk_ - again) * sizeof(T));
        if (routed_)
            routed_->backward(weights, head_.input_gradient_map(shape, 0), head_.input_map(shape, 0), gradient_.data(),
                              optimiser, front_learns);
        for_blocks(front_learns ? samples : 0, [&](long block, long first, long size, bool) {
            Trunk<T>& part = trunk(size);
            part.drop_by(masks_, first);
            part.backward(block, routed_ ? routed_->gradient(first) : head_.input_gradient_map(shape, first),
                          routed_ ? routed_->values(first) : head_.input_map(shape, first), gradient_.data());
        });
        optimiser.update_all(0, gradient_.data(), until);
        optimiser.update_all(again, gradient_.data() + again, size_of_trunk_ - again);
    }

    void backward_graph(long samples, Optimiser<T>& optimiser) {
        // Layers over sequences write their gradients; all else is added up.
        const long added = net_.sequence.empty() ? size_of_trunk_ : parameters_.find(net_.sequence[0].first);
        std::memset(gradient_.data(), 0, size_t(added) * sizeof(T));
        graph_->backward(head_.input_gradient(), head_.stride(), samples, gradient_.data());
        optimiser.update_all(0, gradient_.data(), size_of_trunk_);
    }

    const Network& net_;
    Network front_;  // the stages before a routed one: all of them where there is none
    Parameters<T> parameters_;
    Head<T> head_;
    long size_of_trunk_;
    Buffer<T> gradient_;  // of the trunk's parameters
    Buffer<T> targets_, scratch_;
    long block_;
    Masks masks_;  // of the present step
    std::unique_ptr<Routed<T>> routed_;
    std::unique_ptr<GraphTrunk<T>> graph_;
    std::map<long, std::unique_ptr<Trunk<T>>> trunks_;  // by block size: a ragged last batch has another
};

}  // namespace coterie
