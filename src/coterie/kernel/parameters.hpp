// Between the caller's flat vector (torch's order) and the order the kernel trains in.
//
// Linear weights are packed in panels (linear.hpp), everything else keeps its order; every tensor is padded to whole
// vectors, so that an update never has a tail. What belongs to a weight (momentum, anchor, correction) is packed alike,
// and so are the residuals of domains.
#pragma once

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
            add_layer(stage.weight, stage.bias, stage.domain, stage.weights(), stage.convolved.channels, {0, 0});
        }
        for (const HeadStage& stage : net.head)
            add_layer(stage.weight, stage.bias, stage.domain, stage.inputs * stage.outputs, stage.outputs,
                      {stage.inputs, stage.outputs});
    }

    long size() const { return size_; }

    // Where a tensor begins in the packed order.
    long find(const Parameter& parameter) const {
        for (const Entry& entry : entries_)
            if (entry.flat == parameter.offset) return entry.packed;
        return -1;
    }

    void pack(const T* flat, T* packed) const {
        for (const Entry& entry : entries_) {
            const T* from = flat + entry.flat;
            T* to = packed + entry.packed;
            if (!entry.linear)
                std::memcpy(to, from, size_t(entry.count) * sizeof(T));
            else
                for_panels(entry, [&](long first, long outputs, long start, long width) {
                    auto row = [&](long o) { return from + (first + o) * entry.shape.inputs; };
                    transpose<T>(row, outputs, entry.shape.inputs, to + start, width);
                });
        }
    }

    void unpack(const T* packed, T* flat) const {
        for (const Entry& entry : entries_) {
            const T* from = packed + entry.packed;
            T* to = flat + entry.flat;
            if (!entry.linear)
                std::memcpy(to, from, size_t(entry.count) * sizeof(T));
            else
                for_panels(entry, [&](long first, long outputs, long start, long width) {
                    auto row = [&](long k) { return from + start + k * width; };
                    transpose<T>(row, entry.shape.inputs, outputs, to + first * entry.shape.inputs, entry.shape.inputs);
                });
        }
    }

   private:
    struct Entry {
        long flat, packed, count;
        bool linear;
        PackedLinear<T> shape;
    };

    // Weight and bias, then those of every domain, then the scale; `shape` has outputs for a linear layer.
    void add_layer(const Parameter& weight, const Parameter& bias, const DomainPart& domain, long weights, long outputs,
                   const PackedLinear<T>& shape) {
        add_weight(weight.offset, weights, shape);
        if (bias.present()) add_plain(bias.offset, outputs);
        long length = weights + (bias.present() ? outputs : 0);
        for (long d = 0; d < domain.domains; d++) {
            add_weight(domain.residual.offset + d * length, weights, shape);
            if (bias.present()) add_plain(domain.residual.offset + d * length + weights, outputs);
        }
        if (domain.domains) add_plain(domain.scale.offset, 1);
    }

    void add_weight(long offset, long count, const PackedLinear<T>& shape) {
        if (!shape.outputs) return add_plain(offset, count);
        entries_.push_back({offset, size_, count, true, shape});
        size_ += shape.size();
    }

    void add_plain(long offset, long count) {
        entries_.push_back({offset, size_, count, false, {0, 0}});
        size_ += round_up(count, kLanes<T>);
    }

    template <class Body>
    static void for_panels(const Entry& entry, Body&& body) {
        const PackedLinear<T>& shape = entry.shape;
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
