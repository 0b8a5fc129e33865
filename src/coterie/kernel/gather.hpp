// Samples out of the caller's data set into the layout a network wants.
//
// Images may stay bytes: `table[channel][byte]` holds the normalised value, made by the Python side with torch itself,
// so that the result is exactly that of normalising first.
#pragma once

#include <cstdint>

#include "maps.hpp"
#include "transpose.hpp"

namespace coterie {

template <class T>
struct Samples {
    const T* values = nullptr;       // [sample][value], or
    const uint8_t* bytes = nullptr;  // [sample][value] with
    const T* table = nullptr;        // [channel][256]
    long table_channels = 1;         // 1: the same table for every channel
    MapShape shape{1, 1, 1};
    const int64_t* domains = nullptr;  // [sample], where the network has some

    COTERIE_INLINE const T* table_of(long channel) const { return table + (table_channels > 1 ? channel * 256 : 0); }
};

// to[sample * row + value]
template <class T>
void gather_rows(const Samples<T>& from, const int64_t* order, long samples, T* to, long row) {
    long size = from.shape.size(), pixels = from.shape.height * from.shape.width;
    for (long j = 0; j < samples; j++, to += row) {
        if (from.values) {
            std::memcpy(to, from.values + order[j] * size, size_t(size) * sizeof(T));
            continue;
        }
        const uint8_t* bytes = from.bytes + order[j] * size;
        for (long c = 0; c < from.shape.channels; c++) {
            const T* table = from.table_of(c);
            for (long i = c * pixels; i < (c + 1) * pixels; i++) to[i] = table[bytes[i]];
        }
    }
}

// to(channel, row, column)[sample]
template <class T>
void gather_map(const Samples<T>& from, const int64_t* order, long samples, Map<T> to) {
    long size = from.shape.size(), width = from.shape.width;
    for (long c = 0; c < from.shape.channels; c++)
        for (long y = 0; y < from.shape.height; y++) {
            long start = (c * from.shape.height + y) * width;
            T* out = to.at(c, y);
            if (from.values) {
                auto row = [&](long j) { return from.values + order[j] * size + start; };
                transpose<T>(row, samples, width, out, to.column);
                continue;
            }
            const T* table = from.table_of(c);
            for (long j = 0; j < samples; j++) {
                const uint8_t* in = from.bytes + order[j] * size + start;
                for (long x = 0; x < width; x++) out[x * to.column + j] = table[in[x]];
            }
        }
}

// The way back: to[sample][channel][row][column].
template <class T>
void scatter_map(Map<T> from, const MapShape& shape, long samples, T* to) {
    for (long c = 0; c < shape.channels; c++)
        for (long y = 0; y < shape.height; y++) {
            const T* in = from.at(c, y);
            T* out = to + (c * shape.height + y) * shape.width;
            for (long j = 0; j < samples; j++)
                for (long x = 0; x < shape.width; x++) out[j * shape.size() + x] = in[x * from.column + j];
        }
}

}  // namespace coterie
