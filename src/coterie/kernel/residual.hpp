// A linear layer with residuals for domains (domains.hpp): the layer itself for all samples, and the residuals as layers of
// their own:
//
//   z = x U^T + scale * r,   r[sample] = sum over e of A[domain of the sample][e] x V[e]^T
//
// In a batch of many domains nothing is merged: every V is then read once on the way up, and read and updated once on the
// way down. A batch of one domain is cheaper with its merged kernel, from whose gradient all are updated at once.
#pragma once

#include <vector>

#include "domains.hpp"
#include "linear.hpp"
#include "transpose.hpp"

namespace coterie {

// Takes the gradient of the merged kernel of one domain, and updates U and the residuals with it.
template <class T>
struct JointUpdate {
    Optimiser<T>& optimiser;
    DomainKernels<T>& kernels;
    long domain;
    const T* weights;
    const T* real;  // zero where a packed position holds no weight
    T scale;
    Vec<T> scale_gradient{};

    template <UpdateKind kind, int R, int N>
    COTERIE_INLINE void update(long at, const Vec<T> (&gradient)[R][N]) {
        const T* is_real = real + at;
        Vec<T> known[R][N];
        for (int i = 0; i < R; i++)
            for (int j = 0; j < N; j++, is_real += kLanes<T>) known[i][j] = load(is_real) != 0 ? gradient[i][j] : Vec<T>{};
        optimiser.template update<kind>(kernels.common() + at, gradient);
        kernels.for_lenders(domain, [&](long lender, T weight) {
            const T* met = weights + kernels.residual(lender) + at;
            Vec<T> dot{}, scaled[R][N];
            for (int i = 0; i < R; i++)
                for (int j = 0; j < N; j++, met += kLanes<T>) {
                    dot += known[i][j] * load(met);
                    scaled[i][j] = scale * weight * gradient[i][j];
                }
            scale_gradient += weight * dot;
            optimiser.template update<kind>(kernels.residual(lender) + at, scaled);
        });
    }
    template <class Body>
    void with_kind(Body&& body) {
        optimiser.with_kind(body);
    }
    void update_all(long at, const T* gradient, long count) {
        with_kind([&](auto kind) {
            for (long i = 0; i < count; i += kLanes<T>) {
                Vec<T> one[1][1] = {{load(gradient + i)}};
                update<decltype(kind)::value>(at + i, one);
            }
        });
    }
};

template <class T>
class ResidualLinear {
   public:
    // `bias` is where the layer's bias begins behind its weights, or -1; `stride` that between features with samples
    // innermost.
    ResidualLinear(const PackedLinear<T>& shape, DomainKernels<T>&& kernels, long bias, long batch, long stride)
        : shape_(shape),
          kernels_(std::move(kernels)),
          bias_(bias),
          stride_(stride),
          residue_(batch * shape.row_length()),
          lent_(batch * shape.row_length()),
          turned_(round_up(shape.outputs, kInputRows) * stride),
          dx_(shape.rows() * stride),
          bias_gradient_(shape.row_length()),
          real_(kernels_.block()) {
        for (long o = 0; o < shape.outputs; o++) {
            for (long i = 0; i < shape.inputs; i++) real_.data()[shape.position(o, i)] = T(1);
            if (bias >= 0) real_.data()[bias + o] = T(1);
        }
    }

    void forward(Rows<T> x, const T* weights, T* z, const int64_t* domains, const int64_t* order, long samples,
                 Activation activation) {
        runs_ = runs_of(domains, order, samples, samples);
        kernels_.begin_step(runs_);
        if (is_merged()) {
            kernels_.merge(weights, kernels_.present()[0]);
            return product(x, kernels_.kernel(kernels_.present()[0]), z, samples, activation);
        }
        product(x, weights + kernels_.common(), z, samples);
        std::memset(residue_.data(), 0, size_t(samples * shape_.row_length()) * sizeof(T));
        for_loans(samples, [&](const Loan& loan) {
            product(x.from(loan.first), weights + kernels_.residual(loan.lender), lent(loan.first), loan.size);
            for_vectors(loan, [&](long at, bool borrows, T weight) {
                if (borrows) store(residue_.data() + at, load(residue_.data() + at) + weight * load(lent_.data() + at));
            });
        });
        const T scale = weights[kernels_.scale()];
        for (long i = 0; i < samples * shape_.row_length(); i += kLanes<T>)
            store(z + i, activate<T>(load(z + i) + scale * load(residue_.data() + i), activation));
    }

    // `dz` [sample][output], also `turned` as [output][sample]. `dx` may be null.
    void backward(Rows<T> x, const T* weights, const T* dz, const T* turned, T* dx, long samples, Optimiser<T>& optimiser) {
        if (is_merged()) return backward_merged(x, weights, dz, turned, dx, samples, optimiser);
        const T scale = weights[kernels_.scale()], scale_gradient = dot_residue(dz, samples);
        layer_backward(x, weights, dz, turned, dx, samples, optimiser, kernels_.common());
        for_loans(samples, [&](const Loan& loan) {
            for_vectors(loan, [&](long at, bool borrows, T weight) {
                store(lent_.data() + at, borrows ? scale * weight * load(dz + at) : Vec<T>{});
            });
            const T* own = lent(loan.first);
            if (dx) turn(own, loan.size);
            layer_backward(x.from(loan.first), weights, own, turned_.data(), dx ? dx_.data() : nullptr, loan.size, optimiser,
                           kernels_.residual(loan.lender));
            if (dx) add_to_input(dx, loan);
        });
        if (!kernels_.mixes()) kernels_.update_absent(optimiser);
        update_scale(scale_gradient, optimiser);
    }

