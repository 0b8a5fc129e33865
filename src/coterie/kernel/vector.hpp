// Vectors of the compiler (GCC and Clang vector extensions), so that any processor compiles; two intrinsics, masked stores and stores
// past the caches, where there are some.
//
// Everything above this file is written in terms of `Vec<T>` (one register full of T) and a handful of functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

#if defined(__AVX__)
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <sys/mman.h>
#endif

#if defined(COTERIE_SANITIZED)  // compiled once rather than at every place of use, which takes a fraction of the time
#define COTERIE_INLINE inline
#define COTERIE_INLINE_LAMBDA
#else
#define COTERIE_INLINE inline __attribute__((always_inline))
#define COTERIE_INLINE_LAMBDA __attribute__((always_inline))
#endif

namespace coterie {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

// How many accumulators fit beside their operands decides the shape of the register tiles
// (linear.hpp, tiles.hpp).
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr bool kManyRegisters = true;  // 32 vector registers
#else
constexpr bool kManyRegisters = false;  // 16
#endif

template <class T, int Bytes>
struct VectorOf {
    typedef T Value __attribute__((vector_size(Bytes)));
    typedef T InMemory __attribute__((vector_size(Bytes), aligned(sizeof(T)), may_alias));
};

template <class T>
struct IntegerLike;
template <>
struct IntegerLike<float> {
    using Type = int32_t;
};
template <>
struct IntegerLike<double> {
    using Type = int64_t;
};
template <class T>
using Integer = typename IntegerLike<T>::Type;

template <class T>
using Vec = typename VectorOf<T, kVectorBytes>::Value;

// A comparison of two vectors gives -1 or 0 in every lane; so does this type.
template <class T>
using Mask = typename VectorOf<Integer<T>, kVectorBytes>::Value;

// One small code (0 .. 3) per lane, stored as a byte each.
template <class T>
using Codes = typename VectorOf<uint8_t, kVectorBytes / int(sizeof(T))>::Value;

template <class T>
constexpr int kLanes = kVectorBytes / int(sizeof(T));

constexpr long round_up(long count, long multiple) {
    return (count + multiple - 1) / multiple * multiple;
}

template <class T>
COTERIE_INLINE Vec<T> load(const T* from) {
    return *reinterpret_cast<const typename VectorOf<T, kVectorBytes>::InMemory*>(from);
}

template <class T>
COTERIE_INLINE void store(T* to, Vec<T> value) {
    *reinterpret_cast<typename VectorOf<T, kVectorBytes>::InMemory*>(to) = value;
}

// The same for what is not read again soon: memory is not read before it is written. `to` must be a multiple of the vector's size.
template <class T>
COTERIE_INLINE void stream(T* to, Vec<T> value) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4)
        _mm512_stream_ps(to, __m512(value));
    else
        _mm512_stream_pd(to, __m512d(value));
#elif defined(__AVX__)
    if constexpr (sizeof(T) == 4)
        _mm256_stream_ps(to, __m256(value));
    else
        _mm256_stream_pd(to, __m256d(value));
#else
    store(to, value);
#endif
}

template <class T>
COTERIE_INLINE Vec<T> broadcast(T value) {
    return Vec<T>{} + value;
}

// All bits set in the first `count` lanes.
template <class T>
COTERIE_INLINE Mask<T> first_lanes(long count) {
    Mask<T> lane{};
    for (int i = 0; i < kLanes<T>; i++) lane[i] = i;
    return lane < Integer<T>(count);
}

// The first `count` values, zero elsewhere. Reads a whole vector: every buffer has slack behind its end.
template <class T>
COTERIE_INLINE Vec<T> load_first(const T* from, long count) {
    return first_lanes<T>(count) ? load(from) : Vec<T>{};
}

