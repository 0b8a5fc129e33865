// 3x3 convolutions with stride 1 by Winograd's F(2x2, 3x3) on maps with the channels innermost.
//
// A tile of 2x2 outputs needs 4x4 inputs. Both kernel and inputs are brought into another basis, by additions alone for the inputs,
// in which a convolution is 16 products of matrices: 16 multiplications a tile and pair of channels instead of 36. The way back is
// the exact transpose of every step, so the gradient is that of what was computed:
//
//   U = G g G'     V = B' d B     M[k] = V[k] U[k], k = 0 .. 15     y = A' M A
//   dM = A dy A'   dU[k] = V[k]' dM[k]   dV[k] = dM[k] U[k]'   dd = B dV B'   dg = G' dU G
#pragma once

#include <cstring>

#include "channels.hpp"
#include "graph.hpp"
#include "transpose.hpp"

namespace coterie {

template <class T>
class Winograd {
   public:
    static bool fits(const Node& node, long in_step) {
        return node.work == Work::convolution && node.kernel_height == 3 && node.kernel_width == 3 && node.stride_height == 1 && node.stride_width == 1 &&
               in_step % kLanes<T> == 0 && node.in.channels >= kLanes<T> / 2;
    }

    Winograd(const Node& node, const Layout& in, const Layout& out)
        : node_(node), in_(in), out_(out), tile_rows_((out.shape.height + 1) / 2), tile_columns_((out.shape.width + 1) / 2) {
        const bool is_wide = in.step * out.step >= kWide;
        chunk_ = std::max<long>(1, (is_wide ? kWideTiles : kChunkTiles) / tile_columns_);
        group_ = std::max<long>(1, chunk_ / tile_rows_);
        long tiles = chunk_ * tile_columns_;
        values_.resize(16 * tiles * in.step);
        sums_.resize(16 * tiles * out.step);
        kernel_.resize(16 * in.shape.channels * out.step);
        zeros_.resize(std::max(in.row(), out.row()));
    }

    // How many samples make full chunks.
    long group() const { return group_; }

    // `weights` lie as [input][kernel row][kernel column][output].
    void pack(const T* weights, bool for_backward) {
        long channels = in_.shape.channels, outputs = out_.shape.channels;
        for (long c = 0; c < channels; c++)
            for (long o = 0; o < outputs; o += kLanes<T>) {
                Vec<T> rows[4][3], all[4];
                for (int x = 0; x < 3; x++) {
                    Vec<T> column[4];
                    auto at = [&](int y) { return load_first(weights + (c * 9 + 3 * y + x) * outputs + o, outputs - o); };
                    to_basis(at(0), at(1), at(2), column);
                    for (int k = 0; k < 4; k++) rows[k][x] = column[k];
                }
                for (int k = 0; k < 4; k++) {
                    to_basis(rows[k][0], rows[k][1], rows[k][2], all);
                    for (int l = 0; l < 4; l++) store(kernel_.data() + ((4 * k + l) * channels + c) * out_.step + o, all[l]);
                }
            }
        if (!for_backward) return;
        if (!turned_kernel_.size()) turned_kernel_.resize(16 * outputs * in_.step);
        for (int k = 0; k < 16; k++)
            transpose<T>([&](long c) { return kernel_.data() + (k * channels + c) * out_.step; }, channels, outputs,
                         turned_kernel_.data() + k * outputs * in_.step, in_.step, true);
    }

    void forward(const T* in, const T* bias, T* out, long samples) {
        for_chunks(samples, [&](long first, long rows) {
            long tiles = rows * tile_columns_;
            for (long r = 0; r < rows; r++) transform_inputs(in, first + r, r * tile_columns_, tiles);
            for (int k = 0; k < 16; k++)
                product<T>(values_.data() + k * tiles * in_.step, in_.step, tiles,
                                  {kernel_.data() + k * in_.shape.channels * out_.step, out_.step, out_.step},
                                  in_.shape.channels, sums_.data() + k * tiles * out_.step, out_.step);
            for (long r = 0; r < rows; r++) write_outputs(out, bias, first + r, r * tile_columns_, tiles);
        });
    }

    void begin_gradient() {
        if (!kernel_gradient_.size()) kernel_gradient_.resize(kernel_.size());
        std::memset(kernel_gradient_.data(), 0, size_t(kernel_.size()) * sizeof(T));
    }

    // Adds to the kernel's gradient, and to that of the input where one is wanted.
    void backward(const T* in, const T* dz, T* in_gradient, long samples) {
        for_chunks(samples, [&](long first, long rows) {
            long tiles = rows * tile_columns_, channels = in_.shape.channels, outputs = out_.shape.channels;
            for (long r = 0; r < rows; r++) {
                transform_inputs(in, first + r, r * tile_columns_, tiles);
                transform_gradients(dz, first + r, r * tile_columns_, tiles);
            }
            for (int k = 0; k < 16; k++) {
                T* values = values_.data() + k * tiles * in_.step;
                const T* sums = sums_.data() + k * tiles * out_.step;
                product_of_columns<T>(values, in_.step, channels, {sums, out_.step, out_.step}, tiles,
                                      kernel_gradient_.data() + k * channels * out_.step, out_.step);
                if (in_gradient)
                    product<T>(sums, out_.step, tiles,
                                      {turned_kernel_.data() + k * outputs * in_.step, in_.step, in_.step}, outputs, values,
                                      in_.step);
            }
            for (long r = 0; r < rows && in_gradient; r++) add_input_gradients(in_gradient, first + r, r * tile_columns_, tiles);
        });
    }

