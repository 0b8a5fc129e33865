// Between the caller's flat vector (torch's order) and the order the kernel trains in.
//
// Linear weights are packed in panels (linear.hpp), those of convolutions have the outputs innermost; every tensor is padded
// to whole vectors, so that an update never has a tail. What belongs to a weight (momentum, anchor, correction) is packed alike,
// and so are the residuals of domains.
#pragma once

#include <vector>

#include "linear.hpp"
#include "network.hpp"
#include "transpose.hpp"
#include "vector.hpp"

namespace coterie {

template <class T>
class Parameters {
   public:
    explicit Parameters(const Network& net) {
        for (const TrunkStage& stage : net.trunk) {
            if (!stage.convolves) continue;
            add_layer(stage.weight, stage.bias, stage.domain, stage.weights(), stage.convolved.channels,
                      {{0, 0}, stage.taps(), stage.convolved.channels});
        }
        for (const Node& node : net.graph) {
            if (node.convolves()) add_weight(node.weight.offset, node.out.channels * node.taps(), {{0, 0}, node.taps(), node.out.channels});
            if (!node.convolves() && node.weight.present()) add_plain(node.weight.offset, node.out.channels);
            if (node.bias.present()) add_plain(node.bias.offset, node.out.channels);
        }
        for (const Lookup& each : net.lookups)
            if (each.rows) add_plain(each.weight.offset, each.rows * each.width);
        for (const SequenceLayer& layer : net.sequence)
            for (const SequencePart& part : layer.parts())
                add_weight(part.parameter.offset, part.size(), {{part.inputs, part.inputs ? part.outputs : 0}});
        for (const HeadStage& stage : net.head)
            add_layer(stage.weight, stage.bias, stage.domain, stage.inputs * stage.outputs, stage.outputs,
                      {{stage.inputs, stage.outputs}});
        for (const Node& node : net.graph)  // behind all that is trained
            for (const Parameter& statistic : {node.mean, node.variance})
                if (statistic.present()) add_plain(statistic.offset, node.out.channels);
    }

    long size() const { return size_; }

    // Where a tensor begins in the packed order.
    long find(const Parameter& parameter) const {
        for (const Entry& entry : entries_)
            if (entry.flat == parameter.offset) return entry.packed;
        return -1;
    }

    // The residuals of `idle` domains are left out, here and in `unpack`: nobody reads or changes them.
    void pack(const T* flat, T* packed, const std::vector<bool>& idle = {}) const {
        for (const Entry& entry : entries_) {
            if (entry.is_idle(idle)) continue;
            const T* from = flat + entry.flat;
            T* to = packed + entry.packed;
            const Shape& shape = entry.shape;
            if (shape.is_plain())
                std::memcpy(to, from, size_t(entry.count) * sizeof(T));
            else if (shape.taps)
                transpose<T>([&](long o) { return from + o * shape.taps; }, shape.outputs, shape.taps, to, shape.outputs);
            else
                for_panels(shape.linear, [&](long first, long outputs, long start, long width) {
                    auto row = [&](long o) { return from + (first + o) * shape.linear.inputs; };
                    transpose<T>(row, outputs, shape.linear.inputs, to + start, width);
                });
        }
    }

    void unpack(const T* packed, T* flat, const std::vector<bool>& idle = {}) const {
        for (const Entry& entry : entries_) {
            if (entry.is_idle(idle)) continue;
            const T* from = packed + entry.packed;
            T* to = flat + entry.flat;
            const Shape& shape = entry.shape;
            if (shape.is_plain())
                std::memcpy(to, from, size_t(entry.count) * sizeof(T));
            else if (shape.taps)
                transpose<T>([&](long k) { return from + k * shape.outputs; }, shape.taps, shape.outputs, to, shape.taps);
            else
                for_panels(shape.linear, [&](long first, long outputs, long start, long width) {
                    auto row = [&](long k) { return from + start + k * width; };
                    transpose<T>(row, shape.linear.inputs, outputs, to + first * shape.linear.inputs, shape.linear.inputs);
                });
        }
    }

   private:
    // Of a weight: one of these, or neither.
    struct Shape {
        PackedLinear<T> linear{0, 0};
        long taps = 0, outputs = 0;  // of a convolution

        bool is_plain() const { return linear.outputs == 0 && taps == 0; }
    };

    struct Entry {
        long flat, packed, count;
        Shape shape;
        long domain;  // whose residual it is, or -1

        bool is_idle(const std::vector<bool>& idle) const {
            return domain >= 0 && domain < long(idle.size()) && idle[size_t(domain)];
        }
    };

    // Weight and bias, then those of every domain, then the scale.
    void add_layer(const Parameter& weight, const Parameter& bias, const DomainPart& domain, long weights, long outputs,
                   const Shape& shape) {
        add_weight(weight.offset, weights, shape);
        if (bias.present()) add_plain(bias.offset, outputs);
        long length = weights + (bias.present() ? outputs : 0);
        for (long d = 0; d < domain.domains; d++) {
            add_weight(domain.residual.offset + d * length, weights, shape, d);
            if (bias.present()) add_plain(domain.residual.offset + d * length + weights, outputs, d);
        }
        if (domain.domains) add_plain(domain.scale.offset, 1);
    }

    void add_weight(long offset, long count, const Shape& shape, long domain = -1) {
        entries_.push_back({offset, size_, count, shape, domain});
        size_ += shape.linear.outputs ? shape.linear.size() : round_up(count, kLanes<T>);
    }

    void add_plain(long offset, long count, long domain = -1) { add_weight(offset, count, {}, domain); }

    template <class Body>
    static void for_panels(const PackedLinear<T>& shape, Body&& body) {
        for (long p = 0; p < shape.panels(); p++) {
            long first = p * shape.kPanel;
            body(first, std::min<long>(shape.kPanel, shape.outputs - first), shape.start(p),
                 shape.vectors_of(p) * kLanes<T>);
        }
    }

    std::vector<Entry> entries_;
    long size_ = 0;
};

}  // namespace coterie
