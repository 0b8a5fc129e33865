// Kernels for domains (FedCG, equation 4): samples of domain d meet
//
//   K[d] = U + scale * sum over e of A[d][e] V[e]
//
// U is common to all, A says how domains borrow from each other (none: each has its own V alone). U, every V[e] and every
// K[d] are packed alike, as one block of weights and biases (parameters.hpp).
#pragma once

#include <algorithm>
#include <vector>

#include "parameters.hpp"

namespace coterie {

// Samples of one domain that follow each other in a batch.
struct Run {
    long domain, first, size;
};

inline std::vector<Run> runs_of(const int64_t* domains, const int64_t* order, long samples, long longest) {
    std::vector<Run> runs;
    for (long first = 0; first < samples; first += runs.back().size) {
        long domain = long(domains[order[first]]), size = 1;
        while (size < longest && first + size < samples && domains[order[first + size]] == domain) size++;
        runs.push_back({domain, first, size});
    }
    return runs;
}

template <class T>
class DomainKernels {
   public:
    DomainKernels(const DomainPart& part, const Parameter& weight, const void* mix, const Parameters<T>& parameters)
        : domains_(part.domains),
          common_(parameters.find(weight)),
          residual_(parameters.find(part.residual)),
          scale_(parameters.find(part.scale)),
          block_(residual_ - common_),
          mix_(static_cast<const T*>(mix)),
          mixed_(mix_ ? domains_ * block_ : 0),
          kernels_(domains_ * block_),
          shares_(domains_ * block_) {}

    T* kernel(long domain) { return kernels_.data() + domain * block_; }
    // The gradient with respect to K[d], to be added to.
    T* share(long domain) { return shares_.data() + domain * block_; }

    long first_parameter() const { return common_; }
    long parameters() const { return scale_ + kLanes<T> - common_; }

    // Once per step: the kernels of the domains that occur, and nothing yet in their shares.
    void begin_step(const T* weights, const std::vector<Run>& runs) {
        present_.clear();
        for (const Run& run : runs)
            if (std::find(present_.begin(), present_.end(), run.domain) == present_.end()) present_.push_back(run.domain);
        for (long d : present_) {
            T* row = mixed_.data() + d * block_;
            if (mix_) std::memset(row, 0, size_t(block_) * sizeof(T));
            for (long e = 0; mix_ && e < domains_; e++)
                add_scaled(weights + residual_ + e * block_, mix_[d * domains_ + e], row);
            std::memcpy(kernel(d), weights + common_, size_t(block_) * sizeof(T));
            add_scaled(mixed(d, weights), weights[scale_], kernel(d));
            std::memset(share(d), 0, size_t(block_) * sizeof(T));
        }
    }

    // From the shares to the gradients of U, V and the scale: added to `total`, which begins with `first_parameter`.
    void share_out(const T* weights, T* total) {
        for (long d : present_) {
            add_scaled(share(d), T(1), total);
            total[scale_ - common_] += product(share(d), mixed(d, weights));
            for (long e = 0; e < domains_; e++) {
                T weight = mix_ ? mix_[d * domains_ + e] : T(d == e);
                if (weight != 0) add_scaled(share(d), weights[scale_] * weight, total + (1 + e) * block_);
            }
        }
    }

   private:
    const T* mixed(long domain, const T* weights) const {
        return (mix_ ? mixed_.data() : weights + residual_) + domain * block_;
    }

    void add_scaled(const T* values, T factor, T* to) const {
        for (long i = 0; i < block_; i++) to[i] += factor * values[i];
    }

    T product(const T* one, const T* other) const {
        Vec<T> sum{};
        for (long i = 0; i < block_; i += kLanes<T>) sum += load(one + i) * load(other + i);
        return sum_lanes<T>(sum);
    }

    long domains_, common_, residual_, scale_;
    long block_;  // length of U, of each V and of each K
    const T* mix_;
    Buffer<T> mixed_, kernels_, shares_;
    std::vector<long> present_;
};

}  // namespace coterie