    // Adds the gradient of the weights, which lie as in `pack`.
    void end_gradient(T* gradient) const {
        long channels = in_.shape.channels, outputs = out_.shape.channels;
        for (long c = 0; c < channels; c++)
            for (long o = 0; o < outputs; o += kLanes<T>) {
                Vec<T> rows[3][4], row[3];
                const T* from = kernel_gradient_.data() + c * out_.step + o;
                for (int x = 0; x < 4; x++) {
                    Vec<T> u[4], column[3];
                    for (int k = 0; k < 4; k++) u[k] = load(from + (4 * k + x) * channels * out_.step);
                    from_basis(u, column);
                    for (int k = 0; k < 3; k++) rows[k][x] = column[k];
                }
                for (int y = 0; y < 3; y++) {
                    from_basis(rows[y], row);
                    for (int x = 0; x < 3; x++) {
                        T* to = gradient + (c * 9 + 3 * y + x) * outputs + o;
                        store_first(to, load_first(to, outputs - o) + row[x], outputs - o);
                    }
                }
            }
    }

   private:
    static constexpr long kChunkTiles = 64;  // at a time: 16 to 64 made no difference, fewer read the kernel too often ...
    static constexpr long kWideTiles = 192, kWide = 256 * 256;  // ... and so do 64 where the kernel fits no cache

    static COTERIE_INLINE void to_basis(Vec<T> a, Vec<T> b, Vec<T> c, Vec<T> (&to)[4]) {
        to[0] = a;
        to[1] = T(0.5) * (a + b + c);
        to[2] = T(0.5) * (a - b + c);
        to[3] = c;
    }
    static COTERIE_INLINE void from_basis(const Vec<T> (&u)[4], Vec<T> (&to)[3]) {
        to[0] = u[0] + T(0.5) * (u[1] + u[2]);
        to[1] = T(0.5) * (u[1] - u[2]);
        to[2] = T(0.5) * (u[1] + u[2]) + u[3];
    }

    // Rows of tiles, over all samples one after the other.
    template <class Body>
    void for_chunks(long samples, Body&& body) {
        long rows = samples * tile_rows_;
        int chunks = blocks_of(rows, chunk_);
        for (int c = 0; c < chunks; c++) {
            long first = block_start(rows, chunks, c);
            body(first, block_start(rows, chunks, c + 1) - first);
        }
    }

    // Row `y` of a sample's map, or zeros where it is outside.
    const T* row_of(const T* map, const Layout& layout, long sample, long y) const {
        return y < 0 || y >= layout.shape.height ? zeros_.data() : map + sample * layout.sample() + y * layout.row();
    }

    void transform_inputs(const T* in, long row, long place, long tiles) {
        const long top = row % tile_rows_ * 2 - node_.pad_height, width = in_.shape.width, plane = tiles * in_.step;
        const T* from[4];
        for (int r = 0; r < 4; r++) from[r] = row_of(in, in_, row / tile_rows_, top + r);
        for (long c = 0; c < in_.step; c += kLanes<T>) {
            Vec<T> columns[4][4];  // [column][k], of which the next tile shares two
            auto read = [&](long x, Vec<T>(&to)[4]) COTERIE_INLINE_LAMBDA {
                Vec<T> d[4] = {};
                if (x >= 0 && x < width)
                    for (int r = 0; r < 4; r++) d[r] = load(from[r] + x * in_.step + c);
                to[0] = d[0] - d[2];
                to[1] = d[1] + d[2];
                to[2] = d[2] - d[1];
                to[3] = d[1] - d[3];
            };
            read(-node_.pad_width, columns[0]);
            read(1 - node_.pad_width, columns[1]);
            T* to = values_.data() + place * in_.step + c;
            for (long t = 0; t < tile_columns_; t++, to += in_.step) {
                read(2 * t + 2 - node_.pad_width, columns[2]);
                read(2 * t + 3 - node_.pad_width, columns[3]);
                for (int k = 0; k < 4; k++) {
                    T* row_to = to + 4 * k * plane;
                    store(row_to, columns[0][k] - columns[2][k]);
                    store(row_to + plane, columns[1][k] + columns[2][k]);
                    store(row_to + 2 * plane, columns[2][k] - columns[1][k]);
                    store(row_to + 3 * plane, columns[1][k] - columns[3][k]);
                    columns[0][k] = columns[2][k];
                    columns[1][k] = columns[3][k];
                }
            }
        }
    }

