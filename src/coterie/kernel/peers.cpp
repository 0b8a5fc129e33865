// What peers make of each other's models: means of some of them, and products of the ways they have changed.
//
// Models are rows. Columns are walked in strips of all rows that stay in the second-level cache, so that a model is read
// from memory once, however many peers take it.
#include <algorithm>

#include "calls.hpp"

namespace coterie {

constexpr long kStrip = 512;   // columns
constexpr int kTogether = 8;   // vectors of a mean that are summed at once
constexpr int kPartners = 4;   // rows that are multiplied with the same row at once
constexpr int kChains = 2;     // sums per pair that do not wait for each other

// out[first .. first + Count vectors) = the sum of the members' rows, scaled.
template <int Count, class T>
COTERIE_INLINE void mean_of_vectors(const T* rows, long stride, const int64_t* member, const int64_t* end, T scale, T* out) {
    Vec<T> sum[Count];
    for (int v = 0; v < Count; v++) sum[v] = load(rows + *member * stride + v * kLanes<T>);
    while (++member != end)
        for (int v = 0; v < Count; v++) sum[v] += load(rows + *member * stride + v * kLanes<T>);
    for (int v = 0; v < Count; v++) store(out + v * kLanes<T>, sum[v] * scale);
}

template <class T>
void mean_of_strip(const T* rows, long stride, const int64_t* member, const int64_t* end, long width, T* out) {
    const T scale = T(1) / T(end - member);
    long column = 0;
    for (; column + kTogether * kLanes<T> <= width; column += kTogether * kLanes<T>)
        mean_of_vectors<kTogether>(rows + column, stride, member, end, scale, out + column);
    for (; column + kLanes<T> <= width; column += kLanes<T>)
        mean_of_vectors<1>(rows + column, stride, member, end, scale, out + column);
    for (; column < width; column++) {
        T sum = rows[*member * stride + column];
        for (const int64_t* other = member + 1; other != end; other++) sum += rows[*other * stride + column];
        out[column] = sum * scale;
    }
}

template <class T>
Status means(const MeansCall& call) {
    const T* rows = static_cast<const T*>(call.rows);
    T* out = static_cast<T*>(call.out);
    for (long column = call.first_column; column < call.last_column; column += kStrip) {
        const long width = std::min<long>(kStrip, call.last_column - column);
        const int64_t* member = call.members;
        for (long mean = 0; mean < call.means; mean++) {
            const int64_t* end = call.members + call.ends[mean];
            mean_of_strip<T>(rows + column, call.stride, member, end, width, out + mean * call.width + column);
            member = end;
        }
    }
    return done;
}

// end - begin of one row, filled up with zeros to whole groups of vectors.
template <class T>
COTERIE_INLINE void difference(const T* end, const T* begin, long width, long padded, T* out) {
    long column = 0;
    for (; column + kLanes<T> <= width; column += kLanes<T>) store(out + column, load(end + column) - load(begin + column));
    for (; column < width; column++) out[column] = end[column] - begin[column];
    for (; column < padded; column++) out[column] = T(0);
}

// Adds the products of one row with Count others. A pair's sum does not depend on which others stand beside it.
template <int Count, class T>
COTERIE_INLINE void add_products(const T* strips, const T* row, const int64_t* partners, long padded, double* sums) {
    const T* other[Count];
    Vec<T> sum[Count][kChains] = {};
    for (int p = 0; p < Count; p++) other[p] = strips + partners[p] * kStrip;
    for (long column = 0; column < padded; column += kChains * kLanes<T>)
        for (int c = 0; c < kChains; c++) {
            const long place = column + c * kLanes<T>;
            const Vec<T> own = load(row + place);
            for (int p = 0; p < Count; p++) sum[p][c] += own * load(other[p] + place);
        }
    for (int p = 0; p < Count; p++) {
        Vec<T> whole = sum[p][0];
        for (int c = 1; c < kChains; c++) whole += sum[p][c];
        sums[p] += double(sum_lanes<T>(whole));
    }
}

template <class T>
Status products(const ProductsCall& call) {
    const long kinds = call.kinds, count = call.row_count;
    const T* ends = static_cast<const T*>(call.ends);
    Buffer<T> strips(kinds * count * kStrip);
    for (long column = call.first_column; column < call.last_column; column += kStrip) {
        const long width = std::min<long>(kStrip, call.last_column - column);
        const long padded = round_up(width, kChains * kLanes<T>);
        for (long i = 0; i < count; i++) {
            const T* end = ends + call.rows[i] * call.end_stride + column;
            for (long kind = 0; kind < kinds; kind++) {
                const T* begin = static_cast<const T*>(call.begins[kind]) + call.rows[i] * call.begin_strides[kind] + column;
                difference<T>(end, begin, width, padded, strips.data() + (kind * count + i) * kStrip);
            }
        }
        for (long kind = 0; kind < kinds; kind++) {
            const T* strip = strips.data() + kind * count * kStrip;
            double* sums = call.products + kind * call.pairs;
            long pair = 0;
            for (long i = 0; i < count; i++) {
                for_row_blocks<kPartners>(call.pair_ends[i] - pair, [&](auto size, long first) {
                    add_products<decltype(size)::value, T>(strip, strip + i * kStrip, call.partners + pair + first, padded,
                                                           sums + pair + first);
                });
                pair = call.pair_ends[i];
            }
        }
    }
    return done;
}

}  // namespace coterie

extern "C" int32_t coterie_means_float32(const coterie::MeansCall* call) {
    return coterie::guarded([&] { return coterie::means<float>(*call); });
}

extern "C" int32_t coterie_means_float64(const coterie::MeansCall* call) {
    return coterie::guarded([&] { return coterie::means<double>(*call); });
}

extern "C" int32_t coterie_products_float32(const coterie::ProductsCall* call) {
    return coterie::guarded([&] { return coterie::products<float>(*call); });
}

extern "C" int32_t coterie_products_float64(const coterie::ProductsCall* call) {
    return coterie::guarded([&] { return coterie::products<double>(*call); });
}
