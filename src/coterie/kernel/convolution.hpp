// Convolution with stride 1 (tiles.hpp): forward, backward to the input, gradient.
#pragma once

#include <algorithm>
#include <vector>

#include "maps.hpp"
#include "tiles.hpp"
#include "transpose.hpp"

namespace coterie {

// Samples of a block, neighbours, with a kernel of their own: its packed weights and bias, its weights for the way back, and
// where its gradient is added up (both null where there is no way back).
template <class T>
struct SampleGroup {
    long first, size;
    const T *kernel, *backward;
    T* share;
};

// One convolution for blocks of a fixed number of samples, with one kernel for all or, if it is `routed`, one for every group
// of them. Its weights are packed with the outputs innermost.
template <class T>
class Convolution {
   public:
    Convolution(const TrunkStage& stage, long samples)
        : stage_(stage),
          samples_(samples),
          in_(stage.in, samples, stage.pad_width, stage.pad_width),
          // Going back, the kernel overhangs the map by (kernel - 1 - padding), further right where a pool dropped a column.
          overhang_(std::max<long>(0, stage.kernel_width - 1 - stage.pad_width)),
          dz_({stage.convolved.channels, stage.used_height(), stage.used_width()}, samples, overhang_,
              std::max<long>(0, stage.in.width + stage.pad_width - stage.used_width())),
          ways_(stage, samples) {
        long channels = stage.in.channels, outputs = stage.convolved.channels;
        long taps = stage.kernel_height * stage.kernel_width;
        forward_.per_column = channels;
        forward_.per_row = channels * stage.kernel_width;
        backward_.per_column = outputs;
        backward_.per_row = outputs * stage.kernel_width;
        for (long ky = 0; ky < stage.kernel_height; ky++)
            for (long kx = 0; kx < stage.kernel_width; kx++) {
                for (long c = 0; c < channels; c++) {
                    forward_.offset.push_back(int32_t(c * in_.channel + ky * in_.row + kx * in_.column));
                    forward_.weight.push_back(int32_t((c * taps + ky * stage.kernel_width + kx) * outputs));
                }
                for (long o = 0; o < outputs; o++) {
                    backward_.weight.push_back(int32_t(long(backward_.offset.size()) * whole(channels)));
                    backward_.offset.push_back(int32_t(o * dz_.channel - ky * dz_.row - kx * dz_.column));
                }
            }
        // Where channels are in rows, the tiles read weights as [block of rows][tap][row].
        if (!ways_.forward_turned)
            for_blocks(outputs, [&](long first, long rows) {
                for (long tap = 0; tap < taps * channels; tap++)
                    for (long i = 0; i < rows; i++) forward_source_.push_back(forward_.weight[size_t(tap)] + int32_t(first + i));
            });
        if (!ways_.backward_turned)
            for_blocks(channels, [&](long first, long rows) {
                for (long tap = 0; tap < taps; tap++)
                    for (long o = 0; o < outputs; o++)
                        for (long i = 0; i < rows; i++)
                            backward_source_.push_back(int32_t(((first + i) * taps + tap) * outputs + o));
            });
        forward_weights_.resize(long(forward_source_.size()));
        if (ways_.gradient_turned) dz_turned_.resize(stage.used_height() * stage.used_width() * samples * whole(outputs));
        row_.resize(std::max(stage.used_width() * whole(outputs), stage.in.width * whole(channels)) * samples);
        share_out({{0, samples, nullptr, nullptr, nullptr}});
    }

    const MapLayout<T>& in_layout() const { return in_; }
    const MapLayout<T>& dz_layout() const { return dz_; }

    // Make the weights ready; done once per step. `weight` and `bias` say where they begin among all packed `weights`, which
    // must stay where they are.
    void pack(const T* weights, long weight, long bias, bool for_backward) {
        groups_[0].weights = weights + weight;
        groups_[0].bias = bias >= 0 ? weights + bias : nullptr;
        for (size_t k = 0; k < forward_source_.size(); k++)
            forward_weights_.data()[k] = groups_[0].weights[forward_source_[k]];
        if (!for_backward) return;
        if (!backward_weights_.size()) backward_weights_.resize(backward_size(stage_));
        groups_[0].backward = backward_weights_.data();
        if (ways_.backward_turned) return turn_kernel(stage_, groups_[0].weights, backward_weights_.data());
        for (size_t k = 0; k < backward_source_.size(); k++)
            backward_weights_.data()[k] = groups_[0].weights[backward_source_[k]];
    }

