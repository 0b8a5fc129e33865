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
          mixed_(mix_ ? domains_ * block_ : 0) {}

    long block() const { return block_; }  // length of U, of each V and of each K
    bool mixes() const { return mix_; }
    const std::vector<long>& present() const { return present_; }

    // Where things begin in the packed order.
    long common() const { return common_; }
    long residual(long domain) const { return residual_ + domain * block_; }
    long scale() const { return scale_; }

    // Calls `body(lender, weight)` for every V that a domain borrows from.
    template <class Body>
    COTERIE_INLINE void for_lenders(long domain, Body&& body) const {
        if (!mix_) return body(domain, T(1));
        for (long e = 0; e < domains_; e++) body(e, mix_[domain * domains_ + e]);
    }

    // What is scaled and added to U for a domain that occurs.
    const T* added(long domain, const T* weights) const {
        return mix_ ? mixed_.data() + domain * block_ : weights + residual(domain);
    }
    // Of domains that occur.
    T* kernel(long domain) { return kernels_.data() + place_of(domain) * block_; }
    T* share(long domain) { return shares_.data() + place_of(domain) * block_; }
    long place_of(long domain) const {
        return std::find(present_.begin(), present_.end(), domain) - present_.begin();
    }

    // Once per step: which domains occur, and what each borrows.
    void begin_step(const T* weights, const std::vector<Run>& runs) {
        present_.clear();
        for (const Run& run : runs)
            if (!is_present(run.domain)) present_.push_back(run.domain);
        if (!mix_) return;
        for (long first = 0; first < block_; first += kChunk)
            for (long d : present_) {
                T* row = mixed_.data() + d * block_ + first;
                long count = std::min(kChunk, block_ - first);
                std::memset(row, 0, size_t(count) * sizeof(T));
                for (long e = 0; e < domains_; e++)
                    add_scaled(weights + residual(e) + first, mix_[d * domains_ + e], row, count);
            }
    }

    // K[d] of the domains that occur.
    void merge(const T* weights) {
        make_room(kernels_);
        const T* common = weights + common_;
        const T scale = weights[scale_];
        for (long d : present_) {
            const T* from = added(d, weights);
            T* to = kernel(d);
            for (long i = 0; i < block_; i += kLanes<T>) store(to + i, load(common + i) + scale * load(from + i));
        }
    }

    // Gradients by domain are to be added up in `share`; nothing is there yet.
    void clear_shares() {
        make_room(shares_);
        for (long d : present_) std::memset(share(d), 0, size_t(block_) * sizeof(T));
    }

    // From shares of K[d] to the gradients of U and of the scale, added to `total`, which begins with U; and the update of
    // all V[e]. What is read more than once stays in the cache.
    void share_with_all(const T* weights, T* total, Optimiser<T>& optimiser) {
        const T scale = weights[scale_];
        Vec<T> scale_gradient{};
        for (long first = 0; first < block_; first += kChunk) {
            long count = std::min(kChunk, block_ - first);
            for (long d : present_) {
                const T *from = share(d) + first, *met = added(d, weights) + first;
                for (long i = 0; i < count; i += kLanes<T>) {
                    store(total + first + i, load(total + first + i) + load(from + i));
                    scale_gradient += load(from + i) * load(met + i);
                }
            }
            update_residuals(first, count, scale, optimiser);
        }
        total[scale_ - common_] += sum_lanes<T>(scale_gradient);
    }

    // The update of all V[e] from shares that count `factor` times.
    void update_residuals(T factor, Optimiser<T>& optimiser) {
        for (long first = 0; first < block_; first += kChunk)
            update_residuals(first, std::min(kChunk, block_ - first), factor, optimiser);
    }

    // The same for domains that do not occur, without A: momentum goes on, and weights decay.
    void update_absent(Optimiser<T>& optimiser) {
        const T zeros[kChunk] = {};
        for (long e = 0; e < domains_; e++)
            for (long first = 0; first < block_ && !is_present(e) && !is_idle(e, optimiser); first += kChunk)
                optimiser.update_all(residual(e) + first, zeros, std::min(kChunk, block_ - first));
    }

   private:
    static constexpr long kChunk = 512;

    bool is_present(long domain) const { return place_of(domain) < long(present_.size()); }
    // Nothing would change: no gradient, and a rule without memory.
    bool is_idle(long domain, const Optimiser<T>& optimiser) const {
        return optimiser.kind() == UpdateKind::plain && !is_present(domain);
    }

    // A client's samples have few domains as a rule: room is made for those that occur.
    void make_room(Buffer<T>& blocks) const {
        if (blocks.size() < long(present_.size()) * block_) blocks.resize(long(present_.size()) * block_);
    }

    static void add_scaled(const T* values, T factor, T* to, long count) {
        for (long i = 0; i < count; i++) to[i] += factor * values[i];
    }

    void update_residuals(long first, long count, T factor, Optimiser<T>& optimiser) {
        for (long e = 0; e < domains_; e++) {
            if (!mix_ && is_idle(e, optimiser)) continue;
            T gradient[kChunk] = {};
            for (long d : present_)
                if (T weight = mix_ ? mix_[d * domains_ + e] : T(d == e); weight != 0)
                    add_scaled(share(d) + first, factor * weight, gradient, count);
            optimiser.update_all(residual(e) + first, gradient, count);
        }
    }

    long domains_, common_, residual_, scale_, block_;
    const T* mix_;
    Buffer<T> mixed_, kernels_, shares_;
    std::vector<long> present_;
};

}  // namespace coterie
