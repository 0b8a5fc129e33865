// A linear layer with residuals for domains (domains.hpp). A batch meets the merged kernel of each domain that it has:
//
//   z = x K[d]^T,   K[d] = U + scale * sum over e of A[d][e] V[e]
//
// but no K is ever kept: it is made a vector at a time where it is used, and U and all V are updated while they are still in the
// cache. So what a step reads and writes are the parameters and little else.
#pragma once

#include <algorithm>
#include <vector>

#include "domains.hpp"
#include "linear.hpp"
#include "transpose.hpp"

namespace coterie {

constexpr int kMergedRows = kManyRegisters ? 8 : 5;     // samples of the forward tile
constexpr int kSharedRows = kManyRegisters ? 4 : 3;     // inputs of the tiles on the way back ...
constexpr int kSummedSamples = kManyRegisters ? 5 : 3;  // ... and samples of the one that sums over outputs
constexpr int kFewSamples = kManyRegisters ? 8 : 2;     // that everything is in registers for
static_assert(kInputRows % kSharedRows == 0, "packed rows are a multiple of the tile's");

template <class T>
class ResidualLinear {
   public:
    // `bias` is where the layer's bias begins behind its weights, or -1; `stride` that between features with samples
    // innermost.
    ResidualLinear(const PackedLinear<T>& shape, DomainKernels<T>&& kernels, long bias, long batch, long stride)
        : shape_(shape),
          kernels_(std::move(kernels)),
          bias_(bias),
          batch_(batch),
          stride_(stride),
          tiles_(shape.panels() * kTile),
          common_(tiles_) {}

    // `x` is needed until after `backward`.
    void forward(Rows<T> x, const T* weights, T* z, const int64_t* domains, const int64_t* order, long samples,
                 Activation activation) {
        runs_ = runs_of(domains, order, samples, samples);
        std::stable_sort(runs_.begin(), runs_.end(), [](const Run& a, const Run& b) { return a.domain < b.domain; });
        kernels_.begin_step(weights, runs_);
        take(x, samples);
        ends_.assign(1, 0);
        for (size_t i = 1; i <= runs_.size(); i++)
            if (i == runs_.size() || runs_[i].domain != runs_[i - 1].domain) ends_.push_back(i);
        for_panels([&](auto vectors, long p, long at) {
            panel_forward<decltype(vectors)::value>(p * kPanel, at, weights, z, activation);
        });
    }

    // `dz` [sample][output]; `dx` [input][sample] may be null.
    void backward(const T* weights, T* dz, T* dx, long samples, Optimiser<T>& optimiser) {
        clear_behind_outputs(dz, samples);
        long shares = long(kernels_.present().size()) * tiles_;
        if (kernels_.mixes() && shares_.size() < shares) shares_.resize(shares);
        optimiser.with_kind([&](auto kind) {
            constexpr UpdateKind K = decltype(kind)::value;
            Vec<T> scale_gradient{};
            for (long row = 0; row < shape_.rows(); row += kSharedRows) {
                for_domains([&](long place, const Run* run, const Run* end) {
                    if (dx && !kernels_.mixes() && end - run == 1 && run->size <= kFewSamples) {
                        with_constant<kFewSamples>(int(run->size), [&](auto samples) {
                            constexpr int P = decltype(samples)::value, R = P > 4 ? kSharedRows / 2 : kSharedRows;
                            for (long first = 0; first < kSharedRows; first += R)
                                scale_gradient += few_backward<K, P, R>(row, first, place, *run, weights, dz, dx, optimiser);
                        });
                        return;
                    }
                    if (dx) rows_to_input(row, run, end, weights, dz, dx + row * stride_);
                    scale_gradient += share_rows<K>(row, place, run, end, weights, dz, optimiser);
                });
                for_panels([&](auto vectors, long p, long at) {
                    constexpr int N = decltype(vectors)::value;
                    scale_gradient += end_rows<K, kSharedRows, N>(p * kTile, at + row * N * kLanes<T>, weights, optimiser);
                });
            }
            if (bias_ >= 0) scale_gradient += share_bias<K>(weights, dz, optimiser);
            if (!kernels_.mixes()) kernels_.update_absent(optimiser);
            T lanes[kLanes<T>] = {sum_lanes<T>(scale_gradient)};
            optimiser.update_all(kernels_.scale(), lanes, kLanes<T>);
        });
    }