    // The same for groups with kernels of their own, in which the bias, if there is one, begins at `bias`.
    void pack(const std::vector<SampleGroup<T>>& groups, long bias) {
        share_out(groups);
        for (size_t g = 0; g < groups.size(); g++) {
            groups_[g].weights = groups[g].kernel;
            groups_[g].backward = groups[g].backward;
            groups_[g].bias = bias >= 0 ? groups[g].kernel + bias : nullptr;
            groups_[g].gradient = groups[g].share;
            groups_[g].bias_gradient = bias >= 0 && groups[g].share ? groups[g].share + bias : nullptr;
        }
    }

    // The weights of a kernel for a turned way back, [place in the kernel][output][channel].
    static long backward_size(const TrunkStage& s) {
        return s.kernel_height * s.kernel_width * s.convolved.channels * whole(s.in.channels);
    }
    static void turn_kernel(const TrunkStage& s, const T* weights, T* to) {
        long channels = s.in.channels, outputs = s.convolved.channels, places = s.kernel_height * s.kernel_width;
        for (long place = 0; place < places; place++, to += outputs * whole(channels))
            transpose<T>([&](long c) { return weights + (c * places + place) * outputs; }, channels, outputs, to,
                         whole(channels), true);
    }

    // Row `y` of the output for all channels: `out` is (channel 0, column 0) of that row.
    void forward_row(Map<T> in, long y, Activation activation, T* out, long out_channel, bool may_overrun) {
        const TrunkStage& s = stage_;
        long row_begin = std::max<long>(0, s.pad_height - y);
        long row_end = std::min(s.kernel_height, s.in.height + s.pad_height - y);
        long channels = s.convolved.channels, lanes = s.used_width() * samples_;
        const T* origin = in.at(0, y - s.pad_height, -s.pad_width);
        auto part_at = [&](long first, long last) {
            return KernelPart{row_begin, row_end, std::max<long>(0, s.pad_width - last / samples_),
                              std::min(s.kernel_width, s.in.width + s.pad_width - first / samples_)};
        };
        if (!ways_.forward_turned)
            return convolve_row<T>(forward_, forward_weights_.data(), channels, origin, groups_[0].bias, activation, out,
                                   out_channel, lanes, may_overrun, part_at);
        for (const Group& group : groups_)
            convolve_turned<T>(forward_, group.weights, channels, origin, group.bias, activation, row_.data(), group.out_lanes,
                               part_at);
        turn_row(channels, lanes, out, out_channel);
    }

    // Row `y` of the gradient with respect to the input; may write up to two vectors behind the row's end.
    void backward_row(Map<T> dz, long y, T* out, long out_channel) {
        const TrunkStage& s = stage_;
        long row_begin = std::max<long>(0, y + s.pad_height - s.used_height() + 1);
        long row_end = std::min(s.kernel_height, y + s.pad_height + 1);
        long channels = s.in.channels, lanes = s.in.width * samples_;
        const T* origin = dz.at(0, y + s.pad_height, s.pad_width);
        auto part_at = [&](long first, long last) {
            return KernelPart{row_begin, row_end, std::max<long>(0, first / samples_ + s.pad_width - s.used_width() + 1),
                              std::min(s.kernel_width, last / samples_ + s.pad_width + 1)};
        };
        if (!ways_.backward_turned)
            return convolve_row<T>(backward_, groups_[0].backward, channels, origin, nullptr, Activation::none, out,
                                   out_channel, lanes, true, part_at);
        for (const Group& group : groups_)
            convolve_turned<T>(backward_, group.backward, channels, origin, nullptr, Activation::none, row_.data(),
                               group.in_lanes, part_at);
        turn_row(channels, lanes, out, out_channel);
    }

