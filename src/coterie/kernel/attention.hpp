// Attention of some queries over all steps of one sample, head by head:
//
//   P = softmax(q k^T / sqrt(d)),   out = P v
#pragma once

#include <cmath>

#include "channels.hpp"
#include "loss.hpp"
#include "transpose.hpp"

namespace coterie {

// Rows of one sample: queries, keys and values of all heads side by side.
template <class T>
struct AttentionRows {
    T* q;
    long q_row;
    T *k, *v;
    long kv_row;
};

template <class T>
class Attention {
   public:
    Attention(long width, long heads, long steps, long queries)
        : heads_(heads),
          depth_(width / heads),
          steps_(steps),
          queries_(queries),
          keys_(round_up(steps, kLanes<T>)),
          columns_(round_up(depth_, kLanes<T>)),
          scale_(T(1) / std::sqrt(T(depth_))),
          turned_(depth_ * keys_),
          scaled_(queries * columns_),
          found_(std::max(queries, steps) * columns_),
          slopes_(queries * keys_) {}

    long probabilities() const { return heads_ * queries_ * keys_; }  // values that a sample keeps for the way back

    void forward(AttentionRows<T> rows, T* kept, T* out, long out_row) {
        for (long h = 0; h < heads_; h++, kept += queries_ * keys_) {
            const long at = h * depth_;
            turn(rows.k + at, rows.kv_row);
            scale_queries(rows.q + at, rows.q_row);
            product<T>(scaled_.data(), columns_, queries_, {turned_.data(), keys_, keys_}, depth_, kept, keys_);
            for (long i = 0; i < queries_; i++) softmax_row<T>(kept + i * keys_, steps_, kept + i * keys_);
            product<T>(kept, keys_, queries_, {rows.v + at, rows.kv_row, columns_}, steps_, found_.data(), columns_);
            put(queries_, T(1), out + at, out_row);
        }
    }

    // `rows` as they were in `forward`, and their gradients.
    void backward(AttentionRows<T> rows, const T* kept, const T* dout, long out_row, AttentionRows<T> gradients) {
        for (long h = 0; h < heads_; h++, kept += queries_ * keys_) {
            const long at = h * depth_;
            turn(rows.v + at, rows.kv_row);
            product<T>(dout + at, out_row, queries_, {turned_.data(), keys_, keys_}, depth_, slopes_.data(), keys_);
            through_softmax(kept);
            add_columns(kept, {dout + at, out_row, columns_});
            put(steps_, T(1), gradients.v + at, gradients.kv_row);
            scale_queries(rows.q + at, rows.q_row);
            add_columns(slopes_.data(), {scaled_.data(), columns_, columns_});
            put(steps_, T(1), gradients.k + at, gradients.kv_row);
            product<T>(slopes_.data(), keys_, queries_, {rows.k + at, rows.kv_row, columns_}, steps_, found_.data(), columns_);
            put(queries_, scale_, gradients.q + at, gradients.q_row);
        }
    }

   private:
    void turn(const T* from, long row) {
        transpose<T>([&](long j) { return from + j * row; }, steps_, depth_, turned_.data(), keys_, true);
    }

    void scale_queries(const T* q, long row) {
        for (long i = 0; i < queries_; i++)
            for (long c = 0; c < columns_; c += kLanes<T>) store(scaled_.data() + i * columns_ + c, load(q + i * row + c) * scale_);
    }

    // found[step] = sum over queries of left[query][step] * right[query]
    void add_columns(const T* left, Right<T> right) {
        std::memset(found_.data(), 0, size_t(steps_ * columns_) * sizeof(T));
        product_of_columns<T>(left, keys_, steps_, right, queries_, found_.data(), columns_);
    }

    void put(long rows, T factor, T* to, long to_row) const {
        for (long i = 0; i < rows; i++)
            for (long c = 0; c < depth_; c += kLanes<T>)
                store_first(to + i * to_row + c, load(found_.data() + i * columns_ + c) * factor, depth_ - c);
    }

    // From the gradient of the probabilities to that of the scores.
    void through_softmax(const T* kept) {
        for (long i = 0; i < queries_; i++) {
            const T* p = kept + i * keys_;
            T* slope = slopes_.data() + i * keys_;
            Vec<T> sums{};
            for (long c = 0; c < keys_; c += kLanes<T>) sums += load(p + c) * load(slope + c);
            const T mean = sum_lanes<T>(sums);
            for (long c = 0; c < keys_; c += kLanes<T>) store(slope + c, load(p + c) * (load(slope + c) - mean));
        }
    }

    long heads_, depth_, steps_, queries_, keys_, columns_;
    T scale_;
    Buffer<T> turned_, scaled_, found_, slopes_;
};

}  // namespace coterie
