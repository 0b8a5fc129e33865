// A trunk of nodes (graph_trunk.hpp): their work in order, and the way back.
#include "graph_trunk.hpp"

#include <memory>
#include <vector>

#include "direct.hpp"
#include "fields.hpp"
#include "normalise.hpp"
#include "winograd.hpp"

namespace coterie {

template <class T>
class Nodes final : public GraphTrunk<T> {
   public:
    Nodes(const Network& net, const Parameters<T>& parameters, long batch) {
        values_.resize(net.graph.size() + 1);
        bool as_it_came = true;  // where only convolutions read the input, its channels need not fill vectors
        for (const Node& node : net.graph) {
            values_[size_t(node.from)].users++;
            if (node.other >= 0) values_[size_t(node.other)].users++;
            if ((node.from == 0 && node.work != Work::convolution) || node.other == 0) as_it_came = false;
        }
        values_[0].layout = {net.in, as_it_came ? net.in.channels : round_up(net.in.channels, kLanes<T>)};
        for (size_t i = 0; i < net.graph.size(); i++) {
            const Node& node = net.graph[i];
            values_[i + 1].layout = {node.out, round_up(node.out.channels, kLanes<T>)};
            values_[i + 1].learns = node.weight.present() || node.bias.present() || values_[size_t(node.from)].learns ||
                                    (node.other >= 0 && values_[size_t(node.other)].learns);
            parts_.push_back(make_part(node, i, parameters, batch));
            if (node.work != Work::normalise) continue;
            // Statistics are taken, and gradients finished, while the convolution's result is in the cache.
            Value& z = values_[size_t(node.from)];
            if (node.from > 0 && z.users == 1 && net.graph[size_t(node.from) - 1].work == Work::convolution)
                parts_[size_t(node.from) - 1].norm_behind = long(i);
        }
    }

    ~Nodes() override {
        release_all();
        long kept = 0;
        for (size_t i = 0; i < free_.size();) {
            kept += free_[i].size() * long(sizeof(T));
            if (kept <= kKeptBytes) {
                i++;
                continue;
            }
            kept -= free_[i].size() * long(sizeof(T));
            std::swap(free_[i], free_.back());
            free_.pop_back();
        }
    }
    Nodes(const Nodes&) = delete;
    Nodes& operator=(const Nodes&) = delete;

    bool learns() const override { return values_.back().learns; }

    void forward(const Samples<T>& inputs, const int64_t* order, long samples, T* weights, bool training, T* rows,
                 long row) override {
        release_all();
        pack(weights, training);
        acquire(values_[0].data, samples * values_[0].layout.sample());
        gather(inputs, order, samples);
        for (size_t i = 0; i < parts_.size(); i++) {
            acquire(values_[i + 1].data, samples * values_[i + 1].layout.sample());
            forward_part(parts_[i], i, samples, weights, training);
            if (!training) release_read(i);
        }
        const Layout& last = values_.back().layout;
        for (long j = 0; j < samples; j++)
            for (long p = 0; p < last.pixels(); p++)
                for (long c = 0; c < last.shape.channels; c++)
                    rows[j * row + c * last.pixels() + p] = values_.back().data.data()[(j * last.pixels() + p) * last.step + c];
    }

    void backward(const T* features, long stride, long samples, T* gradient) override {
        Value& end = values_.back();
        acquire(end.gradient, samples * end.layout.sample());
        end.has_gradient = true;
        const Layout& last = end.layout;
        std::memset(end.gradient.data(), 0, size_t(samples * last.sample()) * sizeof(T));
        for (long c = 0; c < last.shape.channels; c++)
            for (long p = 0; p < last.pixels(); p++)
                for (long j = 0; j < samples; j++)
                    end.gradient.data()[(j * last.pixels() + p) * last.step + c] = features[(c * last.pixels() + p) * stride + j];
        for (size_t i = parts_.size(); i-- > 0;) {
            if (values_[i + 1].learns) backward_part(parts_[i], i, samples, gradient);
            release(values_[i + 1].gradient);
            values_[i + 1].has_gradient = false;
        }
    }

