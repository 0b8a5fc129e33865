// A trunk that is not a plain chain of stages: it normalises, adds, strides, or pools other fields than 2x2. Every node reads the
// result of an earlier one, or of two.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "layers.hpp"

namespace coterie {

enum class Work { convolution, depthwise, normalise, activate, pool, average, add, drop };

struct Node {
    Work work = Work::activate;
    long from = 0, other = -1;  // values: 0 is the network's input, i + 1 what node i makes; -1: none
    long kernel_height = 1, kernel_width = 1, stride_height = 1, stride_width = 1, pad_height = 0, pad_width = 0;
    Parameter weight, bias;
    long groups = 0;           // of channels that are normalised together, sample by sample; 0: each channel over the batch
    Parameter mean, variance;  // running statistics, where there are some
    double eps = 0, momentum = 0;
    Dropout dropout;
    Activation activation = Activation::none;  // at the end
    MapShape in{1, 1, 1}, out{1, 1, 1};

    bool convolves() const { return work == Work::convolution || work == Work::depthwise; }
    // Inputs of one output.
    long taps() const { return (work == Work::depthwise ? 1 : in.channels) * kernel_height * kernel_width; }
    bool by_batch() const { return work == Work::normalise && groups == 0; }
};

inline bool needs_graph(const LayerRecord* layers, int64_t count) {
    for (int64_t i = 0; i < count && Kind(layers[i].kind) != Kind::linear; i++) {
        Kind kind = Kind(layers[i].kind);
        if (kind == Kind::norm || kind == Kind::add || kind == Kind::field || kind == Kind::depthwise) return true;
        if (kind == Kind::convolution && (layers[i].stride_height != 1 || layers[i].stride_width != 1)) return true;
    }
    return false;
}

// Whether most of a chain's multiplications are in 3x3 convolutions that Winograd's way takes (winograd.hpp).
inline bool is_faster_as_graph(const LayerRecord* layers, int64_t count, const MapShape& in) {
    long channels = in.channels, saved = 0, others = 0;
    for (int64_t i = 0; i < count; i++) {
        const LayerRecord& layer = layers[i];
        if (layer.domains) return false;
        if (Kind(layer.kind) != Kind::convolution) continue;
        bool is_saved = layer.kernel_height == 3 && layer.kernel_width == 3 && channels >= 16 && layer.outputs >= 16;
        (is_saved ? saved : others) += layer.out_height * layer.out_width * layer.outputs * channels * layer.kernel_height * layer.kernel_width;
        channels = layer.outputs;
    }
    return saved > others;
}

class GraphReader {
   public:
    explicit GraphReader(const MapShape& in) : shapes_{in} {}

    // Reads up to the first linear layer and returns where it is.
    int64_t read(const LayerRecord* layers, int64_t count) {
        std::vector<int> users(size_t(count) + 1, 0);
        int64_t end = 0;
        for (; end < count && Kind(layers[end].kind) != Kind::linear; end++) {
            users[size_t(source(layers, end))]++;
            if (Kind(layers[end].kind) == Kind::add) users[size_t(layers[end].other + 1)]++;
        }
        places_.assign(1, 0);
        for (int64_t i = 0; i < end; i++) {
            long from = places_.at(size_t(source(layers, i)));
            // An addition or activation that alone reads the node before it is done in the same pass over memory.
            bool alone = !nodes.empty() && from == long(nodes.size()) && source(layers, i) == i && users[size_t(i)] == 1;
            if (!(alone && join(layers[i]))) append(layers[i], from);
            places_.push_back(long(nodes.size()));
        }
        return end;
    }

    const MapShape& out() const { return shapes_.back(); }
    std::vector<Node> nodes;
    long dropped = 0;  // values of a sample with masks

   private:
    // Layers count from 0, values from the input.
    static int64_t source(const LayerRecord* layers, int64_t i) { return layers[i].source < -1 ? i : layers[i].source + 1; }

    bool join(const LayerRecord& layer) {
        Node& last = nodes.back();
        bool joins = last.activation == Activation::none && (last.work == Work::normalise || last.work == Work::add);
        if (!joins) return false;
        if (is_activation(Kind(layer.kind))) {
            last.activation = activation_of(Kind(layer.kind));
            return true;
        }
        if (Kind(layer.kind) != Kind::add || last.work != Work::normalise || last.other >= 0) return false;
        last.other = places_.at(size_t(layer.other + 1));
        return true;
    }

    void append(const LayerRecord& layer, long from) {
        Node node;
        node.from = from;
        node.in = node.out = shapes_.at(size_t(from));
        node.kernel_height = layer.kernel_height;
        node.kernel_width = layer.kernel_width;
        node.stride_height = layer.stride_height;
        node.stride_width = layer.stride_width;
        node.pad_height = layer.pad_height;
        node.pad_width = layer.pad_width;
        node.weight.offset = layer.weight_offset;
        node.bias.offset = layer.bias_offset;
        switch (Kind(layer.kind)) {
            case Kind::convolution:
            case Kind::depthwise:
                node.work = Kind(layer.kind) == Kind::depthwise ? Work::depthwise : Work::convolution;
                node.out = {layer.outputs, layer.out_height, layer.out_width};
                break;
            case Kind::norm:
                node.work = Work::normalise;
                node.groups = layer.groups;
                node.mean.offset = layer.mean_offset;
                node.variance.offset = layer.variance_offset;
                node.eps = layer.eps;
                node.momentum = layer.momentum;
                break;
            case Kind::pool:
            case Kind::field:
                node.work = Work::pool;
                node.out = {node.in.channels, layer.out_height, layer.out_width};
                break;
            case Kind::average:
                node.work = Work::average;
                node.stride_height = node.kernel_height;
                node.stride_width = node.kernel_width;
                node.out = {node.in.channels, node.in.height / node.kernel_height, node.in.width / node.kernel_width};
                break;
            case Kind::dropout:
                node.work = Work::drop;
                node.dropout = {layer.rate, dropped};
                dropped += node.in.size();
                break;
            case Kind::add:
                node.work = Work::add;
                node.other = places_.at(size_t(layer.other + 1));
                break;
            case Kind::relu:
            case Kind::tanh:
            case Kind::sigmoid:
            case Kind::relu6:
                node.activation = activation_of(Kind(layer.kind));
                break;
            default: throw std::invalid_argument("a layer that is not known here");
        }
        if (node.out.height < 1 || node.out.width < 1) throw std::invalid_argument("a map has no pixels left");
        nodes.push_back(node);
        shapes_.push_back(node.out);
    }

    std::vector<MapShape> shapes_;  // of the values
    std::vector<long> places_;      // layers -> values
};

}  // namespace coterie
