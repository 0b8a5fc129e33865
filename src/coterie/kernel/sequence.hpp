// Tokens looked up in an embedding, and layers over the sequences that they make; the head reads the last step. Compiled once, in
// sequence.cpp.
#pragma once

#include <memory>

#include "graph_trunk.hpp"

namespace coterie {

template <class T>
std::unique_ptr<GraphTrunk<T>> make_sequence(const Network& net, const Parameters<T>& parameters, long batch);

}  // namespace coterie
