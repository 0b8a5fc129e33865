// One LSTM layer over whole sequences, torch's gates i, f, g, o:
//
//   z = x W_ih + b_ih + h[t - 1] W_hh + b_hh,   c[t] = sigmoid(f) c[t - 1] + sigmoid(i) tanh(g),   h[t] = sigmoid(o) tanh(c[t])
//
// Rows are [step][sample]. The products of all steps with W_ih are one, those with W_hh go from step to step. Every gate has its
// own packed weights, so that a vector holds the same units in all four. Before the first step h and c are zero.
#pragma once

#include "dense.hpp"
#include "parameters.hpp"

namespace coterie {

template <class T>
class Lstm {
   public:
    Lstm(const SequenceLayer& shape, const Parameters<T>& parameters, long steps, long batch)
        : in_{shape.inputs, shape.outputs},
          own_{shape.outputs, shape.outputs},
          back_in_{4 * shape.outputs, shape.inputs},
          back_own_{4 * shape.outputs, shape.outputs},
          biased_(shape.biased),
          hidden_(shape.outputs),
          length_(own_.row_length()),
          batch_(batch),
          steps_(steps) {
        const std::vector<SequencePart> parts = shape.parts();
        for (size_t i = 0; i < parts.size(); i++) place_[i / 4][i % 4] = parameters.find(parts[i].parameter);
        const long rows = steps * batch, all = rows * length_ + kInputRows;
        for (Buffer<T>& gate : gates_) gate.resize(all, false);
        for (Buffer<T>* each : {&cells_, &tanhs_, &values_}) each->resize(all, false);
        turned_.resize(steps * turned_size(batch, hidden_));
        bias_.resize(4 * length_);
        carried_.resize(batch * length_);
        reached_.resize(batch * length_);
    }

    long length() const { return length_; }
    long hidden() const { return hidden_; }
    const T* values() const { return values_.data(); }  // h as rows
    const T* last(long samples) const { return values_.data() + (steps_ - 1) * samples * length_; }
    // h as a left factor.
    TurnedBlocks<T> turned(long samples) const { return {turned_.data(), turned_size(samples, hidden_), samples, steps_}; }

    void forward(TurnedBlocks<T> x, const T* weights) {
        const long samples = x.rows;
        for (long g = 0; g < 4; g++) {
            T* bias = bias_.data() + g * length_;
            for (long i = 0; i < length_ && biased_; i += kLanes<T>)
                store(bias + i, load(weights + place_[2][g] + i) + load(weights + place_[3][g] + i));
            turned_product<T>(in_, x, weights + place_[0][g], bias, gates_[g].data(), false);
        }
        for (long t = 0; t < steps_; t++) {
            for (long g = 0; g < 4 && t > 0; g++)
                turned_product<T>(own_, {turned_at(t - 1, samples), 0, samples, 1}, weights + place_[1][g], nullptr,
                                  gates_[g].data() + t * samples * length_, true);
            step(t, samples);
            turn_block<T>(values_.data() + t * samples * length_, length_, samples, hidden_, turned_at(t, samples));
        }
    }

    // From the gradient of h, as rows of all steps or of the last one alone, to that of the weights, and of the inputs, `dx`, if
    // that is wanted (rows). `x` are the inputs as rows.
    void backward(const T* dh, bool of_last, const T* x, long x_row, long samples, const T* weights, T* gradient, T* dx) {
        pack(weights, dx != nullptr);
        const long block = samples * length_;
        for (long t = steps_ - 1; t >= 0; t--) {
            const bool end = t == steps_ - 1;
            T* reached = reached_.data();
            if (!of_last || end)
                std::memcpy(reached, dh + (of_last ? 0 : t * block), size_t(block) * sizeof(T));
            else
                std::memset(reached, 0, size_t(block) * sizeof(T));
            if (!end)
                turned_product<T>(back_own_, {differences_at(t + 1, samples), 0, samples, 1}, back_own_weights_.data(), nullptr,
                                  reached, true);
            step_back(t, samples, end);
            turn_gates(t, samples);
        }
        sums_.make(in_, 4, x, x_row, [&](int g) { return gates_[g].data(); }, steps_ * samples,
                   [&](int g) { return gradient + place_[0][g]; });
        sums_.make(own_, 4, values_.data(), length_, [&](int g) { return gates_[g].data() + block; }, (steps_ - 1) * samples,
                   [&](int g) { return gradient + place_[1][g]; });
        for (long g = 0; g < 4 && biased_; g++) {
            sum_of_rows<T>(gates_[g].data(), length_, steps_ * samples, gradient + place_[2][g]);
            std::memcpy(gradient + place_[3][g], gradient + place_[2][g], size_t(length_) * sizeof(T));
        }
        if (dx)
            turned_product<T>(back_in_, {differences_.data(), turned_size(samples, 4 * hidden_), samples, steps_},
                              back_in_weights_.data(), nullptr, dx, false);
    }

