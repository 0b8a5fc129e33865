// A trunk of nodes (graph_trunk.hpp): their work in order, and the way back.
#include "graph_trunk.hpp"

#include <memory>
#include <vector>

#include "convolver.hpp"
#include "depthwise.hpp"
#include "direct.hpp"
#include "fields.hpp"
#include "memory.hpp"
#include "normalise.hpp"
#include "pointwise.hpp"
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
            if (node.from > 0 && z.users == 1 && net.graph[size_t(node.from) - 1].convolves())
                parts_[size_t(node.from) - 1].norm_behind = long(i);
        }
        for (Part& part : parts_) {
            // What a convolution alone reads and can normalise as it reads is never in memory.
            if (!part.convolver || !part.convolver->normalises() || part.node.from == 0) continue;
            const Part& before = parts_[size_t(part.node.from) - 1];
            Value& between = values_[size_t(part.node.from)];
            if (before.node.work != Work::normalise || before.node.other >= 0 || between.users != 1) continue;
            between.is_kept = false;
            part.norm_before = part.node.from - 1;
            part.source = before.node.from;
        }
    }

    ~Nodes() override {
        release_all();
        memory_.trim();
    }
    Nodes(const Nodes&) = delete;
    Nodes& operator=(const Nodes&) = delete;

    bool learns() const override { return values_.back().learns; }
    void drop_by(const Masks& masks) override { masks_ = masks; }

    void forward(const Samples<T>& inputs, const int64_t* order, long samples, T* weights, bool training, T* rows,
                 long row) override {
        release_all();
        pack(weights, training);
        memory_.acquire(values_[0].data, samples * values_[0].layout.sample());
        gather(inputs, order, samples);
        for (size_t i = 0; i < parts_.size(); i++) {
            if (values_[i + 1].is_kept) memory_.acquire(values_[i + 1].data, samples * values_[i + 1].layout.sample());
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
        memory_.acquire(end.gradient, samples * end.layout.sample());
        end.has_gradient = true;
        const Layout& last = end.layout;
        std::memset(end.gradient.data(), 0, size_t(samples * last.sample()) * sizeof(T));
        for (long c = 0; c < last.shape.channels; c++)
            for (long p = 0; p < last.pixels(); p++)
                for (long j = 0; j < samples; j++)
                    end.gradient.data()[(j * last.pixels() + p) * last.step + c] = features[(c * last.pixels() + p) * stride + j];
        for (size_t i = parts_.size(); i-- > 0;) {
            if (values_[i + 1].learns) backward_part(parts_[i], i, samples, gradient);
            memory_.release(values_[i + 1].gradient);
            values_[i + 1].has_gradient = false;
        }
    }

   private:
    struct Value {
        Layout layout;
        int users = 0;
        bool learns = false, has_gradient = false;
        bool is_kept = true;  // in memory; otherwise its reader makes it anew
        Buffer<T> data, gradient;
    };

    struct Part {
        Node node;
        long weight = -1, bias = -1, mean = -1, variance = -1;  // in the packed order
        long source = 0;                                        // the value that is read
        std::unique_ptr<Convolver<T>> convolver;
        std::unique_ptr<Normalise<T>> norm;
        std::unique_ptr<MaxPool<T>> pool;
        std::unique_ptr<Drop<T>> drop;
        long norm_behind = -1;  // the node that alone reads this convolution and normalises it
        long norm_before = -1;  // the node that this convolution reads and does the work of
        bool pending = false;   // its gradient is to be finished by the convolution before it
    };

    Part make_part(const Node& node, size_t i, const Parameters<T>& parameters, long batch) {
        const Layout &in = values_[size_t(node.from)].layout, &out = values_[i + 1].layout;
        Part part;
        part.node = node;
        part.source = node.from;
        if (node.weight.present()) part.weight = parameters.find(node.weight);
        if (node.bias.present()) part.bias = parameters.find(node.bias);
        if (node.mean.present()) part.mean = parameters.find(node.mean);
        if (node.variance.present()) part.variance = parameters.find(node.variance);
        if (node.work == Work::depthwise) {
            part.convolver = std::make_unique<Depthwise<T>>(node, in, out);
        } else if (node.work == Work::convolution) {
            if (Winograd<T>::fits(node, in.step))
                part.convolver = std::make_unique<BySamples<T, Winograd<T>>>(node, in, out);
            else if (Pointwise<T>::fits(node, in))
                part.convolver = std::make_unique<Pointwise<T>>(node, in, out);
            else
                part.convolver = std::make_unique<BySamples<T, Direct<T>>>(node, in, out);
        } else if (node.work == Work::normalise) {
            part.norm = std::make_unique<Normalise<T>>(node, in, batch);
        } else if (node.work == Work::pool) {
            part.pool = std::make_unique<MaxPool<T>>(node, in, out);
        } else if (node.work == Work::drop) {
            part.drop = std::make_unique<Drop<T>>(node, in);
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
            if (!part.convolver) continue;
            part.convolver->pack(weight, training && values_[size_t(part.node.from)].learns);
            if (bias) part.convolver->set_bias(bias);
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

    Source<T> source_of(const Part& part) {
        return {values_[size_t(part.source)].data.data(),
                part.norm_before >= 0 ? parts_[size_t(part.norm_before)].norm.get() : nullptr};
    }

    bool uses_running(const Part& part, bool training) const { return !training && part.mean >= 0; }

    void forward_part(Part& part, size_t i, long samples, T* weights, bool training) {
        const Node& node = part.node;
        const Value& in = values_[size_t(part.source)];
        Value& out = values_[i + 1];
        const T *x = in.data.data(), *other = node.other >= 0 ? values_[size_t(node.other)].data.data() : nullptr;
        T* y = out.data.data();
        switch (node.work) {
            case Work::convolution:
            case Work::depthwise: {
                Part* behind = part.norm_behind >= 0 ? &parts_[size_t(part.norm_behind)] : nullptr;
                bool collects = behind && !uses_running(*behind, training);
                return part.convolver->forward(source_of(part), y, samples, collects ? behind->norm.get() : nullptr);
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
                if (out.is_kept) part.norm->apply(x, other, y, samples);
                return;
            }
            case Work::pool: return part.pool->forward(x, y, samples, training);
            case Work::drop: return part.drop->forward(training ? masks_ : Masks{}, x, y, samples);
            case Work::average: return average_forward<T>(node, in.layout, out.layout, x, y, samples);
            default: return add_and_activate<T>(x, other, y, node.activation, samples * out.layout.sample());
        }
    }

    void backward_part(Part& part, size_t i, long samples, T* gradient) {
        const Node& node = part.node;
        Value &in = values_[size_t(node.from)], &out = values_[i + 1];
        const long size = samples * in.layout.sample();
        switch (node.work) {
            case Work::convolution:
            case Work::depthwise: return backward_convolution(part, in, out, samples, gradient);
            case Work::normalise: return backward_norm(part, in, out, samples, gradient);
            case Work::pool: return part.pool->backward(out.gradient.data(), zeroed(in, size), samples);
            case Work::drop: {
                bool adds = in.has_gradient;
                T* to = gradient_of(in, size);
                return part.drop->backward(out.gradient.data(), to, adds, samples);
            }
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
        const bool adds = in.has_gradient;
        T* to = in.learns ? gradient_of(in, samples * in.layout.sample()) : nullptr;
        Part* behind = part.norm_behind >= 0 ? &parts_[size_t(part.norm_behind)] : nullptr;
        const Source<T> source = source_of(part);
        if (source.norm) source.norm->begin_gather();
        part.convolver->backward(source, out.gradient.data(), out.data.data(), behind && behind->pending ? behind->norm.get() : nullptr,
                                 to, adds, samples);
        part.convolver->end_gradient(gradient + part.weight, part.bias >= 0 ? gradient + part.bias : nullptr);
    }

    void backward_norm(Part& part, Value& in, Value& out, long samples, T* gradient) {
        const Node& node = part.node;
        T* other = nullptr;
        bool add = false;
        if (node.other >= 0 && values_[size_t(node.other)].learns) {
            add = values_[size_t(node.other)].has_gradient;
            other = gradient_of(values_[size_t(node.other)], samples * in.layout.sample());
        }
        if (out.is_kept) part.norm->gather(out.gradient.data(), out.data.data(), in.data.data(), other, add, samples);
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

    T* gradient_of(Value& value, long size) {
        if (!value.has_gradient) memory_.acquire(value.gradient, size);
        value.has_gradient = true;
        return value.gradient.data();
    }
    T* zeroed(Value& value, long size) {
        bool is_new = !value.has_gradient;
        T* to = gradient_of(value, size);
        if (is_new) std::memset(to, 0, size_t(size) * sizeof(T));
        return to;
    }

    // Without a way back, what nobody reads any more.
    void release_read(size_t node) {
        for (size_t v = 0; v <= node; v++) {
            bool is_read = false;
            for (size_t later = node + 1; later < parts_.size(); later++)
                is_read = is_read || parts_[later].source == long(v) || parts_[later].node.other == long(v);
            if (!is_read) memory_.release(values_[v].data);
        }
    }
    void release_all() {
        for (Value& value : values_) {
            memory_.release(value.data);
            memory_.release(value.gradient);
            value.has_gradient = false;
        }
    }

    std::vector<Value> values_;
    std::vector<Part> parts_;
    Masks masks_;  // of the present step
    static inline thread_local Memory<T> memory_;
};

template <class T>
std::unique_ptr<GraphTrunk<T>> make_graph_trunk(const Network& net, const Parameters<T>& parameters, long batch) {
    return std::make_unique<Nodes<T>>(net, parameters, batch);
}
template std::unique_ptr<GraphTrunk<float>> make_graph_trunk(const Network&, const Parameters<float>&, long);
template std::unique_ptr<GraphTrunk<double>> make_graph_trunk(const Network&, const Parameters<double>&, long);

}  // namespace coterie
