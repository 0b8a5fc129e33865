// Dropout: which values of a step's samples stay, drawn by the Python side with torch itself, so that both paths drop the same.
#pragma once

#include "network.hpp"
#include "vector.hpp"

namespace coterie {

// The masks of one step, a byte (0 or 1) for each value: those of the trunk [value][sample], then those of every layer of the
// head [sample][value]. Without any, nothing is dropped. Behind the last mask there is room for a vector to overrun.
struct Masks {
    const uint8_t* data = nullptr;
    long samples = 0;

    // Of the value `value` of a map, for samples from `first` on.
    const uint8_t* in_trunk(const Dropout& layer, long value, long first) const {
        return data + (layer.before + value) * samples + first;
    }
    const uint8_t* in_head(long trunk, const Dropout& layer) const { return data + (trunk + layer.before) * samples; }
};

// What values are multiplied by: 0, or 1 / (1 - rate).
template <class T>
COTERIE_INLINE Vec<T> factors(const uint8_t* mask, const Dropout& layer) {
    Codes<T> codes;
    std::memcpy(&codes, mask, sizeof(codes));
    return __builtin_convertvector(codes, Vec<T>) * T(1 / (1 - layer.rate));
}

}  // namespace coterie
