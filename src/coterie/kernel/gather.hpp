// Samples out of the caller's data set into the layout a network wants.
//
// Images may stay bytes: `table[channel][byte]` holds the normalised value, made by the Python side with torch itself,
// so that the result is exactly that of normalising first.
#pragma once

#include <cstdint>

#include "maps.hpp"

namespace coterie {

template <class T>
struct Samples {
    const T* values = nullptr;       // [sample][value], or
    const uint8_t* bytes = nullptr;  // [sample][value] with
    const T* table = nullptr;        // [channel][256]
    long table_channels = 1;         // 1: the same table for every channel
    MapShape shape{1, 1, 1};

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
            for (long j = 0; j < samples; j++) {
                if (from.values) {
                    const T* in = from.values + order[j] * size + start;
                    for (long x = 0; x < width; x++) out[x * to.column + j] = in[x];
                } else {
                    const uint8_t* in = from.bytes + order[j] * size + start;
                    const T* table = from.table_of(c);
                    for (long x = 0; x < width; x++) out[x * to.column + j] = table[in[x]];
                }
            }
        }
}

}  // namespace coterie
