// Feature maps in memory: [channel][row][column][sample], the samples of a block innermost.
//
// A vector then holds neighbouring samples (and columns, where a block is narrower than a vector), so that every loop
// over a map is a vector loop without shuffles. Columns of zeros at both sides stand for a convolution's padding.
#pragma once

#include "network.hpp"
#include "vector.hpp"

namespace coterie {

template <class T>
struct Map {
    T* data = nullptr;  // channel 0, row 0, column 0 (behind the left border)
    long channel = 0, row = 0, column = 0;  // steps

    T* at(long c, long y, long x = 0) const { return data + c * channel + y * row + x * column; }
};

template <class T>
struct MapLayout {
    long left = 0, channel = 0, row = 0, column = 0, size = 0;

    MapLayout() = default;
    MapLayout(const MapShape& shape, long samples, long left_border, long right_border)
        : left(left_border * samples), column(samples) {
        row = (shape.width + left_border + right_border) * samples;
        channel = row * shape.height;
        size = channel * shape.channels;
    }
    Map<T> view(T* memory) const { return {memory + left, channel, row, column}; }
};

}  // namespace coterie