    // Adds this block's share to the gradients; groups have theirs.
    void weight_gradient(Map<T> in, Map<T> dz, T* gradient, T* bias_gradient) {
        if (!ways_.gradient_turned) return gradient_by_lanes(in, dz, gradient, bias_gradient);
        long height = stage_.used_height(), lanes = stage_.used_width() * samples_, outputs = stage_.convolved.channels;
        for (long y = 0; y < height; y++)
            transpose<T>([&](long o) { return dz.at(o, y); }, outputs, lanes, dz_turned_.data() + y * lanes * whole(outputs),
                         whole(outputs), true);
        if (!ways_.routed) {
            groups_[0].gradient = gradient;
            groups_[0].bias_gradient = bias_gradient;
        }
        for (const Group& group : groups_)
            for (long first = 0; first < outputs; first += 2 * kLanes<T>)
                if (outputs - first > kLanes<T>)
                    gradient_turned<2>(in, group, first);
                else
                    gradient_turned<1>(in, group, first);
    }

   private:
    // Which products have the channels in vectors, and not the positions: what needs fewer vectors, or has many kernels.
    struct Ways {
        bool routed, forward_turned, backward_turned, gradient_turned;

        Ways(const TrunkStage& s, long samples) {
            long outputs = s.convolved.channels, lanes = s.used_width() * samples;
            double lane_sums = kLaneSums / double(s.used_height());
            routed = s.domain.domains > 0;
            forward_turned = routed || turned_pays(lanes, outputs, s.taps(), 0);
            backward_turned = routed || turned_pays(s.in.width * samples, s.in.channels, s.weights() / s.in.channels, 0);
            gradient_turned = routed || turned_pays(lanes, outputs, s.taps(), lane_sums);
        }
        // For one row of a map, in vectors; counted and measured on AVX-512.
        static bool turned_pays(long lanes, long channels, long taps, double lane_sums) {
            double vectors = blocks_of(lanes, kLanes<T>), panels = blocks_of(channels, kLanes<T>);
            double turned = (kTurned * double(lanes * taps) + kTurning * vectors) * panels;
            return turned < (vectors + lane_sums) * double(channels * taps);
        }
        static constexpr double kTurned = 1.1;   // a vector of channels, with one pointer for every row of its tile
        static constexpr double kTurning = 100;  // a square of values, from one order into the other
        static constexpr double kLaneSums = 6;   // of each pair of channels, for the gradient by lanes
    };

    struct Group {
        std::vector<int32_t> out_lanes, in_lanes;  // of a row of outputs, and of inputs
        const T *weights = nullptr, *backward = nullptr, *bias = nullptr;
        T *gradient = nullptr, *bias_gradient = nullptr;
    };

    static long whole(long channels) { return round_up(channels, kLanes<T>); }

    void share_out(const std::vector<SampleGroup<T>>& groups) {
        groups_.resize(groups.size());
        auto fill = [&](std::vector<int32_t>& lanes, long width, const SampleGroup<T>& group) {
            lanes.clear();
            for (long x = 0; x < width; x++)
                for (long j = 0; j < group.size; j++) lanes.push_back(int32_t(x * samples_ + group.first + j));
        };
        for (size_t g = 0; g < groups.size(); g++) {
            fill(groups_[g].out_lanes, stage_.used_width(), groups[g]);
            fill(groups_[g].in_lanes, stage_.in.width, groups[g]);
        }
    }

    void turn_row(long channels, long lanes, T* out, long out_channel) {
        transpose<T>([&](long lane) { return row_.data() + lane * whole(channels); }, lanes, channels, out, out_channel, true);
    }

    // The rows of the kernel that meet the map in output rows from `top` to `bottom`, and for which of them.
    template <class Body>
    void for_kernel_rows(Map<T> in, long top, long bottom, Body&& body) const {
        for (long ky = 0; ky < stage_.kernel_height; ky++) {
            long y0 = std::max({top, stage_.pad_height - ky});
            long y1 = std::min({bottom, stage_.used_height(), stage_.in.height + stage_.pad_height - ky});
            if (y0 < y1) body(ky * forward_.per_row, y0, y1, in.at(0, y0 - stage_.pad_height, -stage_.pad_width));
        }
    }

