// A linear layer with residuals for domains (domains.hpp): the layer itself for all samples, and for every run of a batch
// the residual of its domain, as a layer of its own:
//
//   z = x U^T + scale * r,   r = x (A V)[domain]^T
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
        const T *met = kernels.added(domain, weights) + at, *is_real = real + at;
        Vec<T> dot = scale_gradient;
        for (int i = 0; i < R; i++)
            for (int j = 0; j < N; j++, met += kLanes<T>, is_real += kLanes<T>)
                dot += load(is_real) != 0 ? gradient[i][j] * load(met) : Vec<T>{};
        scale_gradient = dot;
        optimiser.template update<kind>(kernels.common() + at, gradient);
        kernels.for_lenders(domain, [&](long lender, T weight) {
            Vec<T> scaled[R][N];
            for (int i = 0; i < R; i++)
                for (int j = 0; j < N; j++) scaled[i][j] = scale * weight * gradient[i][j];
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
        kernels_.begin_step(weights, runs_);
        if (is_merged()) {
            kernels_.merge(weights);
            return product(x, kernels_.kernel(kernels_.present()[0]), z, samples, activation);
        }
        product(x, weights + kernels_.common(), z, samples);
        for (const Run& run : runs_)
            product(x.from(run.first), kernels_.added(run.domain, weights), row(residue_.data(), run), run.size);
        const T scale = weights[kernels_.scale()];
        for (long i = 0; i < samples * shape_.row_length(); i += kLanes<T>)
            store(z + i, activate<T>(load(z + i) + scale * load(residue_.data() + i), activation));
    }

    // `dz` [sample][output], also `turned` as [output][sample]; `dz` may be scaled on the way. `dx` may be null.
    void backward(Rows<T> x, const T* weights, T* dz, const T* turned, T* dx, long samples, Optimiser<T>& optimiser) {
        if (is_merged()) return backward_merged(x, weights, dz, turned, dx, samples, optimiser);
        const T scale = weights[kernels_.scale()], scale_gradient = dot_residue(dz, samples);
        linear_backward<T>(shape_, x, weights + kernels_.common(), dz, turned, dx, stride_, samples, optimiser,
                           kernels_.common());
        if (bias_ >= 0) update_bias(dz, samples, optimiser, kernels_.common());
        for (long i = 0; i < samples * shape_.row_length(); i += kLanes<T>) store(dz + i, scale * load(dz + i));
        // A residual may be updated in passing if this is the only place where it is needed.
        if (!kernels_.mixes() && kernels_.present().size() == runs_.size())
            update_in_passing(x, weights, dz, dx, optimiser);
        else
            update_from_shares(x, weights, dz, dx, optimiser);
        update_scale(scale_gradient, optimiser);
    }

   private:
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

    T* row(T* rows, const Run& run) const { return rows + run.first * shape_.row_length(); }

    void product(Rows<T> x, const T* weights, T* out, long samples, Activation activation = Activation::none) const {
        linear_forward<T>(shape_, x, weights, bias_ >= 0 ? weights + bias_ : nullptr, out, samples, activation);
    }

    void update_bias(const T* dz, long samples, Optimiser<T>& optimiser, long block) {
        bias_backward<T>(shape_, dz, samples, optimiser, block + bias_, bias_gradient_.data());
    }

    void turn(const T* dz, long samples) {
        auto at = [&](long j) { return dz + j * shape_.row_length(); };
        transpose<T>(at, samples, shape_.outputs, turned_.data(), stride_);
    }

    void update_in_passing(Rows<T> x, const T* weights, T* dz, T* dx, Optimiser<T>& optimiser) {
        for (const Run& run : runs_) {
            const T* own = row(dz, run);
            long block = kernels_.residual(run.domain);
            if (dx) turn(own, run.size);
            linear_backward<T>(shape_, x.from(run.first), weights + block, own, turned_.data(), dx ? dx_.data() : nullptr,
                               stride_, run.size, optimiser, block);
            if (bias_ >= 0) update_bias(own, run.size, optimiser, block);
            if (dx) add_to_input(dx, run);
        }
        kernels_.update_absent(optimiser);
    }

    void update_from_shares(Rows<T> x, const T* weights, T* dz, T* dx, Optimiser<T>& optimiser) {
        kernels_.clear_shares();
        for (const Run& run : runs_) {
            const T* own = row(dz, run);
            T* share = kernels_.share(run.domain);
            Adder<T> adder{share};
            if (dx) turn(own, run.size);
            linear_backward<T>(shape_, x.from(run.first), kernels_.added(run.domain, weights), own, turned_.data(),
                               dx ? dx_.data() : nullptr, stride_, run.size, adder, 0);
            for (long j = 0; bias_ >= 0 && j < run.size; j++)
                for (long o = 0; o < shape_.outputs; o++) share[bias_ + o] += own[j * shape_.row_length() + o];
            if (dx) add_to_input(dx, run);
        }
        kernels_.update_residuals(T(1), optimiser);
    }

    void add_to_input(T* dx, const Run& run) const {
        for (long i = 0; i < shape_.inputs; i++)
            for (long j = 0; j < run.size; j += kLanes<T>) {
                T* to = dx + i * stride_ + run.first + j;
                store_first(to, load(to) + load(dx_.data() + i * stride_ + j), run.size - j);
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
    Buffer<T> turned_, dx_;     // of one run
    Buffer<T> bias_gradient_;
    Buffer<T> real_;            // one where a packed position holds a weight, zero elsewhere
};

}  // namespace coterie