    long input_length() const { return back_in_.row_length(); }  // of the rows of `dx`

   private:
    T* turned_at(long t, long samples) { return turned_.data() + t * turned_size(samples, hidden_); }
    T* differences_at(long t, long samples) { return differences_.data() + t * turned_size(samples, 4 * hidden_); }

    // The four gates are the features of one block.
    void turn_gates(long t, long samples) {
        const int tiles = blocks_of(samples, kSampleRows);
        T* to = differences_at(t, samples);
        for (int tile = 0; tile < tiles; tile++) {
            const long first = block_start(samples, tiles, tile), size = block_start(samples, tiles, tile + 1) - first;
            for (long g = 0; g < 4; g++, to += hidden_ * kSampleRows)
                turn_block<T>(gates_[g].data() + (t * samples + first) * length_, length_, size, hidden_, to);
        }
    }

    void pack(const T* weights, bool below) {
        if (!differences_.size()) {
            differences_.resize(steps_ * turned_size(batch_, 4 * hidden_));
            back_own_weights_.resize(back_own_.size());
            if (below) back_in_weights_.resize(back_in_.size());
        }
        for (long g = 0; g < 4; g++) {
            pack_back<T>(own_, weights + place_[1][g], back_own_, g * hidden_, back_own_weights_.data());
            if (below) pack_back<T>(in_, weights + place_[0][g], back_in_, g * hidden_, back_in_weights_.data());
        }
    }

    // From the sums of the gates to the cells and values of a step; the gates stay as they are behind their activations.
    void step(long t, long samples) {
        const long first = t * samples * length_, before = first - samples * length_;
        for (long i = 0; i < samples * length_; i += kLanes<T>) {
            Vec<T> in = logistic<T>(load(gates_[0].data() + first + i)), forget = logistic<T>(load(gates_[1].data() + first + i));
            Vec<T> made = hyperbolic_tangent<T>(load(gates_[2].data() + first + i)), out = logistic<T>(load(gates_[3].data() + first + i));
            Vec<T> cell = in * made;
            if (t > 0) cell += forget * load(cells_.data() + before + i);
            Vec<T> shown = hyperbolic_tangent<T>(cell);
            store(gates_[0].data() + first + i, in);
            store(gates_[1].data() + first + i, forget);
            store(gates_[2].data() + first + i, made);
            store(gates_[3].data() + first + i, out);
            store(cells_.data() + first + i, cell);
            store(tanhs_.data() + first + i, shown);
            store(values_.data() + first + i, out * shown);
        }
    }

    // From the gradient of h (`reached_`) and of c (`carried_`) to those of the gates' sums, which take the gates' places.
    void step_back(long t, long samples, bool end) {
        const long first = t * samples * length_, before = first - samples * length_;
        for (long i = 0; i < samples * length_; i += kLanes<T>) {
            Vec<T> in = load(gates_[0].data() + first + i), forget = load(gates_[1].data() + first + i);
            Vec<T> made = load(gates_[2].data() + first + i), out = load(gates_[3].data() + first + i);
            Vec<T> shown = load(tanhs_.data() + first + i), dh = load(reached_.data() + i);
            Vec<T> dc = dh * out * (T(1) - shown * shown);
            if (!end) dc += load(carried_.data() + i);
            Vec<T> earlier = t > 0 ? load(cells_.data() + before + i) : Vec<T>{};
            store(gates_[0].data() + first + i, dc * made * in * (T(1) - in));
            store(gates_[1].data() + first + i, dc * earlier * forget * (T(1) - forget));
            store(gates_[2].data() + first + i, dc * in * (T(1) - made * made));
            store(gates_[3].data() + first + i, dh * shown * out * (T(1) - out));
            store(carried_.data() + i, dc * forget);
        }
    }

    PackedLinear<T> in_, own_, back_in_, back_own_;
    bool biased_;
    long hidden_, length_, batch_, steps_;
    long place_[4][4] = {};  // of W_ih, W_hh, b_ih, b_hh of every gate in the packed order
    Buffer<T> gates_[4], cells_, tanhs_, values_, bias_, carried_, reached_;
    Buffer<T> turned_, differences_;  // h, and the gradients of the gates' sums, as left factors
    Buffer<T> back_in_weights_, back_own_weights_;
    WeightGradients<T> sums_;
};

}  // namespace coterie
