// Pools of any field, averages, additions and activations on maps with the channels innermost.
#pragma once

#include <cstring>

#include "channels.hpp"
#include "graph.hpp"
#include "masks.hpp"
#include "pool.hpp"

namespace coterie {

// Max-pooling, as torch: the first of equal values wins, and a NaN over everything before it; what is outside the map never does.
// Kept is the winner's number in its field.
template <class T>
class MaxPool {
   public:
    MaxPool(const Node& node, const Layout& in, const Layout& out) : node_(node), in_(in), out_(out) {}

    void forward(const T* in, T* out, long samples, bool keep) {
        if (keep && winners_.size() < samples * out_.sample()) winners_.resize(samples * out_.sample());
        for_fields(samples, [&](long sample, const Field& field, long to) {
            for (long c = 0; c < in_.step; c += kLanes<T>) {
                Vec<T> best{};
                Mask<T> position{};
                bool first = true;
                field.for_places([&](long at, int number) {
                    Vec<T> value = load(in + sample * in_.sample() + at + c);
                    if (first) {
                        best = value;
                        position = Mask<T>{} + Integer<T>(number);
                    } else {
                        challenge<T>(best, position, value, number);
                    }
                    first = false;
                });
                store(out + to + c, best);
                if (!keep) continue;
                Codes<T> codes = __builtin_convertvector(position, Codes<T>);
                std::memcpy(winners_.data() + to + c, &codes, sizeof(codes));
            }
        });
    }

    // Adds to the gradient of the input.
    void backward(const T* gradient, T* in_gradient, long samples) const {
        for_fields(samples, [&](long sample, const Field& field, long from) {
            for (long c = 0; c < in_.step; c += kLanes<T>) {
                Codes<T> codes;
                std::memcpy(&codes, winners_.data() + from + c, sizeof(codes));
                Mask<T> position = __builtin_convertvector(codes, Mask<T>);
                Vec<T> g = load(gradient + from + c);
                field.for_places([&](long at, int number) {
                    T* to = in_gradient + sample * in_.sample() + at + c;
                    store(to, load(to) + (position == Integer<T>(number) ? g : Vec<T>{}));
                });
            }
        });
    }

   private:
    struct Field {
        long y0, y1, x0, x1, top, left, width, row, step;

        template <class Body>
        COTERIE_INLINE void for_places(Body&& body) const {
            for (long y = y0; y < y1; y++)
                for (long x = x0; x < x1; x++) body(y * row + x * step, int((y - top) * width + x - left));
        }
    };

    template <class Body>
    void for_fields(long samples, Body&& body) const {
        for (long s = 0; s < samples; s++)
            for (long y = 0; y < out_.shape.height; y++)
                for (long x = 0; x < out_.shape.width; x++) {
                    long top = y * node_.stride_height - node_.pad_height, left = x * node_.stride_width - node_.pad_width;
                    Field field{std::max<long>(0, top), std::min(in_.shape.height, top + node_.kernel_height),
                                std::max<long>(0, left), std::min(in_.shape.width, left + node_.kernel_width),
                                top, left, node_.kernel_width, in_.row(), in_.step};
                    body(s, field, s * out_.sample() + y * out_.row() + x * out_.step);
                }
    }

    Node node_;
    Layout in_, out_;
    Buffer<uint8_t> winners_;
};

// Calls body(place in the input, place in the output) for every value of every field, in whole vectors.
template <class T, class Body>
void for_averaged(const Node& node, const Layout& in, const Layout& out, long samples, Body&& body) {
    for (long s = 0; s < samples; s++)
        for (long y = 0; y < out.shape.height * node.kernel_height; y++)
            for (long x = 0; x < out.shape.width * node.kernel_width; x++)
                for (long c = 0; c < in.step; c += kLanes<T>)
                    body(s * in.sample() + y * in.row() + x * in.step + c,
                         s * out.sample() + y / node.kernel_height * out.row() + x / node.kernel_width * out.step + c);
}

template <class T>
void average_forward(const Node& node, const Layout& in, const Layout& out, const T* from, T* to, long samples) {
    std::memset(to, 0, size_t(samples * out.sample()) * sizeof(T));
    for_averaged<T>(node, in, out, samples, [&](long at, long place) { store(to + place, load(to + place) + load(from + at)); });
    const T count = T(node.kernel_height * node.kernel_width);
    for (long i = 0; i < samples * out.sample(); i += kLanes<T>) store(to + i, load(to + i) / count);
}

// Adds to the gradient of the input.
template <class T>
void average_backward(const Node& node, const Layout& in, const Layout& out, const T* gradient, T* in_gradient, long samples) {
    const T count = T(node.kernel_height * node.kernel_width);
    for_averaged<T>(node, in, out, samples, [&](long at, long place) {
        store(in_gradient + at, load(in_gradient + at) + load(gradient + place) / count);
    });
}

// Dropout. Masks come with the samples innermost, so they are turned first, once for both ways.
template <class T>
class Drop {
   public:
    Drop(const Node& node, const Layout& layout) : node_(node), layout_(layout) {}

    void forward(const Masks& masks, const T* x, T* y, long samples) {
        const long pixels = layout_.pixels();
        if (masks.data) {
            factors_.resize(samples * layout_.sample());
            for (long c = 0; c < layout_.shape.channels; c++)
                for (long p = 0; p < pixels; p++) {
                    const uint8_t* own = masks.in_trunk(node_.dropout, c * pixels + p, 0);
                    for (long s = 0; s < samples; s++) factors_.data()[(s * pixels + p) * layout_.step + c] = own[s];
                }
        }
        for (long i = 0; i < samples * layout_.sample(); i += kLanes<T>)
            store(y + i, masks.data ? load(x + i) * factors<T>(factors_.data() + i, node_.dropout) : load(x + i));
    }

    void backward(const T* g, T* to, bool add, long samples) const {
        for (long i = 0; i < samples * layout_.sample(); i += kLanes<T>) {
            Vec<T> value = load(g + i) * factors<T>(factors_.data() + i, node_.dropout);
            store(to + i, add ? load(to + i) + value : value);
        }
    }

   private:
    Node node_;
    Layout layout_;
    Buffer<uint8_t> factors_;
};

// y = activation(x [+ other])
template <class T>
void add_and_activate(const T* x, const T* other, T* y, Activation activation, long count) {
    for (long i = 0; i < count; i += kLanes<T>)
        store(y + i, activate<T>(other ? load(x + i) + load(other + i) : load(x + i), activation));
}

// From the gradient of y to what it is before the activation; `add`ed to what is there, or instead of it.
template <class T>
void before_activation(const T* g, const T* y, T* to, bool add, Activation activation, long count) {
    for (long i = 0; i < count; i += kLanes<T>) {
        Vec<T> value = through_activation<T>(load(g + i), load(y + i), activation);
        store(to + i, add ? load(to + i) + value : value);
    }
}

}  // namespace coterie