   private:
    struct Value {
        Layout layout;
        int users = 0;
        bool learns = false, has_gradient = false;
        Buffer<T> data, gradient;
    };

    struct Part {
        Node node;
        long weight = -1, bias = -1, mean = -1, variance = -1;  // in the packed order
        std::unique_ptr<Winograd<T>> winograd;
        std::unique_ptr<Direct<T>> direct;
        std::unique_ptr<Normalise<T>> norm;
        std::unique_ptr<MaxPool<T>> pool;
        Buffer<T> padded_bias;
        long norm_behind = -1;  // the node that alone reads this convolution and normalises it
        bool pending = false;   // its gradient is to be finished by the convolution before it
    };

    Part make_part(const Node& node, size_t i, const Parameters<T>& parameters, long batch) {
        const Layout &in = values_[size_t(node.from)].layout, &out = values_[i + 1].layout;
        Part part;
        part.node = node;
        if (node.weight.present()) part.weight = parameters.find(node.weight);
        if (node.bias.present()) part.bias = parameters.find(node.bias);
        if (node.mean.present()) part.mean = parameters.find(node.mean);
        if (node.variance.present()) part.variance = parameters.find(node.variance);
        if (node.work == Work::convolution) {
            if (Winograd<T>::fits(node, in.step))
                part.winograd = std::make_unique<Winograd<T>>(node, in, out);
            else
                part.direct = std::make_unique<Direct<T>>(node, in, out);
            if (part.bias >= 0) part.padded_bias.resize(out.step);
        } else if (node.work == Work::normalise) {
            part.norm = std::make_unique<Normalise<T>>(node, in, batch);
        } else if (node.work == Work::pool) {
            part.pool = std::make_unique<MaxPool<T>>(node, in, out);
        }
        return part;
    }

    void pack(const T* weights, bool training) {
        for (Part& part : parts_) {
            const T* weight = part.weight >= 0 ? weights + part.weight : nullptr;
            const T* bias = part.bias >= 0 ? weights + part.bias : nullptr;
            if (part.norm) {
                part.norm->pack(weight, bias);
                part.norm->begin();
            }
            bool below = training && values_[size_t(part.node.from)].learns;
            if (part.winograd) part.winograd->pack(weight, below);
            if (part.direct) part.direct->pack(weight, below);
            if (part.padded_bias.size())
                std::memcpy(part.padded_bias.data(), bias, size_t(part.node.out.channels) * sizeof(T));
        }
    }

    // The input as [sample][row][column][channel].
    void gather(const Samples<T>& inputs, const int64_t* order, long samples) {
        const Layout& layout = values_[0].layout;
        const long pixels = layout.pixels();
        T* to = values_[0].data.data();
        if (layout.step != layout.shape.channels) std::memset(to, 0, size_t(samples * layout.sample()) * sizeof(T));
        for (long j = 0; j < samples; j++, to += layout.sample())
            for (long c = 0; c < layout.shape.channels; c++) {
                long start = order[j] * inputs.shape.size() + c * pixels;
                if (inputs.values)
                    for (long p = 0; p < pixels; p++) to[p * layout.step + c] = inputs.values[start + p];
                else
                    for (long p = 0; p < pixels; p++) to[p * layout.step + c] = inputs.table_of(c)[inputs.bytes[start + p]];
            }
    }

    bool uses_running(const Part& part, bool training) const { return !training && part.mean >= 0; }