   private:
    // The inputs as rows of features.
    void take(Rows<T> x, long samples) {
        x_ = x;
        if (x.feature_step == 1) return;
        const long row = round_up(shape_.inputs, kLanes<T>);
        if (!turned_.size()) turned_.resize(batch_ * row + kInputRows);
        transpose<T>([&](long i) { return x.data + i * x.feature_step; }, shape_.inputs, samples, turned_.data(), row);
        x_ = {turned_.data(), row, 1};
    }

    // Calls `body(place among those present, first run, last)` for each domain of the batch.
    template <class Body>
    COTERIE_INLINE void for_domains(Body&& body) const {
        for (size_t place = 0; place + 1 < ends_.size(); place++)
            body(long(place), runs_.data() + ends_[place], runs_.data() + ends_[place + 1]);
    }

    // The outputs from `column` on, whose weights begin at `at`, of all samples.
    template <int N>
    void panel_forward(long column, long at, const T* weights, T* z, Activation activation) const {
        const long length = shape_.row_length(), step = x_.sample_step;
        for_domains([&](long, const Run* run, const Run* end) {
            kernels_.with_merged(weights, run->domain, [&](auto merged) {
                Vec<T> bias[N] = {};
                if (bias_ >= 0) merged(bias_ + column, bias);
                auto right = [&](long k, Vec<T>(&values)[N]) { merged(at + k * N * kLanes<T>, values); };
                for (; run < end; run++)
                    for_row_blocks<kMergedRows>(run->size, [&](auto rows, long first) {
                        constexpr int R = decltype(rows)::value;
                        Vec<T> sums[R][N];
                        for (int i = 0; i < R; i++)
                            for (int j = 0; j < N; j++) sums[i][j] = bias[j];
                        const T* left = x_.from(run->first + first).data;
                        multiply_add_made<T>(sums, shape_.inputs, [&](int i, long k) { return left[i * step + k]; }, right);
                        T* out = z + (run->first + first) * length + column;
                        for (int i = 0; i < R; i++)
                            for (int j = 0; j < N; j++)
                                store(out + i * length + j * kLanes<T>, activate<T>(sums[i][j], activation));
                    });
            });
        });
    }

    // Calls `body(vectors, panel, where it begins)` for every panel, `vectors` a compile-time constant.
    template <class Body>
    COTERIE_INLINE void for_panels(Body&& body) const {
        const long panels = shape_.panels(), step = shape_.start(1);
        for (long p = 0; p + 1 < panels; p++) body(std::integral_constant<int, 2>{}, p, p * step);
        if (shape_.vectors_of(panels - 1) == 2)
            body(std::integral_constant<int, 2>{}, panels - 1, (panels - 1) * step);
        else
            body(std::integral_constant<int, 1>{}, panels - 1, (panels - 1) * step);
    }

    // What lies behind the outputs is summed over like them: it must not be anything but zero.
    void clear_behind_outputs(T* dz, long samples) const {
        long last = shape_.row_length() - kLanes<T>;
        for (long j = 0; j < samples; j++, dz += shape_.row_length())
            store(dz + last, load_first(dz + last, shape_.outputs - last));
    }

    // dx of some inputs and the samples of one domain: the sum over outputs of K * dz.
    void rows_to_input(long row, const Run* run, const Run* end, const T* weights, const T* dz, T* dx) const {
        kernels_.with_merged(weights, run->domain, [&](auto merged) {
            for (; run < end; run++)
                for_row_blocks<kSummedSamples>(run->size, [&](auto samples, long first) {
                    constexpr int P = decltype(samples)::value;
                    first += run->first;
                    const long length = shape_.row_length();
                    const T* from = dz + first * length;
                    Vec<T> sums[P][kSharedRows];
                    clear(sums);
                    for_panels([&](auto vectors, long p, long at) COTERIE_INLINE_LAMBDA {
                        constexpr int N = decltype(vectors)::value;
                        at += row * N * kLanes<T>;
                        for (int j = 0; j < N; j++, at += kLanes<T>) {
                            Vec<T> left[P], right[1];
                            for (int s = 0; s < P; s++) left[s] = load(from + s * length + p * kPanel + j * kLanes<T>);
                            for (int i = 0; i < kSharedRows; i++) {
                                merged(at + i * N * kLanes<T>, right);
                                for (int s = 0; s < P; s++) sums[s][i] += left[s] * right[0];
                            }
                        }
                    });
                    T flat[round_up(P * kSharedRows, kLanes<T>)];
                    sum_lanes_of_all<T, P * kSharedRows>(&sums[0][0], flat);
                    for (int s = 0; s < P; s++)
                        for (int i = 0; i < kSharedRows; i++) dx[i * stride_ + first + s] = flat[s * kSharedRows + i];
                });
        });
    }

