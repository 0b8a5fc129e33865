// From the C structures to the typed pieces that training and evaluation share.
#pragma once

#include <vector>

#include "abi.hpp"
#include "gather.hpp"
#include "model.hpp"

namespace coterie {

inline Network network_of(const NetworkCall& call, bool may_be_graph = true) {
    int64_t shape[3] = {call.channels, call.height, call.width};
    Network net = read_network(call.layers, call.layer_count, shape, Loss(call.loss), may_be_graph);
    net.mix = call.mix;
    return net;
}

template <class T>
Samples<T> inputs_of(const DataCall& data, const Network& net) {
    return {static_cast<const T*>(data.values), data.bytes, static_cast<const T*>(data.table), long(data.table_channels),
            net.in, data.domains};
}

template <class T>
Targets<T> targets_of(const DataCall& data, const Network& net) {
    Targets<T> targets{data.labels, inputs_of<T>(data, net)};
    const T* values = static_cast<const T*>(data.target_values);
    if (values) targets.values = {values, nullptr, nullptr, 1, {net.outputs(), 1, 1}, nullptr};
    return targets;
}

// Whether every column that names a row of an embedding names one that it has. Numbers are cut towards 0, as torch does.
template <class T>
bool rows_are_there(const DataCall& data, const Network& net) {
    const Samples<T> inputs = inputs_of<T>(data, net);
    Buffer<T> row(net.in.size());
    for (int64_t i = 0; i < data.samples && !net.lookups.empty(); i++) {
        gather_rows(inputs, &i, 1, row.data(), net.in.size());
        for (const Lookup& each : net.lookups)
            for (long c = 0; c < each.columns && each.rows; c++) {
                T value = row.data()[each.first + c];
                if (!(value > T(-1) && value < T(each.rows))) return false;
            }
    }
    return true;
}

// Nothing is read or written before every sample number and every label is known to be in range.
template <class T>
Status check_data(const DataCall& data, const Network& net, const int64_t* order, int64_t length) {
    for (int64_t i = 0; i < length; i++)
        if (order[i] < 0 || order[i] >= data.samples) return order_out_of_range;
    if (net.loss == Loss::cross_entropy && data.labels)
        for (int64_t i = 0; i < data.samples; i++)
            if (data.labels[i] < 0 || data.labels[i] >= net.outputs()) return label_out_of_range;
    if (!rows_are_there<T>(data, net)) return row_out_of_range;
    if (!net.domains()) return done;
    if (!data.domains) return unknown_network;
    for (int64_t i = 0; i < data.samples; i++)
        if (data.domains[i] < 0 || data.domains[i] >= net.domains()) return domain_out_of_range;
    return done;
}

// The domains that none of the samples has, where no domain borrows from another.
inline std::vector<bool> idle_domains(const DataCall& data, const Network& net) {
    std::vector<bool> idle(net.mix ? 0 : size_t(net.domains()), true);
    for (int64_t i = 0; !idle.empty() && i < data.samples; i++) idle[size_t(data.domains[i])] = false;
    return idle;
}

template <class Body>
int32_t guarded(Body&& body) {
    try {
        return body();
    } catch (const std::bad_alloc&) {
        return out_of_memory;
    } catch (...) {
        return unknown_network;
    }
}

}  // namespace coterie