    void forward_part(Part& part, size_t i, long samples, T* weights, bool training) {
        const Node& node = part.node;
        const Value& in = values_[size_t(node.from)];
        Value& out = values_[i + 1];
        const T *x = in.data.data(), *other = node.other >= 0 ? values_[size_t(node.other)].data.data() : nullptr;
        T* y = out.data.data();
        switch (node.work) {
            case Work::convolution: {
                Part* behind = part.norm_behind >= 0 ? &parts_[size_t(part.norm_behind)] : nullptr;
                bool collects = behind && !uses_running(*behind, training);
                const T* bias = part.padded_bias.size() ? part.padded_bias.data() : nullptr;
                for_groups(part, samples, [&](long first, long count) {
                    const T* from = x + first * in.layout.sample();
                    T* to = y + first * out.layout.sample();
                    if (part.winograd)
                        part.winograd->forward(from, bias, to, count);
                    else
                        part.direct->forward(from, bias, to, count);
                    if (collects) behind->norm->collect(y, first, count);
                });
                return;
            }
            case Work::normalise: {
                bool collected = node.from > 0 && parts_[size_t(node.from) - 1].norm_behind == long(i);
                if (uses_running(part, training)) {
                    part.norm->use_running(weights + part.mean, weights + part.variance);
                } else {
                    if (!collected) part.norm->collect(x, 0, samples);
                    bool moves = training && part.mean >= 0;
                    part.norm->settle(moves ? weights + part.mean : nullptr, moves ? weights + part.variance : nullptr);
                }
                return part.norm->apply(x, other, y, samples);
            }
            case Work::pool: return part.pool->forward(x, y, samples, training);
            case Work::average: return average_forward<T>(node, in.layout, out.layout, x, y, samples);
            default: return add_and_activate<T>(x, other, y, node.activation, samples * out.layout.sample());
        }
    }

    void backward_part(Part& part, size_t i, long samples, T* gradient) {
        const Node& node = part.node;
        Value &in = values_[size_t(node.from)], &out = values_[i + 1];
        const long size = samples * in.layout.sample();
        switch (node.work) {
            case Work::convolution: return backward_convolution(part, in, out, samples, gradient);
            case Work::normalise: return backward_norm(part, in, out, samples, gradient);
            case Work::pool: return part.pool->backward(out.gradient.data(), zeroed(in, size), samples);
            case Work::average:
                return average_backward<T>(node, in.layout, out.layout, out.gradient.data(), zeroed(in, size), samples);
            default:
                for (long each : {node.from, node.other})
                    if (each >= 0 && values_[size_t(each)].learns) {
                        bool add = values_[size_t(each)].has_gradient;
                        T* to = gradient_of(values_[size_t(each)], size);
                        before_activation<T>(out.gradient.data(), out.data.data(), to, add, node.activation, size);
                    }
        }
    }

    void backward_convolution(Part& part, Value& in, Value& out, long samples, T* gradient) {
        T *g = out.gradient.data(), *bias = part.bias >= 0 ? gradient + part.bias : nullptr;
        bool is_new = in.learns && !in.has_gradient;
        T* to = in.learns ? gradient_of(in, samples * in.layout.sample()) : nullptr;
        Part* behind = part.norm_behind >= 0 ? &parts_[size_t(part.norm_behind)] : nullptr;
        part.winograd ? part.winograd->begin_gradient() : part.direct->begin_gradient();
        for_groups(part, samples, [&](long first, long count) {
            const long from = first * in.layout.sample(), at = first * out.layout.sample();
            if (behind && behind->pending) behind->norm->to_input(g, out.data.data(), g, false, first, count, samples);
            T* own = to ? to + from : nullptr;
            if (is_new) std::memset(own, 0, size_t(count * in.layout.sample()) * sizeof(T));
            if (part.winograd)
                part.winograd->backward(in.data.data() + from, g + at, own, count);
            else
                part.direct->backward(in.data.data() + from, g + at, own, count);
        });
        part.winograd ? part.winograd->end_gradient(gradient + part.weight) : part.direct->end_gradient(gradient + part.weight);
        for (long c = 0; bias && c < out.layout.step; c += kLanes<T>) {
            Vec<T> sum{};
            for (long s = 0; s < samples; s++) {
                Vec<T> own{};  // a sum of sums, so that long ones lose little
                for (long p = 0; p < out.layout.pixels(); p++) own += load(g + s * out.layout.sample() + p * out.layout.step + c);
                sum += own;
            }
            for (long k = 0; k < std::min<long>(kLanes<T>, out.layout.shape.channels - c); k++) bias[c + k] += sum[k];
        }
    }

