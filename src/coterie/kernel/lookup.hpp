// Columns of the input, taken as they are or as rows of embeddings, put side by side for the head.
#pragma once

#include <vector>

#include "graph_trunk.hpp"

namespace coterie {

template <class T>
class Lookups final : public GraphTrunk<T> {
   public:
    Lookups(const Network& net, const Parameters<T>& parameters) : row_(net.in.size()) {
        for (const Lookup& each : net.lookups) parts_.push_back({each, each.rows ? parameters.find(each.weight) : -1});
    }

    bool learns() const override {
        for (const Part& part : parts_)
            if (part.weight >= 0) return true;
        return false;
    }

    // to[sample * row + value], with every looked-up column's row where it is wanted.
    void forward(const Samples<T>& inputs, const int64_t* order, long samples, T* weights, bool, T* to, long row) override {
        named_.clear();
        for (long j = 0; j < samples; j++, to += row) {
            gather_rows(inputs, order + j, 1, row_.data(), row_.size());
            T* out = to;
            for (const Part& part : parts_) {
                const Lookup& shape = part.shape;
                for (long c = shape.first; c < shape.first + shape.columns; c++, out += shape.width) {
                    if (part.weight < 0) {
                        *out = row_.data()[c];
                        continue;
                    }
                    named_.push_back(part.weight + long(row_.data()[c]) * shape.width);
                    std::memcpy(out, weights + named_.back(), size_t(shape.width) * sizeof(T));
                }
            }
        }
    }

    void backward(const T* features, long stride, long samples, T* gradient) override {
        const long* named = named_.data();
        for (long j = 0; j < samples; j++) {
            const T* from = features + j;
            for (const Part& part : parts_) {
                if (part.weight < 0) {
                    from += part.shape.size() * stride;
                    continue;
                }
                for (long c = 0; c < part.shape.columns; c++) {
                    T* to = gradient + *named++;
                    for (long i = 0; i < part.shape.width; i++, from += stride) to[i] += *from;
                }
            }
        }
    }

   private:
    struct Part {
        Lookup shape;
        long weight;  // in the packed order; -1: taken as they are
    };

    std::vector<Part> parts_;
    Buffer<T> row_;            // one sample
    std::vector<long> named_;  // where in the weights the rows of the present samples begin
};

}  // namespace coterie
