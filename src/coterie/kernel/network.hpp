// What a network is: the layers as they come over the ABI, grouped into the stages that are computed in one go.
//
//   trunk: convolutions, pools, activations and dropout on maps (channels, height, width)
//   head:  linear layers with their activations and dropout on vectors
//
// Instead of a trunk, columns of the input may be looked up in embeddings (lookup.hpp). A trunk that is more than a chain of such stages is a graph (graph.hpp). A stage of the trunk is [convolution] [activation] [2x2 max-pool] [activation], or an average pool, or
// dropout; of the head linear [activation] [dropout].
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "graph.hpp"

namespace coterie {

// What a layer with domains has beside its weight and bias (domains.hpp); no domains: a plain layer.
struct DomainPart {
    long domains = 0;
    Parameter residual, scale;
};

struct TrunkStage {
    bool convolves = false;
    long kernel_height = 1, kernel_width = 1, pad_height = 0, pad_width = 0;
    Parameter weight, bias;
    DomainPart domain;
    Activation activation = Activation::none;
    bool pools = false;
    bool activate_before_pool = false;
    long average_height = 0, average_width = 0;  // of an average pool; 0: none
    Dropout dropout;
    MapShape in, convolved, out;

    // A pool drops an odd last row and column; what is dropped need not be computed and has no gradient.
    long used_height() const { return pools ? convolved.height / 2 * 2 : convolved.height; }
    long used_width() const { return pools ? convolved.width / 2 * 2 : convolved.width; }
    long taps() const { return in.channels * kernel_height * kernel_width; }
    long weights() const { return convolved.channels * taps(); }
};

struct HeadStage {
    long inputs, outputs;
    Parameter weight, bias;
    DomainPart domain;
    Activation activation = Activation::none;
    Dropout dropout;
};

// Some columns of the input, each taken as it is or as the row of an embedding that it names; all of them side by side.
struct Lookup {
    long first, columns, rows, width;
    Parameter weight;
    long size() const { return columns * width; }
};

// A tensor of a layer over sequences: a matrix, or with no inputs a vector.
struct SequencePart {
    Parameter parameter;
    long inputs, outputs;
    long size() const { return (inputs ? inputs : 1) * outputs; }
};

// A layer over sequences; its parameters lie one behind the other, as torch names them.
struct SequenceLayer {
    Kind kind;
    long inputs, outputs;
    Parameter first;
    bool biased;
    long heads, inner;  // of a block of an encoder
    double eps;

    // Of an LSTM: W_ih of all gates, W_hh, b_ih, b_hh. Of a block: W_q, W_kv, b_q, b_kv, W and b of the other layers, then those of
    // the norms. Of positions: all of them.
    std::vector<SequencePart> parts() const {
        std::vector<SequencePart> found;
        long offset = first.offset;
        auto add = [&](long from, long to) {
            found.push_back({{offset}, from, to});
            offset += found.back().size();
        };
        if (kind == Kind::positions) {
            add(0, inputs * outputs);
        } else if (kind == Kind::lstm) {
            for (long from : {inputs, outputs})
                for (int gate = 0; gate < 4; gate++) add(from, outputs);
            for (int gate = 0; gate < 8 && biased; gate++) add(0, outputs);
        } else {
            add(outputs, outputs);
            add(outputs, 2 * outputs);
            for (long to : {outputs, 2 * outputs}) add(0, to);
            for (auto [from, to] : {std::pair{outputs, outputs}, std::pair{outputs, inner}, std::pair{inner, outputs}}) {
                add(from, to);
                add(0, to);
            }
            for (int norm = 0; norm < 4; norm++) add(0, outputs);
        }
        return found;
    }
};

struct Network {
    MapShape in;
    std::vector<TrunkStage> trunk;
    std::vector<HeadStage> head;
    Loss loss;
    std::vector<Node> graph = {};  // instead of a trunk
    std::vector<Lookup> lookups = {};  // likewise
    std::vector<SequenceLayer> sequence = {};  // behind one lookup; the head reads the last step
    const void* mix = nullptr;  // [domains][domains], of the weights' type: how domains borrow from each other

