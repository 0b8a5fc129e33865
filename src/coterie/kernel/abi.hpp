// The plain C interface. library.py mirrors these structures field by field; every pointer is checked there.
#pragma once

#include <cstdint>

#include "network.hpp"

namespace coterie {

// What a call answers. No exception crosses the interface.
enum Status : int32_t { done = 0, out_of_memory = 1, unknown_network = 2, order_out_of_range = 3, label_out_of_range = 4,
                        domain_out_of_range = 5, row_out_of_range = 6 };

struct NetworkCall {
    const LayerRecord* layers;
    int64_t layer_count;
    int64_t channels, height, width;  // of one input
    int64_t loss;
    const void* mix;  // [domains][domains], of the weights' type, or null
};

// Inputs: values of the weights' type, or bytes with a table of normalised values (gather.hpp).
struct DataCall {
    const void* values;
    const uint8_t* bytes;
    const void* table;
    int64_t table_channels;
    const int64_t* labels;      // cross-entropy
    const void* target_values;  // squared error; null: the inputs themselves
    int64_t samples;
    const int64_t* domains;  // [samples], or null
};

struct TrainCall {
    NetworkCall network;
    DataCall data;
    void* weights;           // flat, torch's order, updated in place
    const void* anchor;      // start of the prox term, or null
    const void* correction;  // added to every gradient, or null
    const void* trained;     // 0 for weights that stay as they are, 1 for the others; or null: all are trained
    const int64_t* order;    // [epochs][per_epoch] sample numbers
    const uint8_t* masks;    // [samples of all epochs][dropped values], in the order of masks.hpp; null without dropout
    int64_t epochs, per_epoch, batch, block_bytes;
    int64_t smallest;  // batches of fewer samples are left out
    int64_t rule;
    double lr, momentum, weight_decay, mu, beta1, beta2, eps;
    double mean_loss;  // the answer
};

struct EvaluateCall {
    NetworkCall network;
    DataCall data;
    const void* weights;  // [models][parameters]
    int64_t models, parameters, block_bytes;
    double* mean_losses;  // [models], or null
    double* accuracies;   // [models], or null
    void* outputs;        // [models][samples][outputs], or null
};

struct GradientCall {
    NetworkCall network;
    DataCall data;  // values, not bytes
    const void* weights;  // flat, one model
    int64_t block_bytes;
    void* gradient;  // [samples][values], of each sample's own loss
    double loss;     // the answer: the sum over the samples
};

// Models as rows, `stride` values apart. Columns from first_column to before last_column are computed.
struct MeansCall {
    const void* rows;
    int64_t stride, width;
    const int64_t* members;  // rows of the first mean, of the second, ...
    const int64_t* ends;     // [means] where in `members` each mean ends
    int64_t means, first_column, last_column;
    void* out;  // [means][width]
};

struct ProductsCall {
    const void* ends;
    int64_t end_stride;
    const void* const* begins;     // [kinds] rows to be taken from those of `ends`
    const int64_t* begin_strides;  // [kinds] 0: one row for all
    int64_t kinds;
    const int64_t* rows;  // [row_count] which rows are used
    int64_t row_count;
    const int64_t* partners;   // [pairs] places in `rows`: those of the first row, of the second, ...
    const int64_t* pair_ends;  // [row_count] where in `partners` each row's end
    int64_t pairs, first_column, last_column;
    double* products;  // [kinds][pairs], added to
};

}  // namespace coterie
