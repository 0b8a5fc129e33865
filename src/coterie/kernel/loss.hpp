// The two losses on rows of outputs, with their gradients.
#pragma once

#include <cmath>
#include <limits>

#include "activation.hpp"
#include "vector.hpp"

namespace coterie {

// Softmax of one row of logits, in place of `probabilities`; returns log(sum of exponentials) + maximum.
template <class T>
T softmax_row(const T* logits, long classes, T* probabilities) {
    T largest = logits[0];
    for (long c = 1; c < classes; c++) largest = logits[c] > largest ? logits[c] : largest;
    Vec<T> sums{};
    for (long c = 0; c < classes; c += kLanes<T>) {
        Mask<T> real = first_lanes<T>(classes - c);
        Vec<T> e = exponential<T>(load(logits + c) - largest);
        e = real ? e : Vec<T>{};
        store(probabilities + c, e);
        sums += e;
    }
    T sum = sum_lanes<T>(sums);
    for (long c = 0; c < classes; c += kLanes<T>) store(probabilities + c, load(probabilities + c) / sum);
    return std::log(sum) + largest;
}

// One sample's cross-entropy; `gradient` (may be null) receives (softmax - one-hot) * scale.
template <class T>
T cross_entropy(const T* logits, long classes, int64_t label, T scale, T* gradient, T* scratch) {
    T* probabilities = gradient ? gradient : scratch;
    T loss = softmax_row<T>(logits, classes, probabilities) - logits[label];
    if (gradient) {
        for (long c = 0; c < classes; c += kLanes<T>) store(gradient + c, load(gradient + c) * scale);
        gradient[label] -= scale;
    }
    return loss;
}

// One sample's mean of squared differences; `gradient` (may be null) receives 2 (z - target) * scale / outputs.
template <class T>
T squared_error(const T* z, const T* target, long outputs, T scale, T* gradient) {
    double sum = 0;
    for (long o = 0; o < outputs; o++) {
        T difference = z[o] - target[o];
        sum += double(difference * difference);
        if (gradient) gradient[o] = difference * (2 * scale / T(outputs));
    }
    return T(sum / double(outputs));
}

// The class with the largest logit, the first of equals; a NaN is the largest, as in torch.
template <class T>
long largest_class(const T* logits, long classes) {
    long best = 0;
    for (long c = 1; c < classes; c++)
        if (logits[best] == logits[best] && (logits[c] > logits[best] || logits[c] != logits[c])) best = c;
    return best;
}

}  // namespace coterie
