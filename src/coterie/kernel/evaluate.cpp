// Loss, accuracy and outputs of many models on one data set.
#include <algorithm>
#include <vector>

#include "calls.hpp"

namespace coterie {

constexpr long kEvaluationBatch = 96;  // samples at a time: enough for full tiles, little enough for the cache
constexpr long kGraphBatch = 16;       // on a graph or a sequence, which need no batch to fill their vectors
constexpr long kMixedBatch = 512;      // where samples are normalised by each other: as many as in core/evaluation.py

template <class T>
Status evaluate(const EvaluateCall& call) {
    const Network net = network_of(call.network);
    if (Status status = check_data<T>(call.data, net, nullptr, 0)) return status;
    const Samples<T> inputs = inputs_of<T>(call.data, net);
    const Targets<T> targets = targets_of<T>(call.data, net);
    const long count = call.data.samples, classes = net.outputs();
    const long batch = std::min(count, net.mixes_samples() ? kMixedBatch : net.graph.empty() && net.sequence.empty() ? kEvaluationBatch : kGraphBatch);
    const bool scored = call.mean_losses != nullptr, labelled = net.loss == Loss::cross_entropy;
    Model<T> model(net, batch, call.block_bytes);
    Buffer<T> weights(model.parameters().size()), probabilities(round_up(classes, kLanes<T>));
    const std::vector<bool> idle = idle_domains(call.data, net);
    std::vector<int64_t> order(static_cast<size_t>(batch));

    for (long m = 0; m < call.models; m++) {
        model.parameters().pack(static_cast<const T*>(call.weights) + m * call.parameters, weights.data(), idle);
        T* out = call.outputs ? static_cast<T*>(call.outputs) + m * count * classes : nullptr;
        double loss = 0;
        long right = 0;
        for (long first = 0; first < count; first += batch) {
            long samples = std::min(batch, count - first);
            for (long j = 0; j < samples; j++) order[size_t(j)] = first + j;
            model.forward(inputs, order.data(), samples, weights.data());
            for (long j = 0; j < samples; j++) {
                if (scored) loss += double(model.loss_of(targets, order.data(), j, T(1), nullptr));
                if (scored && labelled) right += largest_class<T>(model.output(j), classes) == call.data.labels[first + j];
                if (!out) continue;
                const T* row = model.output(j);
                if (labelled) {
                    softmax_row<T>(row, classes, probabilities.data());
                    row = probabilities.data();
                }
                std::memcpy(out + (first + j) * classes, row, size_t(classes) * sizeof(T));
            }
        }
        if (!scored) continue;
        call.mean_losses[m] = loss / double(count);
        call.accuracies[m] = double(right) / double(count);
    }
    return done;
}

}  // namespace coterie

extern "C" int32_t coterie_evaluate_float32(const coterie::EvaluateCall* call) {
    return coterie::guarded([&] { return coterie::evaluate<float>(*call); });
}

extern "C" int32_t coterie_evaluate_float64(const coterie::EvaluateCall* call) {
    return coterie::guarded([&] { return coterie::evaluate<double>(*call); });
}