    // The gradient of some rows of K, from the samples of one domain. It is added to that of U, and V is updated with it; with A
    // it is kept. Returns a part of the gradient of the scale.
    template <UpdateKind kind>
    Vec<T> share_rows(long row, long place, const Run* run, const Run* end, const T* weights, const T* dz,
                      Optimiser<T>& optimiser) {
        const long length = shape_.row_length(), real = shape_.inputs - row, domain = run->domain, step = x_.sample_step;
        const bool mixes = kernels_.mixes();
        const T* left = x_.data + row;
        T *common = common_.data(), *shares = shares_.data() + place * tiles_;
        Vec<T> dot{};
        for_panels([&](auto vectors, long p, long at) COTERIE_INLINE_LAMBDA {
            constexpr int N = decltype(vectors)::value;
            Vec<T> own[kSharedRows][N];
            clear(own);
            for (const Run* part = run; part < end; part++) {
                const T *from = left + part->first * step, *to = dz + part->first * length + p * kPanel;
                multiply_add<T>(
                    own, part->size, [&](int i, long k) { return from[k * step + i]; }, [&](long k) { return to + k * length; });
            }
            for (int i = 0; i < kSharedRows; i++)
                for (int j = 0; j < N; j++)
                    if (i >= real) own[i][j] = Vec<T>{};  // rows behind the inputs
            keep(common + p * kTile, own, place > 0);
            if (mixes)
                keep(shares + p * kTile, own, false);
            else
                dot += update_residual<kind>(domain, at + row * N * kLanes<T>, own, weights, optimiser);
        });
        return dot;
    }

    // `rows_to_input` and `share_rows` at once, for P samples of a domain that borrows from none: all sums are in registers, and V
    // is read once. Of the rows from `row` on these are R, from `first` on.
    template <UpdateKind kind, int P, int R>
    Vec<T> few_backward(long row, long first, long place, const Run& run, const T* weights, const T* dz, T* dx,
                        Optimiser<T>& optimiser) {
        const long length = shape_.row_length(), own = kernels_.residual(run.domain), stride = stride_;
        const T *all = weights + kernels_.common(), scale = weights[kernels_.scale()];
        T* common = common_.data();
        const bool adds = place > 0;
        dz += run.first * length;
        row += first;
        T input[P][R];
        Vec<T> dot{}, sums[P][R];
        clear(sums);
        for (int s = 0; s < P; s++)
            for (int i = 0; i < R; i++) input[s][i] = row + i < shape_.inputs ? x_.from(run.first + s).data[row + i] : T(0);
        for_panels([&](auto vectors, long p, long at) COTERIE_INLINE_LAMBDA {
            constexpr int N = decltype(vectors)::value;
            at += row * N * kLanes<T>;
            for (int j = 0; j < N; j++) {
                Vec<T> left[P];
                for (int s = 0; s < P; s++) left[s] = load(dz + s * length + p * kPanel + j * kLanes<T>);
                for (int i = 0; i < R; i++) {
                    const long vector = (i * N + j) * kLanes<T>;
                    T* to = common + p * kTile + first * N * kLanes<T> + vector;
                    Vec<T> met = load(weights + own + at + vector), merged = load(all + at + vector) + scale * met, gradient{};
                    for (int s = 0; s < P; s++) {
                        sums[s][i] += left[s] * merged;
                        gradient += input[s][i] * left[s];
                    }
                    dot += gradient * met;
                    store(to, adds ? load(to) + gradient : gradient);
                    optimiser.template update_scaled<kind>(own + at + vector, met, scale, gradient);
                }
            }
        });
        T flat[round_up(P * R, kLanes<T>)];
        sum_lanes_of_all<T, P * R>(&sums[0][0], flat);
        for (int s = 0; s < P; s++)
            for (int i = 0; i < R; i++) dx[(row + i) * stride + run.first + s] = flat[s * R + i];
        return dot;
    }

