// Gradients of the loss with respect to the inputs, the weights held fixed.
#include <algorithm>
#include <vector>

#include "calls.hpp"

namespace coterie {

constexpr long kGradientBatch = 96;  // samples at a time, as in evaluation

template <class T>
Status input_gradient(GradientCall& call) {
    const Network net = network_of(call.network, false);  // graphs have no gradient of their inputs
    if (Status status = check_data<T>(call.data, net, nullptr, 0)) return status;
    const Samples<T> inputs = inputs_of<T>(call.data, net);
    const Targets<T> targets = targets_of<T>(call.data, net);
    const long count = call.data.samples, batch = std::min(count, kGradientBatch);
    Model<T> model(net, batch, call.block_bytes);
    Buffer<T> weights(model.parameters().size());
    model.parameters().pack(static_cast<const T*>(call.weights), weights.data());
    std::vector<int64_t> order(static_cast<size_t>(batch));
    call.loss = 0;
    for (long first = 0; first < count; first += batch) {
        long samples = std::min(batch, count - first);
        for (long j = 0; j < samples; j++) order[size_t(j)] = first + j;
        T* out = static_cast<T*>(call.gradient) + first * net.in.size();
        call.loss += model.input_gradient(inputs, targets, order.data(), samples, weights.data(), out);
    }
    return done;
}

}  // namespace coterie

extern "C" int32_t coterie_gradient_float32(coterie::GradientCall* call) {
    return coterie::guarded([&] { return coterie::input_gradient<float>(*call); });
}

extern "C" int32_t coterie_gradient_float64(coterie::GradientCall* call) {
    return coterie::guarded([&] { return coterie::input_gradient<double>(*call); });
}
