// Local training of one client, start to end, in one call.
#include "calls.hpp"

namespace coterie {

template <class T>
Status train(TrainCall& call) {
    const Network net = network_of(call.network);
    if (Status status = check_data<T>(call.data, net, call.order, call.epochs * call.per_epoch)) return status;
    if (net.dropped() && !call.masks) return unknown_network;
    const Samples<T> inputs = inputs_of<T>(call.data, net);
    const Targets<T> targets = targets_of<T>(call.data, net);
    const long batch = std::min(call.batch, call.per_epoch);
    Model<T> model(net, batch, call.block_bytes);
    const Parameters<T>& parameters = model.parameters();

    const Hyper hyper{Rule(call.rule), call.lr,    call.momentum, call.weight_decay,
                      call.mu,         call.beta1, call.beta2,    call.eps};
    std::vector<bool> idle;
    if (Optimiser<T>::kind_of(hyper, call.correction || call.trained) == UpdateKind::plain) idle = idle_domains(call.data, net);
    T* flat = static_cast<T*>(call.weights);
    auto packed_copy = [&](const void* source) {
        Buffer<T> packed(source ? parameters.size() : 0);
        if (source) parameters.pack(static_cast<const T*>(source), packed.data(), idle);
        return packed;
    };
    Buffer<T> weights = packed_copy(flat);
    const Buffer<T> anchor = packed_copy(call.mu != 0 ? call.anchor : nullptr);
    const Buffer<T> correction = packed_copy(call.correction);
    const Buffer<T> trained = packed_copy(call.trained);
    auto given = [](const Buffer<T>& packed) { return packed.size() ? packed.data() : nullptr; };
    Optimiser<T> optimiser(hyper, weights.data(), given(anchor), given(correction), given(trained), parameters.size());

    double loss = 0;
    long seen = 0;
    for (long epoch = 0; epoch < call.epochs; epoch++) {
        const int64_t* order = call.order + epoch * call.per_epoch;
        for (long first = 0; first < call.per_epoch; first += batch) {
            long samples = std::min<long>(batch, call.per_epoch - first);
            if (samples < call.smallest) continue;
            seen += samples;
            const uint8_t* masks = net.dropped() ? call.masks + (epoch * call.per_epoch + first) * net.dropped() : nullptr;
            loss += model.step(inputs, targets, order + first, samples, weights.data(), optimiser, masks);
        }
    }
    parameters.unpack(weights.data(), flat, idle);
    call.mean_loss = loss / double(seen);
    return done;
}

}  // namespace coterie

extern "C" int32_t coterie_train_float32(coterie::TrainCall* call) {
    return coterie::guarded([&] { return coterie::train<float>(*call); });
}

extern "C" int32_t coterie_train_float64(coterie::TrainCall* call) {
    return coterie::guarded([&] { return coterie::train<double>(*call); });
}