// Writes the first `count` lanes and touches nothing behind them.
template <class T>
COTERIE_INLINE void store_first(T* to, Vec<T> value, long count) {
    if (count >= kLanes<T>) {
        store(to, value);
        return;
    }
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4)
        _mm512_mask_storeu_ps(to, __mmask16((1u << count) - 1), __m512(value));
    else
        _mm512_mask_storeu_pd(to, __mmask8((1u << count) - 1), __m512d(value));
#else
    T lanes[kLanes<T>];
    store(lanes, value);
    const T* from = lanes;
    for (long piece = kLanes<T> / 2; piece > 0; piece /= 2)
        if (count & piece) {
            std::memcpy(to, from, size_t(piece) * sizeof(T));
            to += piece;
            from += piece;
        }
#endif
}

// The sum of all lanes, as a tree of halves: short chains, and the same order everywhere. Halves are taken from a copy: a vector
// whose own address is taken would be kept in memory by the loop that made it.
template <class T>
COTERIE_INLINE T sum_lanes(Vec<T> value) {
    T lanes[kLanes<T>];
    store(lanes, value);
    for (int half = kLanes<T> / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    return lanes[0];
}

// An array of zeros (if nothing else is asked for) on a cache line, with a cache line of slack on either side for loads that overrun.
template <class T>
class Buffer {
   public:
    Buffer() = default;
    explicit Buffer(long count) { resize(count); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    Buffer(Buffer&& other) noexcept : block_(other.block_), count_(other.count_) { other.block_ = nullptr; }
    Buffer& operator=(Buffer&& other) noexcept {
        std::swap(block_, other.block_);
        std::swap(count_, other.count_);
        return *this;
    }
    ~Buffer() { std::free(block_); }

    void resize(long count, bool zeros = true) {
        std::free(block_);
        block_ = nullptr;
        count_ = count;
        size_t bytes = round_up(long(size_t(count) * sizeof(T)), kSlack) + 3 * kSlack;
        const bool is_large = bytes >= size_t(2 * kLargePage);
        if (is_large) bytes = size_t(round_up(long(bytes), kLargePage));
        block_ = static_cast<char*>(std::aligned_alloc(is_large ? kLargePage : kSlack, bytes));
        if (!block_) throw std::bad_alloc();
#if defined(__linux__)
        if (is_large) madvise(block_, bytes, MADV_HUGEPAGE);  // fewer pages to ask for and to look up; a wish, not a need
#endif
        if (zeros) std::memset(block_, 0, bytes);
    }
    T* data() { return reinterpret_cast<T*>(block_ + kSlack); }
    const T* data() const { return reinterpret_cast<const T*>(block_ + kSlack); }
    long size() const { return count_; }

   private:
    static constexpr long kSlack = 64, kLargePage = 2L << 20;
    char* block_ = nullptr;
    long count_ = 0;
};

// Calls `body` with `size` (1 .. Most) as a compile-time constant: a register tile must know its height.
template <int Most, int Size = Most, class Body>
COTERIE_INLINE void with_constant(int size, Body&& body) {
    if constexpr (Size > 0) {
        if (size == Size)
            body(std::integral_constant<int, Size>{});
        else
            with_constant<Most, Size - 1>(size, body);
    }
}

inline int blocks_of(long rows, long most) { return int((rows + most - 1) / most); }

// The first row of block `index` when `rows` are shared out evenly over `blocks`.
inline long block_start(long rows, int blocks, int index) {
    long small = rows / blocks, larger = rows % blocks;
    return index * small + (index < larger ? index : larger);
}

// Calls `body(size, first)` for blocks of at most `Most` rows, all about equally large, `size` a compile-time constant.
template <int Most, class Body>
COTERIE_INLINE void for_row_blocks(long rows, Body&& body) {
    int blocks = blocks_of(rows, Most);
    for (int block = 0; block < blocks; block++) {
        long first = block_start(rows, blocks, block);
        with_constant<Most>(int(block_start(rows, blocks, block + 1) - first), [&](auto size) { body(size, first); });
    }
}

}  // namespace coterie
