// Buffers that are used again: what is large is not asked of the system in every step.
#pragma once

#include <utility>
#include <vector>

#include "vector.hpp"

namespace coterie {

template <class T>
class Memory {
   public:
    // At least so many values, with whatever is in them.
    void acquire(Buffer<T>& buffer, long size) {
        if (buffer.size() >= size) return;
        release(buffer);
        long best = -1;
        for (size_t i = 0; i < free_.size(); i++)
            if (free_[i].size() >= size && (best < 0 || free_[i].size() < free_[size_t(best)].size())) best = long(i);
        if (best < 0) {
            buffer.resize(size, false);
            return;
        }
        std::swap(buffer, free_[size_t(best)]);
        std::swap(free_[size_t(best)], free_.back());
        free_.pop_back();
    }

    void release(Buffer<T>& buffer) {
        if (buffer.size()) free_.push_back(std::move(buffer));
        buffer = Buffer<T>();
    }

    // Gives back to the system what is more than is kept from one client to the next.
    void trim() {
        long kept = 0;
        for (size_t i = 0; i < free_.size();) {
            kept += free_[i].size() * long(sizeof(T));
            if (kept <= kKeptBytes) {
                i++;
                continue;
            }
            kept -= free_[i].size() * long(sizeof(T));
            std::swap(free_[i], free_.back());
            free_.pop_back();
        }
    }

   private:
    static constexpr long kKeptBytes = 384L << 20;  // fresh pages cost about 5 % of a client's time
    std::vector<Buffer<T>> free_;
};

}  // namespace coterie