    // For N vectors of outputs from `first` on.
    template <int N>
    void gradient_turned(Map<T> in, const Group& group, long first) const {
        long height = stage_.used_height(), outputs = stage_.convolved.channels, length = whole(outputs);
        long dz_row = stage_.used_width() * samples_ * length;
        const T* dz = dz_turned_.data() + first;
        auto add = [&](T* to, const Vec<T>* sums) {
            for (long j = 0; j < N; j++, to += kLanes<T>) store_first(to, load(to) + sums[j], outputs - first - j * kLanes<T>);
        };
        for_kernel_rows(in, 0, height, [&](long row, long y0, long y1, const T* origin) {
            for_row_blocks<kTurnedRows>(forward_.per_row, [&](auto width, long tap) {
                constexpr int R = decltype(width)::value;
                Vec<T> sums[R][N] = {};
                gradient_tile_turned<T, R, N>(sums, origin, forward_.offset.data() + row + tap, in.row, dz + y0 * dz_row, length,
                                              dz_row, y1 - y0, group.out_lanes);
                for (int i = 0; i < R; i++) add(group.gradient + forward_.weight[size_t(row + tap + i)] + first, sums[i]);
            });
        });
        if (!group.bias_gradient) return;
        Vec<T> sums[N] = {};
        for (long y = 0; y < height; y++)
            for (int32_t lane : group.out_lanes)
                for (int j = 0; j < N; j++) sums[j] += load(dz + y * dz_row + lane * length + j * kLanes<T>);
        add(group.bias_gradient + first, sums);
    }

    void gradient_by_lanes(Map<T> in, Map<T> dz, T* gradient, T* bias_gradient) const {
        long height = stage_.used_height(), lanes = stage_.used_width() * samples_, outputs = stage_.convolved.channels;
        long chunk = std::max<long>(1, kGradientChunkBytes / long(sizeof(T)) / (kGradientRows * lanes));
        chunk = (height + blocks_of(height, chunk) - 1) / blocks_of(height, chunk);
        for (long top = 0; top < height; top += chunk)
            for_row_blocks<kGradientRows>(outputs, [&](auto rows, long first_output) {
                constexpr int R = decltype(rows)::value;
                for_kernel_rows(in, top, top + chunk, [&](long row, long y0, long y1, const T* origin) {
                    for_row_blocks<kGradientTaps>(forward_.per_row, [&](auto width, long first) {
                        constexpr int N = decltype(width)::value;
                        T sums[round_up(R * N, kLanes<T>)];
                        gradient_tile<T, R, N>(dz.at(first_output, y0), dz.channel, dz.row, origin,
                                               forward_.offset.data() + row + first, in.row, y1 - y0, lanes, sums);
                        for (int j = 0; j < N; j++) {
                            T* to = gradient + forward_.weight[size_t(row + first + j)] + first_output;
                            for (int i = 0; i < R; i++) to[i] += sums[i * N + j];
                        }
                    });
                });
            });
        if (!bias_gradient) return;
        for (long o = 0; o < outputs; o++) {
            Vec<T> sum{}, other{};  // two chains of additions run at once
            for (long y = 0; y < height; y++) {
                const T* row = dz.at(o, y);
                long lane = 0;
                for (; lane + 2 * kLanes<T> <= lanes; lane += 2 * kLanes<T>) {
                    sum += load(row + lane);
                    other += load(row + lane + kLanes<T>);
                }
                for (; lane < lanes; lane += kLanes<T>) sum += load_first(row + lane, lanes - lane);
            }
            bias_gradient[o] += sum_lanes<T>(sum + other);
        }
    }

    template <class Body>
    static void for_blocks(long rows, Body&& body) {
        int blocks = blocks_of(rows, kChannelRows);
        for (int b = 0; b < blocks; b++) {
            long first = block_start(rows, blocks, b);
            body(first, block_start(rows, blocks, b + 1) - first);
        }
    }

    TrunkStage stage_;
    long samples_;
    MapLayout<T> in_;
    long overhang_;
    MapLayout<T> dz_;
    Ways ways_;
    TapTable<T> forward_, backward_;
    std::vector<Group> groups_;
    std::vector<int32_t> forward_source_, backward_source_;  // where each packed weight comes from
    Buffer<T> forward_weights_, backward_weights_;
    Buffer<T> row_, dz_turned_;  // [position][channel]: of one row of a map, and of a whole one
};

}  // namespace coterie