    void write_outputs(T* out, const T* bias, long row, long place, long tiles) const {
        const long y = row % tile_rows_ * 2, plane = tiles * out_.step;
        const bool second = y + 1 < out_.shape.height;
        T* upper = out + row / tile_rows_ * out_.sample() + y * out_.row();
        for (long t = 0; t < tile_columns_; t++)
            for (long o = 0; o < out_.step; o += kLanes<T>) {
                const T* from = sums_.data() + (place + t) * out_.step + o;
                Vec<T> left[4], right[4], base = bias ? load(bias + o) : Vec<T>{};
                for (int k = 0; k < 4; k++, from += 4 * plane) {
                    Vec<T> b = load(from + plane), c = load(from + 2 * plane);
                    left[k] = load(from) + b + c;
                    right[k] = b - c - load(from + 3 * plane);
                }
                T* to = upper + 2 * t * out_.step + o;
                bool has_right = 2 * t + 1 < out_.shape.width;
                store(to, left[0] + left[1] + left[2] + base);
                if (has_right) store(to + out_.step, right[0] + right[1] + right[2] + base);
                if (!second) continue;
                store(to + out_.row(), left[1] - left[2] - left[3] + base);
                if (has_right) store(to + out_.row() + out_.step, right[1] - right[2] - right[3] + base);
            }
    }

    void transform_gradients(const T* dz, long row, long place, long tiles) {
        const long y = row % tile_rows_ * 2, plane = tiles * out_.step;
        const T* upper = row_of(dz, out_, row / tile_rows_, y);
        const T* lower = row_of(dz, out_, row / tile_rows_, y + 1);
        for (long t = 0; t < tile_columns_; t++)
            for (long o = 0; o < out_.step; o += kLanes<T>) {
                const long at = 2 * t * out_.step + o;
                const bool has_right = 2 * t + 1 < out_.shape.width;
                Vec<T> a = load(upper + at), c = load(lower + at);
                Vec<T> b = has_right ? load(upper + at + out_.step) : Vec<T>{};
                Vec<T> d = has_right ? load(lower + at + out_.step) : Vec<T>{};
                const Vec<T> rows[4][2] = {{a, b}, {a + c, b + d}, {a - c, b - d}, {-c, -d}};
                T* to = sums_.data() + (place + t) * out_.step + o;
                for (int k = 0; k < 4; k++, to += 4 * plane) {
                    store(to, rows[k][0]);
                    store(to + plane, rows[k][0] + rows[k][1]);
                    store(to + 2 * plane, rows[k][0] - rows[k][1]);
                    store(to + 3 * plane, -rows[k][1]);
                }
            }
    }

    void add_input_gradients(T* gradient, long row, long place, long tiles) const {
        const long top = row % tile_rows_ * 2 - node_.pad_height, width = in_.shape.width, plane = tiles * in_.step;
        T* map = gradient + row / tile_rows_ * in_.sample();
        bool inside[4];
        for (int r = 0; r < 4; r++) inside[r] = top + r >= 0 && top + r < in_.shape.height;
        for (long c = 0; c < in_.step; c += kLanes<T>) {
            Vec<T> kept[2][4] = {};  // what the tile before adds to this one's first two columns
            auto add = [&](long x, const Vec<T>(&v)[4]) COTERIE_INLINE_LAMBDA {
                if (x < 0 || x >= width) return;
                const Vec<T> d[4] = {v[0], v[1] - v[2] + v[3], v[1] + v[2] - v[0], -v[3]};
                for (int r = 0; r < 4; r++) {
                    T* to = map + (top + r) * in_.row() + x * in_.step + c;
                    if (inside[r]) store(to, load(to) + d[r]);
                }
            };
            const T* from = values_.data() + place * in_.step + c;
            long x = -node_.pad_width;
            for (long t = 0; t < tile_columns_; t++, from += in_.step, x += 2) {
                Vec<T> first[4], second[4];
                for (int k = 0; k < 4; k++) {
                    const T* v = from + 4 * k * plane;
                    Vec<T> v0 = load(v), v1 = load(v + plane), v2 = load(v + 2 * plane), v3 = load(v + 3 * plane);
                    first[k] = kept[0][k] + v0;
                    second[k] = kept[1][k] + (v1 - v2 + v3);
                    kept[0][k] = v1 + v2 - v0;
                    kept[1][k] = -v3;
                }
                add(x, first);
                add(x + 1, second);
            }
            add(x, kept[0]);
            add(x + 1, kept[1]);
        }
    }

    Node node_;
    Layout in_, out_;
    long tile_rows_, tile_columns_, chunk_ = 1, group_ = 1;
    Buffer<T> values_, sums_;                            // V and M of a chunk, [k][tile][channel]
    Buffer<T> kernel_, turned_kernel_, kernel_gradient_;  // U as [k][input][output] and [k][output][input], dU
    Buffer<T> zeros_;
};

}  // namespace coterie