   private:
    // Neighbouring samples that meet the residual of one domain, each with what its own domain borrows.
    struct Loan {
        long lender, first, size;
    };

    // Every residual is met once, so that it may be updated in passing.
    template <class Body>
    void for_loans(long samples, Body&& body) const {
        if (!kernels_.mixes() && kernels_.present().size() == runs_.size()) {
            for (const Run& run : runs_) body(Loan{run.domain, run.first, run.size});
            return;
        }
        for (long lender = 0; lender < kernels_.domains(); lender++)
            if (kernels_.mixes() || kernels_.is_present(lender)) body(Loan{lender, 0, samples});
    }

    // Calls `body(place, whether the sample borrows, weight)` for every vector of the outputs of a loan. Who does not borrow
    // meets nothing, not even a NaN times zero.
    template <class Body>
    void for_vectors(const Loan& loan, Body&& body) const {
        for (const Run& run : runs_) {
            if (run.first < loan.first || run.first >= loan.first + loan.size) continue;
            const bool borrows = kernels_.mixes() || run.domain == loan.lender;
            const T weight = kernels_.weight(run.domain, loan.lender);
            for (long at = run.first * shape_.row_length(); at < (run.first + run.size) * shape_.row_length(); at += kLanes<T>)
                body(at, borrows, weight);
        }
    }

    bool is_merged() const { return kernels_.present().size() == 1; }

    void backward_merged(Rows<T> x, const T* weights, const T* dz, const T* turned, T* dx, long samples,
                         Optimiser<T>& optimiser) {
        long domain = kernels_.present()[0];
        JointUpdate<T> joint{optimiser, kernels_, domain, weights, real_.data(), weights[kernels_.scale()]};
        linear_backward<T>(shape_, x, kernels_.kernel(domain), dz, turned, dx, stride_, samples, joint, 0);
        if (bias_ >= 0) bias_backward<T>(shape_, dz, samples, joint, bias_, bias_gradient_.data());
        if (!kernels_.mixes()) kernels_.update_absent(optimiser);
        update_scale(sum_lanes<T>(joint.scale_gradient), optimiser);
    }

    void update_scale(T gradient, Optimiser<T>& optimiser) const {
        T lanes[kLanes<T>] = {gradient};
        optimiser.update_all(kernels_.scale(), lanes, kLanes<T>);
    }

    T* lent(long sample) { return lent_.data() + sample * shape_.row_length(); }

    void product(Rows<T> x, const T* weights, T* out, long samples, Activation activation = Activation::none) const {
        linear_forward<T>(shape_, x, weights, bias_ >= 0 ? weights + bias_ : nullptr, out, samples, activation);
    }

    // Of the layer whose weights begin at `block`.
    void layer_backward(Rows<T> x, const T* weights, const T* dz, const T* turned, T* dx, long samples, Optimiser<T>& optimiser,
                        long block) {
        linear_backward<T>(shape_, x, weights + block, dz, turned, dx, stride_, samples, optimiser, block);
        if (bias_ >= 0) bias_backward<T>(shape_, dz, samples, optimiser, block + bias_, bias_gradient_.data());
    }

    void turn(const T* dz, long samples) {
        auto at = [&](long j) { return dz + j * shape_.row_length(); };
        transpose<T>(at, samples, shape_.outputs, turned_.data(), stride_);
    }

    void add_to_input(T* dx, const Loan& loan) const {
        for (long i = 0; i < shape_.inputs; i++)
            for (long j = 0; j < loan.size; j += kLanes<T>) {
                T* to = dx + i * stride_ + loan.first + j;
                store_first(to, load(to) + load(dx_.data() + i * stride_ + j), loan.size - j);
            }
    }

    // The gradient of the scale: dz . r over all samples.
    T dot_residue(const T* dz, long samples) const {
        Vec<T> sum{};
        for (long j = 0; j < samples; j++)
            for (long o = 0; o < shape_.outputs; o += kLanes<T>) {
                long at = j * shape_.row_length() + o, left = shape_.outputs - o;
                sum += load_first(dz + at, left) * load_first(residue_.data() + at, left);
            }
        return sum_lanes<T>(sum);
    }

    PackedLinear<T> shape_;
    DomainKernels<T> kernels_;
    long bias_, stride_;
    std::vector<Run> runs_;     // of the present batch
    Buffer<T> residue_;         // r of the last forward
    Buffer<T> lent_;            // z or dz of one loan
    Buffer<T> turned_, dx_;     // of one loan
    Buffer<T> bias_gradient_;
    Buffer<T> real_;            // one where a packed position holds a weight, zero elsewhere
};

}  // namespace coterie
