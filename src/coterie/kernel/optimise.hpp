// The update of the weights, one vector at a time, so that it can be fused into the product that makes the gradient.
#pragma once

#include <cmath>

#include "vector.hpp"

namespace coterie {

enum class Rule : int64_t { sgd = 0, adam = 1 };

struct Hyper {
    Rule rule;
    double lr, momentum, weight_decay, mu, beta1, beta2, eps;
};

enum class UpdateKind { plain, momentum, sgd, adam };  // momentum: with nothing else, as most train

template <class T>
COTERIE_INLINE Vec<T> square_root(Vec<T> value) {
    T lanes[kLanes<T>];
    store(lanes, value);
    for (int i = 0; i < kLanes<T>; i++) lanes[i] = std::sqrt(lanes[i]);
    return load(lanes);
}

// All weights in the packed order (see parameters.hpp) with everything the rule keeps beside them.
// The order of additions is torch's: gradient + correction + mu (w - anchor), + weight decay w, then momentum or Adam.
template <class T>
class Optimiser {
   public:
    Optimiser(const Hyper& hyper, T* weights, const T* anchor, const T* correction, const T* trained, long size)
        : rule_(hyper.rule),
          lr_(T(hyper.lr)),
          momentum_(T(hyper.momentum)),
          weight_decay_(T(hyper.weight_decay)),
          mu_(T(hyper.mu)),
          eps_(T(hyper.eps)),
          beta1_(hyper.beta1),
          beta2_(hyper.beta2),
          learning_rate_(hyper.lr),
          weights_(weights),
          anchor_(hyper.mu != 0 ? anchor : nullptr),
          correction_(correction),
          trained_(trained),
          kind_(kind_of(hyper, correction || trained)),
          momentum_alone_(kind_ == UpdateKind::sgd && hyper.mu == 0 && hyper.weight_decay == 0 && !correction && !trained) {
        if (hyper.momentum != 0 || rule_ == Rule::adam) first_.resize(size);
        if (rule_ == Rule::adam) second_.resize(size);
    }

    UpdateKind kind() const { return kind_; }

    // The plain rule has no memory: where there is no gradient, nothing changes.
    // `more`: there is a correction, or some weights stay as they are.
    static UpdateKind kind_of(const Hyper& hyper, bool more) {
        if (hyper.rule == Rule::adam) return UpdateKind::adam;
        bool plain = hyper.momentum == 0 && hyper.mu == 0 && hyper.weight_decay == 0 && !more;
        return plain ? UpdateKind::plain : UpdateKind::sgd;
    }

    // Before the first update of every step: Adam's bias corrections.
    void begin_step() {
        steps_++;
        if (rule_ != Rule::adam) return;
        step_size_ = T(learning_rate_ / (1 - std::pow(beta1_, double(steps_))));
        second_scale_ = T(std::sqrt(1 - std::pow(beta2_, double(steps_))));
    }

    template <UpdateKind kind>
    COTERIE_INLINE void update(long at, Vec<T> gradient) {
        update_scaled<kind>(at, load(weights_ + at), T(1), gradient);
    }

    // The same with `factor * gradient`, for who knows the weight already.
    template <UpdateKind kind>
    COTERIE_INLINE void update_scaled(long at, Vec<T> weight, T factor, Vec<T> gradient) {
        if constexpr (kind == UpdateKind::plain) {
            store(weights_ + at, weight - lr_ * factor * gradient);
            return;
        }
        gradient *= factor;
        if (correction_) gradient += load(correction_ + at);
        if (anchor_) gradient += mu_ * (weight - load(anchor_ + at));
        if (weight_decay_ != 0) gradient += weight_decay_ * weight;
        if constexpr (kind == UpdateKind::sgd) {
            if (momentum_ != 0) {
                gradient += momentum_ * load(first_.data() + at);
                store(first_.data() + at, gradient);
            }
            moved(at, weight, weight - lr_ * gradient);
        } else {
            Vec<T> first = load(first_.data() + at), second = load(second_.data() + at);
            first += T(1 - beta1_) * (gradient - first);
            second = T(beta2_) * second + T(1 - beta2_) * gradient * gradient;
            store(first_.data() + at, first);
            store(second_.data() + at, second);
            Vec<T> spread = square_root<T>(second) / second_scale_ + eps_;
            moved(at, weight, weight - step_size_ * first / spread);
        }
    }

    // Neighbouring vectors, with `factor * gradient`.
    template <UpdateKind kind, int R, int N>
    COTERIE_INLINE void update(long at, const Vec<T> (&gradient)[R][N], T factor = T(1)) {
        if constexpr (kind == UpdateKind::plain) {
            T *weight = weights_ + at, rate = lr_ * factor;  // not read again after every store
            for (int i = 0; i < R; i++)
                for (int j = 0; j < N; j++, weight += kLanes<T>) store(weight, load(weight) - rate * gradient[i][j]);
        } else if constexpr (kind == UpdateKind::momentum) {
            T *weight = weights_ + at, *first = first_.data() + at;
            const T rate = lr_, momentum = momentum_;
            for (int i = 0; i < R; i++)
                for (int j = 0; j < N; j++, weight += kLanes<T>, first += kLanes<T>) {
                    Vec<T> moved = factor * gradient[i][j] + momentum * load(first);
                    store(first, moved);
                    store(weight, load(weight) - rate * moved);
                }
        } else {
            for (int i = 0; i < R; i++)
                for (int j = 0; j < N; j++, at += kLanes<T>)
                    update_scaled<kind>(at, load(weights_ + at), factor, gradient[i][j]);
        }
    }

    // The whole tensor at `at` from its gradient; `count` is a multiple of the vector length.
    void update_all(long at, const T* gradient, long count) {
        auto run = [&](auto kind) {
            for (long i = 0; i < count; i += kLanes<T>) {
                const Vec<T> own[1][1] = {{load(gradient + i)}};
                update<decltype(kind)::value>(at + i, own);
            }
        };
        with_every_kind(run);
    }

    template <class Body>
    void with_kind(Body&& body) {
        switch (kind()) {
            case UpdateKind::plain: return body(std::integral_constant<UpdateKind, UpdateKind::plain>{});
            case UpdateKind::sgd: return body(std::integral_constant<UpdateKind, UpdateKind::sgd>{});
            default: return body(std::integral_constant<UpdateKind, UpdateKind::adam>{});
        }
    }

    // The same, for whoever is compiled for momentum alone, too.
    template <class Body>
    void with_every_kind(Body&& body) {
        if (momentum_alone_) return body(std::integral_constant<UpdateKind, UpdateKind::momentum>{});
        with_kind(body);
    }

   private:
    // Chosen, not multiplied by zero: a gradient that is not finite must not reach a weight that stays.
    COTERIE_INLINE void moved(long at, Vec<T> before, Vec<T> after) {
        store(weights_ + at, trained_ ? (load(trained_ + at) != T(0) ? after : before) : after);
    }

    Rule rule_;
    T lr_, momentum_, weight_decay_, mu_, eps_;
    double beta1_, beta2_, learning_rate_;
    T step_size_ = 0, second_scale_ = 1;
    long steps_ = 0;
    T* weights_;
    const T* anchor_;
    const T* correction_;
    const T* trained_;
    UpdateKind kind_;
    bool momentum_alone_;
    Buffer<T> first_, second_;  // momentum (or Adam's mean) and Adam's mean square
};

}  // namespace coterie
