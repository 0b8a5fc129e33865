// Kernels for domains (FedCG, equation 4): samples of domain d meet
//
//   K[d] = U + scale * sum over e of A[d][e] V[e]
//
// U is common to all, A says how domains borrow from each other (none: each has its own V alone). U, every V[e] and every
// K[d] are packed alike, as one block of weights and biases (parameters.hpp).
#pragma once

#include <algorithm>
#include <iterator>
#include <utility>
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
          mix_(static_cast<const T*>(mix)) {}

    bool mixes() const { return mix_; }
    long domains() const { return domains_; }
    const std::vector<long>& present() const { return present_; }

    // Where things begin in the packed order.
    long common() const { return common_; }
    long residual(long domain) const { return residual_ + domain * block_; }
    long scale() const { return scale_; }

    // A[domain][lender], where domains borrow at all.
    T weight(long domain, long lender) const { return mix_[domain * domains_ + lender]; }

    // K[d] of a domain that occurs.
    T* kernel(long domain) { return kernels_.data() + place_of(domain) * block_; }
    bool is_present(long domain) const { return place_of(domain) < long(present_.size()); }

    // Once per step: which domains occur, and how much they borrow.
    void begin_step(const T* weights, const std::vector<Run>& runs) {
        if (mix_) {
            factors_.resize(size_t(domains_ * domains_));
            std::transform(mix_, mix_ + domains_ * domains_, factors_.begin(), [&](T weight) { return weights[scale_] * weight; });
        }
        present_.clear();
        runs_left_.assign(size_t(domains_), 0);
        slots_.assign(size_t(domains_), -1);
        free_slots_.clear();
        for (const Run& run : runs)
            if (runs_left_[size_t(run.domain)]++ == 0) {
                free_slots_.push_back(long(present_.size()));
                present_.push_back(run.domain);
            }
    }

    // Makes K[d] of every domain that occurs, a part at a time: what they have in common is then read once.
    void merge(const T* weights) {
        make_room(kernels_);
        for_chunks([&](long first, long count) {
            for (long domain : present_)
                with_merged(weights, domain, [&, to = kernel(domain)](auto merged) {
                    for (long i = first; i < first + count; i += kLanes<T>) {
                        Vec<T> one[1];
                        merged(i, one);
                        store(to + i, one[0]);
                    }
                });
        });
    }

    // Calls `body(merged)`, where `merged(at, to)` makes neighbouring vectors of K[d] from U and those V that it borrows from.
    template <class Body>
    COTERIE_INLINE void with_merged(const T* weights, long domain, Body&& body) const {
        const T* common = weights + common_;
        if (!mix_) {
            const T *own = weights + residual(domain), scale = weights[scale_];
            return body([=](long at, auto& to) {
                for (int j = 0; j < int(std::size(to)); j++, at += kLanes<T>) to[j] = load(common + at) + scale * load(own + at);
            });
        }
        const T *lent = weights + residual_, *factor = factors_.data() + domain * domains_;
        if (domains_ == kFour) {
            const T a = factor[0], b = factor[1], c = factor[2], d = factor[3];
            return body([=, block = block_](long at, auto& to) {
                for (int j = 0; j < int(std::size(to)); j++, at += kLanes<T>)
                    to[j] = load(common + at) + a * load(lent + at) + b * load(lent + at + block) +
                            c * load(lent + at + 2 * block) + d * load(lent + at + 3 * block);
            });
        }
        body([=, domains = domains_, block = block_](long at, auto& to) {
            for (int j = 0; j < int(std::size(to)); j++) to[j] = load(common + at + j * kLanes<T>);
            for (long e = 0; e < domains; e++, at += block)
                for (int j = 0; j < int(std::size(to)); j++) to[j] += factor[e] * load(lent + at + j * kLanes<T>);
        });
    }

    // What becomes of the gradient of K[d] that a batch adds up in `share`.
    struct Sharing {
        const T* weights;
        T* common;  // where the gradient of U is added up
        Optimiser<T>& optimiser;
    };

    // Where the gradient of a domain that occurs is added up; anything may be there at first. Domains follow each other in
    // the same memory, which stays in the cache.
    bool has_share(long domain) const { return slots_[size_t(domain)] >= 0; }
    T* share(long domain) {
        long& slot = slots_[size_t(domain)];
        if (slot < 0) {
            make_room(shares_);
            slot = free_slots_.back();
            free_slots_.pop_back();
        }
        return shares_.data() + slot * block_;
    }

    // After each run of a batch: without A, a domain is updated with its last one. Returns, as `end_shares` does, a part of
    // share . (A V)[d], the gradient of the scale.
    T end_run(long domain, const Sharing& sharing) {
        if (--runs_left_[size_t(domain)] > 0 || mix_) return 0;
        T dot = 0;
        const T* gradient = share(domain);
        for_chunks([&](long first, long count) {
            dot += update(domain, gradient + first, first, count, sharing, sharing.common + first);
        });
        free_slots_.push_back(std::exchange(slots_[size_t(domain)], -1));
        return dot;
    }

    // After all: without A, those domains are updated that do not occur; with A, all of them from all shares.
    T end_shares(const Sharing& sharing) {
        T dot = 0, borrowed[kChunk];
        if (!mix_) {
            update_absent(sharing.optimiser);
            return dot;
        }
        for_chunks([&](long first, long count) {
            for (long d : present_) add_scaled(sharing.common + first, share(d) + first, T(1), sharing.common + first, count);
            for (long e = 0; e < domains_; e++) {
                std::memset(borrowed, 0, sizeof borrowed);
                for (long d : present_) add_scaled(borrowed, share(d) + first, weight(d, e), borrowed, count);
                dot += update(e, borrowed, first, count, sharing);
            }
        });
        return dot;
    }

    // Without A, for domains that do not occur: momentum goes on, and weights decay.
    void update_absent(Optimiser<T>& optimiser) {
        if (optimiser.kind() == UpdateKind::plain) return;  // no gradient, and a rule without memory
        const T zeros[kChunk] = {};
        for (long e = 0; e < domains_; e++)
            if (!is_present(e))
                for_chunks([&](long first, long count) { optimiser.update_all(residual(e) + first, zeros, count); });
    }

   private:
    static constexpr long kChunk = 512;  // what is read more than once stays in the cache
    static constexpr long kFour = 4;     // the paper's number of domains

    long place_of(long domain) const {
        return std::find(present_.begin(), present_.end(), domain) - present_.begin();
    }

    template <class Body>
    void for_chunks(Body&& body) const {
        for (long first = 0; first < block_; first += kChunk) body(first, std::min(kChunk, block_ - first));
    }

    // A client's samples have few domains as a rule: room is made for those that occur.
    void make_room(Buffer<T>& blocks) const {
        if (blocks.size() < long(present_.size()) * block_) blocks.resize(long(present_.size()) * block_);
    }

    static void add_scaled(const T* base, const T* values, T factor, T* to, long count) {
        for (long i = 0; i < count; i += kLanes<T>) store(to + i, load(base + i) + factor * load(values + i));
    }

    // A chunk of V[e]; returns its product with the gradient, which is also added to `total` if there is one.
    T update(long e, const T* gradient, long first, long count, const Sharing& sharing, T* total = nullptr) const {
        T dot = 0;
        sharing.optimiser.with_kind([&](auto kind) {
            dot = update<decltype(kind)::value>(residual(e) + first, gradient, count, sharing.weights, sharing.weights[scale_],
                                                sharing.optimiser, total);
        });
        return dot;
    }
    template <UpdateKind kind>
    static T update(long at, const T* gradient, long count, const T* weights, T factor, Optimiser<T>& optimiser, T* total) {
        Vec<T> dot{};  // a variable of this loop alone, which stays in a register
        for (long i = 0; i < count; i += kLanes<T>) {
            Vec<T> one = load(gradient + i), met = load(weights + at + i);
            if (total) store(total + i, load(total + i) + one);
            dot += one * met;
            optimiser.template update_scaled<kind>(at + i, met, factor, one);
        }
        return sum_lanes<T>(dot);
    }

    long domains_, common_, residual_, scale_;
    long block_;  // length of U, of each V and of each K
    const T* mix_;
    std::vector<T> factors_;  // scale * A
    Buffer<T> kernels_, shares_;
    std::vector<long> present_;
    std::vector<long> runs_left_, slots_;  // by domain: runs whose gradient is to come, and place among `shares_`
    std::vector<long> free_slots_;
};

}  // namespace coterie
