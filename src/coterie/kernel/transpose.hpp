// Turning rows into columns, a square of one vector's side at a time, in registers; and summing lanes on the way.
#pragma once

#include <algorithm>
#include <utility>

#include "vector.hpp"

namespace coterie {

// Exchanges, for all lanes with the bit `Step` set, the upper row's lane i with the lower row's lane i - Step.
template <class T, int Step, int... I>
COTERIE_INLINE void exchange(Vec<T>& upper, Vec<T>& lower, std::integer_sequence<int, I...>) {
    constexpr int L = kLanes<T>;
#if defined(__clang__) || __GNUC__ >= 12
    Vec<T> first = __builtin_shufflevector(upper, lower, (I & Step ? L + I - Step : I)...);
    Vec<T> second = __builtin_shufflevector(upper, lower, (I & Step ? L + I : I + Step)...);
#else
    Vec<T> first = __builtin_shuffle(upper, lower, Mask<T>{(I & Step ? L + I - Step : I)...});
    Vec<T> second = __builtin_shuffle(upper, lower, Mask<T>{(I & Step ? L + I : I + Step)...});
#endif
    upper = first;
    lower = second;
}

template <class T, int Step = 1>
COTERIE_INLINE void transpose_square(Vec<T> (&rows)[kLanes<T>]) {
    if constexpr (Step < kLanes<T>) {
        for (int i = 0; i < kLanes<T>; i++)
            if (!(i & Step)) exchange<T, Step>(rows[i], rows[i + Step], std::make_integer_sequence<int, kLanes<T>>{});
        transpose_square<T, Step * 2>(rows);
    }
}

// Lane i of the result is the sum of all lanes of vector i (mod Count, a power of two up to the number of lanes). Many at
// once cost a quarter of what they cost one by one: at every step two vectors become one.
template <class T, int Count, int Step = 1>
COTERIE_INLINE Vec<T> sums_of_lanes(Vec<T>* vectors) {
    constexpr auto kAll = std::make_integer_sequence<int, kLanes<T>>{};
    if constexpr (Count > 1) {
        for (int i = 0; i < Count / 2; i++) {
            exchange<T, Step>(vectors[2 * i], vectors[2 * i + 1], kAll);
            vectors[i] = vectors[2 * i] + vectors[2 * i + 1];
        }
        return sums_of_lanes<T, Count / 2, Step * 2>(vectors);
    } else if constexpr (Step < kLanes<T>) {
        Vec<T> other = vectors[0];
        exchange<T, Step>(vectors[0], other, kAll);
        vectors[0] += other;
        return sums_of_lanes<T, 1, Step * 2>(vectors);
    } else {
        return vectors[0];
    }
}

// sums[i] = the sum of all lanes of vector i, for i < Count; whole vectors are written. The vectors are used up.
template <class T, int Count>
COTERIE_INLINE void sum_lanes_of_all(Vec<T>* vectors, T* sums) {
    constexpr int L = kLanes<T>;
    if constexpr (Count >= L) {
        store(sums, sums_of_lanes<T, L>(vectors));
        if constexpr (Count > L) sum_lanes_of_all<T, Count - L>(vectors + L, sums + L);
    } else {
        constexpr int kSquare = Count > 4 ? (Count > 8 ? 16 : 8) : (Count > 2 ? 4 : Count);
        Vec<T> padded[kSquare] = {};
        for (int i = 0; i < Count; i++) padded[i] = vectors[i];
        store(sums, sums_of_lanes<T, kSquare>(padded));
    }
}

// to[k * step + j] = row(j)[k] for j < rows and k < count; touches nothing else on either side, but for reading whole vectors
// where it may.
template <class T, class Row>
void transpose(Row&& row, long rows, long count, T* to, long step, bool may_overread = false) {
    constexpr int L = kLanes<T>;
    for (long j = 0; j < rows; j += L) {
        const T* from[L];
        for (int i = 0; i < L; i++) from[i] = row(std::min(j + i, rows - 1));
        if (count < L && !may_overread) {
            for (long k = 0; k < count; k++)
                for (long i = 0; i < std::min<long>(L, rows - j); i++) to[k * step + j + i] = from[i][k];
            continue;
        }
        for (long next = 0; next < count; next += L) {
            long k = std::max<long>(0, std::min(next, count - L));  // the last square overlaps the one before it
            Vec<T> square[L];
            for (int i = 0; i < L; i++) square[i] = load(from[i] + k);
            transpose_square<T>(square);
            for (int i = 0; i < std::min<long>(L, count); i++) store_first(to + (k + i) * step + j, square[i], rows - j);
        }
    }
}

}  // namespace coterie
