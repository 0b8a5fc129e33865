// A trunk of nodes (graph.hpp) for a whole batch at once, on maps with the channels innermost. Compiled once, in graph.cpp.
#pragma once

#include <memory>

#include "gather.hpp"
#include "masks.hpp"
#include "parameters.hpp"

namespace coterie {

template <class T>
class GraphTrunk {
   public:
    virtual ~GraphTrunk() = default;

    virtual bool learns() const = 0;

    // What dropout keeps in the next `forward` and `backward`.
    virtual void drop_by(const Masks&) {}

    // `weights` in the packed order; in training running statistics among them are renewed. Row j of the last map is written, in
    // torch's order, to rows + j * row.
    virtual void forward(const Samples<T>& inputs, const int64_t* order, long samples, T* weights, bool training, T* rows,
                         long row) = 0;

    // After `forward` in training. The gradient of the rows lies as [feature][sample]; that of the parameters is added to
    // `gradient`, in the packed order.
    virtual void backward(const T* features, long stride, long samples, T* gradient) = 0;
};

template <class T>
std::unique_ptr<GraphTrunk<T>> make_graph_trunk(const Network& net, const Parameters<T>& parameters, long batch);

}  // namespace coterie
