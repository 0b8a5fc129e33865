// 2x2 max-pooling with stride 2, average pooling of fields that touch, and the way back.
//
// As torch: the first of equal values wins, and a NaN wins over everything before it. Instead of the four values, one
// byte per output is kept: the position 0 .. 3 of the winner.
#pragma once

#include "activation.hpp"
#include "maps.hpp"

namespace coterie {

template <class T>
COTERIE_INLINE void challenge(Vec<T>& best, Mask<T>& position, Vec<T> value, int place) {
    Mask<T> wins = (value > best) | (value != value);
    best = wins ? value : best;
    position = wins ? Mask<T>{} + Integer<T>(place) : position;
}

// One row of outputs from two rows of inputs (`upper`, `lower`: columns of `samples` values).
template <class T>
void pool_row(const T* upper, const T* lower, long width, long samples, Activation activation, T* out, long out_column,
              uint8_t* winners) {
    constexpr long L = kLanes<T>;
    for (long x = 0; x < width; x++) {
        const T *u = upper + 2 * x * samples, *l = lower + 2 * x * samples;
        for (long j = 0; j < samples; j += L) {
            Vec<T> best = load(u + j);
            Mask<T> position{};
            challenge<T>(best, position, load(u + samples + j), 1);
            challenge<T>(best, position, load(l + j), 2);
            challenge<T>(best, position, load(l + samples + j), 3);
            Codes<T> codes = __builtin_convertvector(position, Codes<T>);
            std::memcpy(winners + x * samples + j, &codes, sizeof(codes));  // its rows have slack
            // Columns that touch are written in whole vectors: what runs over is overwritten by the next column.
            bool whole = out_column == samples && (width - x) * samples - j >= L;
            store_first(out + x * out_column + j, activate<T>(best, activation), whole ? L : samples - j);
        }
    }
}

// Sends each gradient to the winner of its 2x2 field; writes all four positions of every field.
template <class T>
void unpool_row(const T* gradient, long gradient_column, const T* value, long value_column, const uint8_t* winners,
                long width, long samples, Activation activation, T* upper, T* lower, long column) {
    constexpr long L = kLanes<T>;
    for (long x = 0; x < width; x++) {
        T *u = upper + 2 * x * column, *l = lower + 2 * x * column;
        // Backwards, and in whole vectors: what runs over a column's end is overwritten by the start of the next.
        for (long j = (samples - 1) / L * L; j >= 0; j -= L) {
            Codes<T> codes;
            std::memcpy(&codes, winners + x * samples + j, sizeof(codes));
            Mask<T> position = __builtin_convertvector(codes, Mask<T>);
            Vec<T> g = through_activation<T>(load(gradient + x * gradient_column + j), load(value + x * value_column + j),
                                             activation);
            long to_row_end = 2 * (width - x) * column - j;
            long left_lanes = to_row_end >= L ? L : samples - j, right_lanes = to_row_end - column >= L ? L : samples - j;
            store_first(u + j, position == 0 ? g : Vec<T>{}, left_lanes);
            store_first(l + j, position == 2 ? g : Vec<T>{}, left_lanes);
            store_first(u + column + j, position == 1 ? g : Vec<T>{}, right_lanes);
            store_first(l + column + j, position == 3 ? g : Vec<T>{}, right_lanes);
        }
    }
}

// One row of means, of fields from row `y` of a channel on.
template <class T>
void average_row(Map<T> in, long channel, long y, const TrunkStage& stage, long samples, T* out, long out_column) {
    T count = T(stage.average_height * stage.average_width);
    for (long x = 0; x < stage.out.width; x++)
        for (long j = 0; j < samples; j += kLanes<T>) {
            Vec<T> sum{};
            for (long r = 0; r < stage.average_height; r++)
                for (long k = 0; k < stage.average_width; k++)
                    sum += load(in.at(channel, y + r, x * stage.average_width + k) + j);
            store_first(out + x * out_column + j, sum / count, samples - j);
        }
}

// Shares each gradient out among the values of its field; what no field has keeps the zeros it began with.
template <class T>
void spread_row(const T* gradient, long gradient_column, const TrunkStage& stage, long samples, Map<T> to, long channel, long y) {
    T count = T(stage.average_height * stage.average_width);
    for (long x = 0; x < stage.out.width; x++)
        for (long j = 0; j < samples; j += kLanes<T>) {
            Vec<T> share = load(gradient + x * gradient_column + j) / count;
            for (long r = 0; r < stage.average_height; r++)
                for (long k = 0; k < stage.average_width; k++)
                    store_first(to.at(channel, y + r, x * stage.average_width + k) + j, share, samples - j);
        }
}

}  // namespace coterie