    // After the samples of all domains: U, and with A every V.
    template <UpdateKind kind, int R, int N>
    Vec<T> end_rows(long tile, long at, const T* weights, Optimiser<T>& optimiser) {
        Vec<T> dot{}, gradient[R][N];
        clear(gradient);
        add(gradient, T(1), common_.data() + tile);
        optimiser.template update<kind>(kernels_.common() + at, gradient);
        if (!kernels_.mixes()) return dot;
        for (long lender = 0; lender < kernels_.domains(); lender++) {
            Vec<T> lent[R][N];
            clear(lent);
            for_domains([&](long place, const Run* run, const Run*) COTERIE_INLINE_LAMBDA {
                add(lent, kernels_.weight(run->domain, lender), shares_.data() + place * tiles_ + tile);
            });
            dot += update_residual<kind>(lender, at, lent, weights, optimiser);
        }
        return dot;
    }

    template <UpdateKind kind>
    Vec<T> share_bias(const T* weights, const T* dz, Optimiser<T>& optimiser) {
        Vec<T> dot{};
        for (long column = 0; column < shape_.row_length(); column += kLanes<T>) {
            for_domains([&](long place, const Run* run, const Run* end) {
                Vec<T> own[1][1] = {};
                const long domain = run->domain;
                for (; run < end; run++)
                    for (long j = run->first; j < run->first + run->size; j++)
                        own[0][0] += load(dz + j * shape_.row_length() + column);
                keep(common_.data(), own, place > 0);
                if (kernels_.mixes())
                    keep(shares_.data() + place * tiles_, own, false);
                else
                    dot += update_residual<kind>(domain, bias_ + column, own, weights, optimiser);
            });
            dot += end_rows<kind, 1, 1>(0, bias_ + column, weights, optimiser);
        }
        return dot;
    }

    template <UpdateKind kind, int R, int N>
    COTERIE_INLINE Vec<T> update_residual(long domain, long at, const Vec<T> (&gradient)[R][N], const T* weights,
                                          Optimiser<T>& optimiser) const {
        const T scale = weights[kernels_.scale()], *met = weights + kernels_.residual(domain) + at;
        Vec<T> dot[R];
        for (int i = 0; i < R; i++) {
            dot[i] = Vec<T>{};
            for (int j = 0; j < N; j++, met += kLanes<T>) dot[i] += gradient[i][j] * load(met);
        }
        optimiser.template update<kind>(kernels_.residual(domain) + at, gradient, scale);
        for (int i = 1; i < R; i++) dot[0] += dot[i];
        return dot[0];
    }

    template <int R, int N>
    static COTERIE_INLINE void keep(T* tile, const Vec<T> (&gradient)[R][N], bool adds) {
        for (int i = 0; i < R; i++)
            for (int j = 0; j < N; j++, tile += kLanes<T>)
                store(tile, adds ? load(tile) + gradient[i][j] : gradient[i][j]);
    }

    template <int R, int N>
    static COTERIE_INLINE void add(Vec<T> (&sums)[R][N], T factor, const T* tile) {
        for (int i = 0; i < R; i++)
            for (int j = 0; j < N; j++, tile += kLanes<T>) sums[i][j] += factor * load(tile);
    }

    // Not `= {}`: that fills memory first, and the sums stay there.
    template <int R, int N>
    static COTERIE_INLINE void clear(Vec<T> (&sums)[R][N]) {
        for (int i = 0; i < R; i++)
            for (int j = 0; j < N; j++) sums[i][j] = Vec<T>{};
    }

    static constexpr long kPanel = PackedLinear<T>::kPanel;
    static constexpr long kTile = kSharedRows * 2 * kLanes<T>;  // some rows of a panel

    PackedLinear<T> shape_;
    DomainKernels<T> kernels_;
    long bias_, batch_, stride_;
    long tiles_;  // some rows of all panels
    Rows<T> x_{};
    Buffer<T> turned_;           // the inputs, where they came as [feature][sample]
    std::vector<Run> runs_;      // of the present batch, those of a domain together
    std::vector<size_t> ends_;   // of the runs of each domain, behind a first zero
    Buffer<T> common_, shares_;  // gradients of some rows: of U, and with A of each K
};

}  // namespace coterie