    bool routes_trunk() const { return !trunk.empty() && trunk.back().domain.domains > 0; }
    // How many domains there are; 0 in a network without any.
    long domains() const {
        long most = routes_trunk() ? trunk.back().domain.domains : 0;
        for (const HeadStage& stage : head) most = std::max(most, stage.domain.domains);
        return most;
    }
    // Whether a sample's outputs depend on the others, in evaluation too.
    bool mixes_samples() const {
        return std::any_of(graph.begin(), graph.end(), [](const Node& n) { return n.by_batch() && !n.mean.present(); });
    }
    long outputs() const { return head.back().outputs; }
    // How many values of a sample dropout has masks for, in the trunk and in the head.
    long dropped_in_trunk = 0, dropped_in_head = 0;
    long dropped() const { return dropped_in_trunk + dropped_in_head; }
};

inline DomainPart domain_part_of(const LayerRecord& layer) {
    return {long(layer.domains), {long(layer.residual_offset)}, {long(layer.scale_offset)}};
}

// Without `may_be_graph` a chain of stages is a trunk, even where a graph is faster.
inline Network read_network(const LayerRecord* layers, int64_t count, const int64_t shape[3], Loss loss, bool may_be_graph) {
    Network net{{shape[0], shape[1], shape[2]}, {}, {}, loss};
    MapShape map = net.in;
    int64_t at = 0;
    auto next_is_activation = [&] { return at < count && is_activation(Kind(layers[at].kind)); };
    auto next_is_pool = [&] { return at < count && Kind(layers[at].kind) == Kind::pool; };
    auto take_activation = [&] { return activation_of(Kind(layers[at++].kind)); };

    if (needs_graph(layers, count) || (may_be_graph && is_faster_as_graph(layers, count, map))) {
        GraphReader reader(map);
        at = reader.read(layers, count);
        map = reader.out();
        net.graph = std::move(reader.nodes);
        net.dropped_in_trunk = reader.dropped;
    }
    for (; at < count && Kind(layers[at].kind) == Kind::lookup; at++) {
        const LayerRecord& layer = layers[at];
        net.lookups.push_back({layer.first_column, layer.columns, layer.rows, layer.outputs, {long(layer.weight_offset)}});
        if (layer.first_column < 0 || layer.columns < 1 || layer.first_column + layer.columns > net.in.size())
            throw std::invalid_argument("a lookup of columns that are not there");
    }
    for (; at < count && is_sequence(Kind(layers[at].kind)); at++) {
        if (net.lookups.size() != 1 || !net.lookups[0].rows) throw std::invalid_argument("sequences of what are not tokens");
        const LayerRecord& layer = layers[at];
        long inputs = net.sequence.empty() ? net.lookups[0].width : net.sequence.back().outputs;
        if (Kind(layer.kind) == Kind::positions) inputs = net.lookups[0].columns;
        net.sequence.push_back({Kind(layer.kind), inputs, layer.outputs, {long(layer.weight_offset)}, layer.bias_offset >= 0,
                                layer.groups, layer.rows, layer.eps});
    }
    while (at < count && Kind(layers[at].kind) != Kind::linear) {
        if (!net.lookups.empty()) throw std::invalid_argument("a trunk behind lookups");
        if (net.routes_trunk()) throw std::invalid_argument("only the last stage of the trunk may have domains");
        TrunkStage stage;
        stage.in = stage.convolved = map;
        const LayerRecord& layer = layers[at];
        if (Kind(layer.kind) == Kind::convolution) {
            at++;
            stage.convolves = true;
            stage.kernel_height = layer.kernel_height;
            stage.kernel_width = layer.kernel_width;
            stage.pad_height = layer.pad_height;
            stage.pad_width = layer.pad_width;
            stage.weight.offset = layer.weight_offset;
            stage.bias.offset = layer.bias_offset;
            stage.domain = domain_part_of(layer);
            stage.convolved = {layer.outputs, map.height + 2 * layer.pad_height - layer.kernel_height + 1,
                               map.width + 2 * layer.pad_width - layer.kernel_width + 1};
            if (next_is_activation()) {
                stage.activation = take_activation();
                // ReLU and max commute exactly, ties included (a tie at zero has no gradient), so ReLU moves behind
                // the pool and runs on a quarter of the values. Others can create ties by rounding and stay.
                stage.activate_before_pool = stage.activation != Activation::relu;
            }
        } else if (is_activation(Kind(layer.kind))) {
            stage.activation = take_activation();
        } else if (Kind(layer.kind) == Kind::dropout) {
            at++;
            stage.dropout = {layer.rate, net.dropped_in_trunk};
            net.dropped_in_trunk += map.size();
        }
        stage.out = stage.convolved;
        bool is_average = at < count && Kind(layer.kind) == Kind::average;
        if (is_average) {
            at++;
            stage.average_height = layer.kernel_height;
            stage.average_width = layer.kernel_width;
            stage.out = {map.channels, map.height / layer.kernel_height, map.width / layer.kernel_width};
        }
        bool may_pool = stage.convolves || (stage.activation == Activation::none && !is_average && !stage.dropout.present());
        if (may_pool && next_is_pool()) {
            at++;
            stage.pools = true;
            stage.out = {stage.convolved.channels, stage.convolved.height / 2, stage.convolved.width / 2};
            if (stage.activation == Activation::none && next_is_activation()) stage.activation = take_activation();
        } else {
            stage.activate_before_pool = false;
        }
        if (stage.out.height < 1 || stage.out.width < 1) throw std::invalid_argument("a map has no pixels left");
        map = stage.out;
        net.trunk.push_back(stage);
    }
    long features = net.lookups.empty() ? map.size() : 0;
    for (const Lookup& each : net.lookups) features += each.size();
    if (!net.sequence.empty()) features = net.sequence.back().outputs;
    while (at < count && Kind(layers[at].kind) == Kind::linear) {
        HeadStage stage;
        stage.inputs = features;
        stage.outputs = features = layers[at].outputs;
        stage.weight.offset = layers[at].weight_offset;
        stage.bias.offset = layers[at].bias_offset;
        stage.domain = domain_part_of(layers[at]);
        at++;
        if (next_is_activation()) stage.activation = take_activation();
        if (at < count && Kind(layers[at].kind) == Kind::dropout) {
            stage.dropout = {layers[at++].rate, net.dropped_in_head};
            net.dropped_in_head += stage.outputs;
        }
        net.head.push_back(stage);
    }
    if (at != count || net.head.empty()) throw std::invalid_argument("not a trunk followed by a head");
    return net;
}

}  // namespace coterie