    void backward_norm(Part& part, Value& in, Value& out, long samples, T* gradient) {
        const Node& node = part.node;
        T* other = nullptr;
        bool add = false;
        if (node.other >= 0 && values_[size_t(node.other)].learns) {
            add = values_[size_t(node.other)].has_gradient;
            other = gradient_of(values_[size_t(node.other)], samples * in.layout.sample());
        }
        part.norm->gather(out.gradient.data(), out.data.data(), in.data.data(), other, add, samples);
        part.norm->parameter_gradients(part.weight >= 0 ? gradient + part.weight : nullptr,
                                       part.bias >= 0 ? gradient + part.bias : nullptr, samples);
        if (!in.learns) return;
        part.pending = node.from > 0 && parts_[size_t(node.from) - 1].norm_behind >= 0;
        if (part.pending) {
            std::swap(in.gradient, out.gradient);
            in.has_gradient = true;
            return;
        }
        bool adds = in.has_gradient;
        T* to = gradient_of(in, samples * in.layout.sample());
        part.norm->to_input(out.gradient.data(), in.data.data(), to, adds, 0, samples, samples);
    }

    template <class Body>
    static void for_groups(const Part& part, long samples, Body&& body) {
        long group = part.winograd ? part.winograd->group() : 1;
        for (long first = 0; first < samples; first += group) body(first, std::min(group, samples - first));
    }

    T* gradient_of(Value& value, long size) {
        if (!value.has_gradient) acquire(value.gradient, size);
        value.has_gradient = true;
        return value.gradient.data();
    }
    T* zeroed(Value& value, long size) {
        bool is_new = !value.has_gradient;
        T* to = gradient_of(value, size);
        if (is_new) std::memset(to, 0, size_t(size) * sizeof(T));
        return to;
    }

    // Memory is used again: what is large is not asked of the system in every step.
    void acquire(Buffer<T>& buffer, long size) {
        if (buffer.size() >= size) return;
        release(buffer);
        long best = -1;
        for (size_t i = 0; i < free_.size(); i++)
            if (free_[i].size() >= size && (best < 0 || free_[i].size() < free_[size_t(best)].size())) best = long(i);
        if (best < 0) {
            buffer.resize(size, false);
            return;
        }
        std::swap(buffer, free_[size_t(best)]);
        std::swap(free_[size_t(best)], free_.back());
        free_.pop_back();
    }
    void release(Buffer<T>& buffer) {
        if (buffer.size()) free_.push_back(std::move(buffer));
        buffer = Buffer<T>();
    }
    // Without a way back, what nobody reads any more.
    void release_read(size_t node) {
        for (size_t v = 0; v <= node; v++) {
            bool is_read = false;
            for (size_t later = node + 1; later < parts_.size(); later++)
                is_read = is_read || parts_[later].node.from == long(v) || parts_[later].node.other == long(v);
            if (!is_read) release(values_[v].data);
        }
    }
    void release_all() {
        for (Value& value : values_) {
            release(value.data);
            release(value.gradient);
            value.has_gradient = false;
        }
    }

    std::vector<Value> values_;
    std::vector<Part> parts_;
    // A thread keeps some memory from one client to the next: fresh pages cost about 5 % of a client's time.
    static constexpr long kKeptBytes = 128L << 20;
    static inline thread_local std::vector<Buffer<T>> free_;
};

template <class T>
std::unique_ptr<GraphTrunk<T>> make_graph_trunk(const Network& net, const Parameters<T>& parameters, long batch) {
    return std::make_unique<Nodes<T>>(net, parameters, batch);
}
template std::unique_ptr<GraphTrunk<float>> make_graph_trunk(const Network&, const Parameters<float>&, long);
template std::unique_ptr<GraphTrunk<double>> make_graph_trunk(const Network&, const Parameters<double>&, long);

}  // namespace coterie
