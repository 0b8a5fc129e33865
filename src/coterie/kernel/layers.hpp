// Layers as they come over the ABI, and the words that all of a network's description shares.
#pragma once

#include <cstdint>

namespace coterie {

enum class Kind : int64_t {
    convolution = 0, linear = 1, relu = 2, tanh = 3, sigmoid = 4, pool = 5, average = 6, dropout = 7, norm = 8, add = 9, field = 10,
    lookup = 11, lstm = 12, positions = 13, block = 14, relu6 = 15, depthwise = 16
};
enum class Activation { none, relu, tanh, sigmoid, relu6 };
enum class Loss : int64_t { cross_entropy = 0, squared_error = 1 };

// One layer as the Python side writes it (net.py). An absent parameter has offset -1, a layer without domains 0 of them.
struct LayerRecord {
    int64_t kind, outputs, kernel_height, kernel_width, pad_height, pad_width, weight_offset, bias_offset;
    int64_t domains, residual_offset, scale_offset;
    // Of networks that are more than a chain (graph.hpp): the layer that is read (-1: the input, -2: the one before), the other
    // summand of an addition, and what else is theirs.
    int64_t source, other, stride_height, stride_width, out_height, out_width, groups, mean_offset, variance_offset;
    int64_t first_column, columns, rows;  // of the input, and of the embedding in which they are looked up (0: none)
    double rate;  // of dropout
    double eps, momentum;
};

struct MapShape {
    long channels, height, width;
    long size() const { return channels * height * width; }
};

// A tensor of parameters: where it is in the caller's flat vector.
struct Parameter {
    long offset = -1;
    bool present() const { return offset >= 0; }
};

// Dropout with this rate; its mask has the values of one sample that come behind those of the layers before it (masks.hpp).
struct Dropout {
    double rate = 0;
    long before = 0;
    bool present() const { return rate > 0; }
};

inline Activation activation_of(Kind kind) {
    switch (kind) {
        case Kind::relu: return Activation::relu;
        case Kind::tanh: return Activation::tanh;
        case Kind::relu6: return Activation::relu6;
        default: return Activation::sigmoid;
    }
}

inline bool is_sequence(Kind kind) { return kind == Kind::lstm || kind == Kind::positions || kind == Kind::block; }

inline bool is_activation(Kind kind) {
    return kind == Kind::relu || kind == Kind::tanh || kind == Kind::sigmoid || kind == Kind::relu6;
}

}  // namespace coterie
