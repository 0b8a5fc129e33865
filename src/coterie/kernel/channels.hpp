// Maps with the channels innermost, [sample][row][column][channel], and the product that convolutions on them are made of.
//
// Where a network normalises, adds or strides, this order serves better than samples innermost (maps.hpp): what belongs to a
// channel (a mean, a scale) is a vector beside the values, no vector is ever half empty, whatever the batch, and a stride moves a
// pointer. Channels are filled up with zeros to whole vectors; only the network's input may lie as it came.
#pragma once

#include <algorithm>

#include "linear.hpp"
#include "network.hpp"
#include "vector.hpp"

namespace coterie {

// The values of one layer for all samples of a batch: `step` values a pixel.
struct Layout {
    MapShape shape{1, 1, 1};
    long step = 0;

    long row() const { return shape.width * step; }
    long sample() const { return shape.height * row(); }
    long pixels() const { return shape.height * shape.width; }
};

constexpr int kProductRows = kManyRegisters ? 8 : 6;   // rows that are pointers of their own ...
constexpr int kColumnRows = kManyRegisters ? 12 : 6;  // ... and rows at distances that are known

// The right factor: rows of whole vectors.
template <class T>
struct Right {
    const T* data;
    long row, columns;
};

// out[i][n] (+)= sum over k of left(i, k) * right[k][n], for N vectors of columns; `left_from(first)` gives the left side from a
// row on.
template <class T, int Most, int N, bool Add, class Left>
COTERIE_INLINE void product_strip(Left&& left_from, long rows, const T* right, long right_row, long count, T* out, long out_row) {
    for_row_blocks<Most>(rows, [&](auto size, long first) {
        constexpr int R = decltype(size)::value;
        Vec<T> sums[R][N] = {};
        multiply_add<T>(sums, count, left_from(first), [&](long k) { return right + k * right_row; });
        for (int i = 0; i < R; i++)
            for (int j = 0; j < N; j++) {
                T* to = out + (first + i) * out_row + j * kLanes<T>;
                store(to, Add ? load(to) + sums[i][j] : sums[i][j]);
            }
    });
}

template <class T, int Most, bool Add, class Left>
COTERIE_INLINE void product_strips(Left&& left_from, long rows, Right<T> right, long count, T* out, long out_row) {
    constexpr long L = kLanes<T>;
    long column = 0;
    for (; column + 2 * L <= right.columns; column += 2 * L)
        product_strip<T, Most, 2, Add>(left_from, rows, right.data + column, right.row, count, out + column, out_row);
    if (column < right.columns)
        product_strip<T, Most, 1, Add>(left_from, rows, right.data + column, right.row, count, out + column, out_row);
}

// Rows of the left side are rows of memory.
template <class T, int Row>
void product_of_rows(const T* left, long rows, Right<T> right, long count, T* out, long out_row) {
    auto from = [&](long first) {
        return [own = left + first * Row](int i, long k) COTERIE_INLINE_LAMBDA { return own[i * Row + k]; };
    };
    product_strips<T, kColumnRows, false>(from, rows, right, count, out, out_row);
}

template <class T>
void product(const T* left, long left_row, long rows, Right<T> right, long count, T* out, long out_row) {
    // Where the distance is known when this is compiled, a row is no pointer: there are too few registers for them.
    switch (left_row) {
        case 16: return product_of_rows<T, 16>(left, rows, right, count, out, out_row);
        case 32: return product_of_rows<T, 32>(left, rows, right, count, out, out_row);
        case 64: return product_of_rows<T, 64>(left, rows, right, count, out, out_row);
        case 128: return product_of_rows<T, 128>(left, rows, right, count, out, out_row);
    }
    auto from = [&](long first) {
        return [own = left + first * left_row, left_row](int i, long k) COTERIE_INLINE_LAMBDA { return own[i * left_row + k]; };
    };
    product_strips<T, kProductRows, false>(from, rows, right, count, out, out_row);
}

// Rows of the left side are neighbours, `left_step` apart from one summand to the next: the gradient of weights.
template <class T>
void product_of_columns(const T* left, long left_step, long rows, Right<T> right, long count, T* out, long out_row) {
    auto from = [&](long first) {
        return [own = left + first, left_step](int i, long k) COTERIE_INLINE_LAMBDA { return own[k * left_step + i]; };
    };
    product_strips<T, kColumnRows, true>(from, rows, right, count, out, out_row);
}

}  // namespace coterie
