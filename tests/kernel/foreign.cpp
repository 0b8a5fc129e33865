// Trains one small network on made-up numbers and prints the weights. Compiled for another processor and run under an
// emulator, it must print what it prints here (test_aarch64.py).
#include <cstdio>
#include <vector>

#include "abi.hpp"

extern "C" int32_t coterie_train_float64(coterie::TrainCall*);

int main() {
    using namespace coterie;
    // conv 2 -> 3 (3x3, padded), ReLU, pool, conv 3 -> 4 (3x2), tanh, linear 24 -> 5, sigmoid, linear 5 -> 3
    const long parameters = 54 + 3 + 72 + 4 + 120 + 5 + 15 + 3;
    const LayerRecord layers[] = {{0, 3, 3, 3, 1, 1, 0, 54},      {2, 0, 0, 0, 0, 0, -1, -1}, {5, 0, 0, 0, 0, 0, -1, -1},
                                  {0, 4, 3, 2, 0, 0, 57, 129},    {3, 0, 0, 0, 0, 0, -1, -1}, {1, 5, 0, 0, 0, 0, 133, 253},
                                  {4, 0, 0, 0, 0, 0, -1, -1},     {1, 3, 0, 0, 0, 0, 258, 273}};
    const long samples = 23, inputs = 2 * 8 * 9, epochs = 3;
    uint64_t seed = 1;
    auto draw = [&] { return static_cast<double>((seed = seed * 6364136223846793005ull + 1442695040888963407ull) >> 40) / (1 << 24) - 0.5; };
    std::vector<double> x(samples * inputs), weights(parameters), anchor(parameters);
    std::vector<int64_t> labels(samples), order(epochs * samples);
    for (auto& value : x) value = draw();
    for (auto& value : weights) value = draw();
    anchor = weights;
    for (long i = 0; i < samples; ++i) labels[i] = i * i % 3;
    for (long i = 0; i < epochs * samples; ++i) order[i] = i * 7 % samples;
    for (long rule = 0; rule < 2; ++rule) {
        TrainCall call{};
        call.network = {layers, 8, 2, 8, 9, 0};
        call.data.values = x.data();
        call.data.table_channels = 1;
        call.data.labels = labels.data();
        call.data.samples = samples;
        call.weights = weights.data();
        call.anchor = anchor.data();
        call.order = order.data();
        call.epochs = epochs, call.per_epoch = samples, call.batch = 5, call.block_bytes = 1 << 20, call.rule = rule;
        call.lr = rule ? 0.001 : 0.1, call.momentum = rule ? 0 : 0.9, call.weight_decay = 0.01, call.mu = 0.05;
        call.beta1 = 0.9, call.beta2 = 0.999, call.eps = 0.01;
        if (const int status = coterie_train_float64(&call)) return status;
        std::printf("%.17g\n", call.mean_loss);
    }
    for (double weight : weights) std::printf("%.17g\n", weight);
}
