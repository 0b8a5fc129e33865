// Activations on vectors: the value, and the derivative expressed by the value (so that only outputs are kept).
#pragma once

#include <type_traits>

#include "network.hpp"
#include "vector.hpp"

namespace coterie {

template <class T>
struct ExponentialConstants;
template <>
struct ExponentialConstants<float> {
    static constexpr int terms = 8, mantissa_bits = 23;
    static constexpr float limit = 87.0f;              // exp stays a normal number
    static constexpr float ln2_high = 0.693359375f;    // exact in a few bits, so n * ln2_high has no error
    static constexpr float ln2_low = -2.12194440e-4f;
};
template <>
struct ExponentialConstants<double> {
    static constexpr int terms = 14, mantissa_bits = 52;
    static constexpr double limit = 708.0;
    static constexpr double ln2_high = 0.693145751953125;
    static constexpr double ln2_low = 1.42860682030941723212e-6;
};

// x = n ln 2 + r with |r| <= ln 2 / 2: gives 2^n and e^r - 1 (a Taylor polynomial, accurate for tiny r too).
// The argument must be within +-limit; a NaN stays a NaN.
template <class T>
COTERIE_INLINE void split_exponential(Vec<T> x, Vec<T>& power, Vec<T>& rest) {
    using C = ExponentialConstants<T>;
    const T log2e = T(1.44269504088896340736);
    const T magic = T(1.5) * T(Integer<T>(1) << C::mantissa_bits);  // adding it rounds to an integer in the low bits
    Vec<T> shifted = x * log2e + magic;
    Vec<T> n = shifted - magic;
    Vec<T> r = (x - n * C::ln2_high) - n * C::ln2_low;
    Vec<T> poly = broadcast<T>(1);  // 1 + r/terms * (...): Horner over r/k
    for (int k = C::terms; k >= 2; k--) poly = T(1) + poly * (r * (T(1) / T(k)));
    rest = poly * r;
    typedef typename VectorOf<std::make_unsigned_t<Integer<T>>, kVectorBytes>::Value Bits;
    Bits bits;
    std::memcpy(&bits, &shifted, sizeof(bits));
    bits <<= C::mantissa_bits;  // the integer n lands in the exponent
    Vec<T> one = broadcast<T>(1);
    Bits exponent;
    std::memcpy(&exponent, &one, sizeof(exponent));
    exponent += bits;
    std::memcpy(&power, &exponent, sizeof(power));
}

template <class T>
COTERIE_INLINE Vec<T> clamp(Vec<T> x, T low, T high) {  // keeps NaN
    x = x < low ? broadcast<T>(low) : x;
    return x > high ? broadcast<T>(high) : x;
}

// e^x for x <= 0 (differences from a maximum); below the limit it is zero.
template <class T>
COTERIE_INLINE Vec<T> exponential(Vec<T> x) {
    const T limit = ExponentialConstants<T>::limit;
    Vec<T> power, rest;
    split_exponential<T>(clamp<T>(x, -limit, limit), power, rest);
    return x < -limit ? Vec<T>{} : power + power * rest;
}

template <class T>
COTERIE_INLINE Vec<T> hyperbolic_tangent(Vec<T> x) {
    Vec<T> power, rest;
    split_exponential<T>(clamp<T>(x + x, T(-60), T(60)), power, rest);
    Vec<T> minus_one = power * rest + (power - T(1));  // e^2x - 1
    return minus_one / (minus_one + T(2));
}

template <class T>
COTERIE_INLINE Vec<T> logistic(Vec<T> x) {
    const T limit = ExponentialConstants<T>::limit;
    Vec<T> power, rest;
    split_exponential<T>(clamp<T>(-x, -limit, limit), power, rest);
    Vec<T> value = T(1) / (T(1) + (power + power * rest));
    return x < -limit ? Vec<T>{} : value;
}

// Written so that a NaN passes through, as in torch.
template <class T>
COTERIE_INLINE Vec<T> activate(Vec<T> x, Activation kind) {
    switch (kind) {
        case Activation::relu: return x <= T(0) ? Vec<T>{} : x;
        case Activation::tanh: return hyperbolic_tangent<T>(x);
        case Activation::sigmoid: return logistic<T>(x);
        case Activation::relu6: return clamp<T>(x, T(0), T(6));
        default: return x;
    }
}

// The gradient before the activation from the gradient behind it and the activation's value.
template <class T>
COTERIE_INLINE Vec<T> through_activation(Vec<T> gradient, Vec<T> value, Activation kind) {
    switch (kind) {
        case Activation::relu: return value <= T(0) ? Vec<T>{} : gradient;
        case Activation::tanh: return gradient * (T(1) - value * value);
        case Activation::sigmoid: return gradient * (T(1) - value) * value;
        case Activation::relu6: return (value <= T(0)) | (value >= T(6)) ? Vec<T>{} : gradient;
        default: return gradient;
    }
}

}  // namespace coterie
