// Between the caller's flat vector (torch's order) and the order the kernel trains in.
//
// Linear weights are packed in panels (linear.hpp), everything else keeps its order; every tensor is padded to whole
// vectors, so that an update never has a tail. What belongs to a weight (momentum, anchor, correction) is packed alike.
#pragma once

#include "linear.hpp"
#include "network.hpp"
#include "vector.hpp"

namespace coterie {

template <class T>
class Parameters {
   public:
    explicit Parameters(const Network& net) {
        for (const TrunkStage& stage : net.trunk) {
            if (!stage.convolves) continue;
            add_plain(stage.weight, stage.weights());
            add_plain(stage.bias, stage.convolved.channels);
        }
        for (const HeadStage& stage : net.head) {
            PackedLinear<T> shape{stage.inputs, stage.outputs};
            entries_.push_back({stage.weight.offset, size_, stage.inputs * stage.outputs, true, shape});
            size_ += shape.size();
            add_plain(stage.bias, stage.outputs);
        }
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
                for_panel_rows(entry, [&](long o, long k, long at) { to[at] = from[o * entry.shape.inputs + k]; });
        }
    }

    void unpack(const T* packed, T* flat) const {
        for (const Entry& entry : entries_) {
            const T* from = packed + entry.packed;
            T* to = flat + entry.flat;
            if (!entry.linear)
                std::memcpy(to, from, size_t(entry.count) * sizeof(T));
            else
                for_panel_rows(entry, [&](long o, long k, long at) { to[o * entry.shape.inputs + k] = from[at]; });
        }
    }

   private:
    struct Entry {
        long flat, packed, count;
        bool linear;
        PackedLinear<T> shape;
    };

    void add_plain(const Parameter& parameter, long count) {
        if (!parameter.present()) return;
        entries_.push_back({parameter.offset, size_, count, false, {0, 0}});
        size_ += round_up(count, kLanes<T>);
    }

    // Sixteen inputs at a time, so that neither side of the transposition leaves the cache.
    template <class Body>
    static void for_panel_rows(const Entry& entry, Body&& body) {
        const PackedLinear<T>& shape = entry.shape;
        for (long p = 0; p < shape.panels(); p++) {
            long first = p * shape.kPanel, last = std::min(shape.outputs, first + shape.kPanel);
            long width = shape.vectors_of(p) * kLanes<T>;
            for (long block = 0; block < shape.inputs; block += 16)
                for (long k = block; k < std::min(shape.inputs, block + 16); k++)
                    for (long o = first; o < last; o++) body(o, k, shape.start(p) + k * width + (o - first));
        }
    }

    std::vector<Entry> entries_;
    long size_ = 0;
};

}  // namespace coterie
