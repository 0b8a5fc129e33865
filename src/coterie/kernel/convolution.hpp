// Convolution with stride 1 (tiles.hpp): forward, backward to the input, gradient.
#pragma once

#include <algorithm>
#include <vector>

#include "maps.hpp"
#include "tiles.hpp"
#include "transpose.hpp"
#include "ways.hpp"

namespace coterie {

// Samples of a block, neighbours, with a kernel of their own: its packed weights and bias.
template <class T>
struct SampleGroup {
    long first, size;
    const T* kernel;
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
          dz_({stage.convolved.channels, stage.used_height(), stage.used_width()}, samples,
              std::max<long>(0, stage.kernel_width - 1 - stage.pad_width),
              std::max<long>(0, stage.in.width + stage.pad_width - stage.used_width())),
          ways_(stage, samples, stage.domain.domains > 0) {
        long channels = stage.in.channels, outputs = stage.convolved.channels;
        long taps = stage.kernel_height * stage.kernel_width;
        forward_.per_column = channels;
        forward_.per_row = channels * stage.kernel_width;
        backward_.per_column = ways_.backward_turned ? whole(outputs) / kLanes<T> : outputs;
        backward_.per_row = backward_.per_column * stage.kernel_width;
        for (long ky = 0; ky < stage.kernel_height; ky++)
            for (long kx = 0; kx < stage.kernel_width; kx++) {
                for (long c = 0; c < channels; c++) {
                    forward_.offset.push_back(int32_t(c * in_.channel + ky * in_.row + kx * in_.column));
                    forward_.weight.push_back(int32_t((c * taps + ky * stage.kernel_width + kx) * outputs));
                }
                long back = ky * dz_.row + kx * dz_.column;
                for (long o = 0; o < outputs && !ways_.backward_turned; o++)
                    backward_.offset.push_back(int32_t(o * dz_.channel - back));
                for (long o = 0; o < outputs && ways_.backward_turned; o += kLanes<T>) {
                    backward_.offset.push_back(int32_t(o - back * whole(outputs)));
                    backward_.weight.push_back(int32_t((ky * stage.kernel_width + kx) * outputs + o));
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
        if (ways_.backward_turned || ways_.gradient_turned) dz_turned_.resize(dz_.channel * whole(outputs));
        row_.resize(stage.used_width() * whole(outputs) * samples);
        share_out({{0, samples, nullptr}});
    }

    // Whether a few samples with a kernel of their own are cheaper as a group of a larger block than as a block.
    static bool pays_to_join(const TrunkStage& stage, long samples) {
        return Ways<T>(stage, samples, true).cost < Ways<T>(stage, samples, false).cost;
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
        if (!for_backward || ways_.backward_turned) return;
        if (!backward_weights_.size()) backward_weights_.resize(long(backward_source_.size()));
        for (size_t k = 0; k < backward_source_.size(); k++)
            backward_weights_.data()[k] = groups_[0].weights[backward_source_[k]];
    }

    // The same for groups with kernels of their own, in which the bias, if there is one, begins at `bias`.
    void pack(const std::vector<SampleGroup<T>>& groups, long bias) {
        share_out(groups);
        for (size_t g = 0; g < groups.size(); g++) {
            groups_[g].weights = groups[g].kernel;
            groups_[g].bias = bias >= 0 ? groups[g].kernel + bias : nullptr;
        }
    }

    // Row `y` of the output for all channels: `out` is (channel 0, column 0) of that row.
    void forward_row(Map<T> in, long y, Activation activation, T* out, long out_channel, bool may_overrun) {
        long channels = stage_.convolved.channels, lanes = stage_.used_width() * samples_;
        if (!ways_.forward_turned)
            return convolve_row<T>(forward_, forward_weights_.data(), channels, under(in, y), groups_[0].bias, activation, out,
                                   out_channel, lanes, may_overrun, forward_part(y));
        for (const Group& group : groups_)
            convolve_turned<T>(forward_, group.weights, channels, under(in, y), group.bias, activation, row_.data(),
                               group.out_lanes, forward_part(y));
        transpose<T>([&](long lane) { return row_.data() + lane * whole(channels); }, lanes, channels, out, out_channel, true);
    }

    // Before what follows, as `dz` has changed.
    void begin_backward() { dz_is_turned_ = false; }

    // The gradient with respect to the input; may write part of a vector behind a row's end.
    void backward(Map<T> dz, Map<T> out) {
        const TrunkStage& s = stage_;
        if (!ways_.backward_turned) {
            for (long y = 0; y < s.in.height; y++)
                convolve_row<T>(backward_, backward_weights_.data(), s.in.channels, dz.at(0, y + s.pad_height, s.pad_width),
                                nullptr, Activation::none, out.at(0, y), out.channel, s.in.width * samples_, true,
                                backward_part(y));
            return;
        }
        turn(dz);
        for (const Group& group : groups_)
            for (long y = 0; y < s.in.height; y++) turned_backward(group, y, out.at(0, y), out.channel);
    }

    // Adds the share of a group of this block to the gradients; if they are `fresh`, nothing is there yet, not even zeros.
    void weight_gradient(Map<T> in, Map<T> dz, long group, T* gradient, T* bias_gradient, bool fresh) {
        long outputs = stage_.convolved.channels;
        if (!ways_.gradient_turned) {
            if (fresh) std::memset(gradient, 0, size_t(stage_.weights()) * sizeof(T));
            if (fresh && bias_gradient) std::memset(bias_gradient, 0, size_t(outputs) * sizeof(T));
            return gradient_by_lanes(in, dz, gradient, bias_gradient);
        }
        turn(dz);
        for (long first = 0; first < outputs; first += 2 * kLanes<T>)
            if (outputs - first > kLanes<T>)
                gradient_turned<2>(in, groups_[size_t(group)], first, gradient, bias_gradient, fresh);
            else
                gradient_turned<1>(in, groups_[size_t(group)], first, gradient, bias_gradient, fresh);
    }

   private:
    struct Group {
        long first = 0, size = 0;
        std::vector<int32_t> out_lanes, in_lanes;     // of a row of outputs, and of inputs
        std::vector<int32_t> dz_places, under_dz;     // of all rows of outputs, in `dz_turned_`; and where the input is
        const T *weights = nullptr, *bias = nullptr;
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
            Group& group = groups_[g];
            if (group.first == groups[g].first && group.size == groups[g].size) continue;
            group.first = groups[g].first;
            group.size = groups[g].size;
            fill(group.out_lanes, stage_.used_width(), groups[g]);
            fill(group.in_lanes, stage_.in.width, groups[g]);
            if (!ways_.gradient_turned) continue;
            group.dz_places.clear();
            group.under_dz.clear();
            for (long y = 0; y < stage_.used_height(); y++)
                for (int32_t lane : group.out_lanes) {
                    group.dz_places.push_back(int32_t(turned_dz(y, lane) - dz_turned_.data()));
                    group.under_dz.push_back(int32_t(y * in_.row + lane));
                }
        }
    }

    // The parts of the kernel that meet the map in row `y`, for some lanes.
    auto forward_part(long y) const {
        return [this, y](long first, long last) {
            const TrunkStage& s = stage_;
            return KernelPart{std::max<long>(0, s.pad_height - y), std::min(s.kernel_height, s.in.height + s.pad_height - y),
                              std::max<long>(0, s.pad_width - last / samples_),
                              std::min(s.kernel_width, s.in.width + s.pad_width - first / samples_)};
        };
    }
    auto backward_part(long y) const {
        return [this, y](long first, long last) {
            const TrunkStage& s = stage_;
            return KernelPart{std::max<long>(0, y + s.pad_height - s.used_height() + 1),
                              std::min(s.kernel_height, y + s.pad_height + 1),
                              std::max<long>(0, first / samples_ + s.pad_width - s.used_width() + 1),
                              std::min(s.kernel_width, last / samples_ + s.pad_width + 1)};
        };
    }
    // Where the first tap of the kernel meets the input of output row `y`.
    const T* under(Map<T> in, long y) const { return in.at(0, y - stage_.pad_height, -stage_.pad_width); }

    T* turned_dz(long y, long lane) {
        return dz_turned_.data() + (dz_.left + y * dz_.row + lane) * whole(stage_.convolved.channels);
    }

    void turn(Map<T> dz) {
        if (dz_is_turned_) return;
        long lanes = stage_.used_width() * samples_, outputs = stage_.convolved.channels;
        for (long y = 0; y < stage_.used_height(); y++)
            transpose<T>([&](long o) { return dz.at(o, y); }, outputs, lanes, turned_dz(y, 0), whole(outputs), true);
        dz_is_turned_ = true;
    }

    void turned_backward(const Group& group, long y, T* out, long out_channel) {
        const TrunkStage& s = stage_;
        long outputs = s.convolved.channels, kernel = s.kernel_height * s.kernel_width * outputs;
        const T* dz = turned_dz(y + s.pad_height, s.pad_width * samples_);
        for_row_blocks<kSumPositions>(long(group.in_lanes.size()), [&](auto positions, long at) {
            constexpr int P = decltype(positions)::value;
            const int32_t* some = group.in_lanes.data() + at;
            KernelPart part = backward_part(y)(some[0], some[P - 1]);
            for_row_blocks<kSumChannels>(s.in.channels, [&](auto channels, long first) {
                constexpr int C = decltype(channels)::value;
                backward_tile_turned<T, P, C>(backward_, part, group.weights + first * kernel, kernel, dz, whole(outputs), some,
                                              out + first * out_channel, out_channel);
            });
        });
    }

    // The rows of the kernel, and for which output rows from `top` to `bottom` each meets the map.
    template <class Body>
    void for_kernel_rows(long top, long bottom, Body&& body) const {
        for (long ky = 0; ky < stage_.kernel_height; ky++) {
            long y0 = std::max({top, stage_.pad_height - ky});
            long y1 = std::min({bottom, stage_.used_height(), stage_.in.height + stage_.pad_height - ky});
            if (y0 >= y1) y0 = y1 = top;
            body(ky * forward_.per_row, y0, y1);
        }
    }

    // For N vectors of outputs from `first` on.
    template <int N>
    void gradient_turned(Map<T> in, const Group& group, long first, T* gradient, T* bias_gradient,
                         bool fresh) const {
        long outputs = stage_.convolved.channels, width = long(group.out_lanes.size());
        const T* dz = dz_turned_.data() + first;
        auto add = [&](T* to, const Vec<T>* sums) {
            for (long j = 0; j < N; j++, to += kLanes<T>)
                store_first(to, fresh ? sums[j] : load(to) + sums[j], outputs - first - j * kLanes<T>);
        };
        for_kernel_rows(0, stage_.used_height(), [&](long row, long y0, long y1) {
            for_row_blocks<kTurnedRows>(forward_.per_row, [&](auto taps, long tap) {
                constexpr int R = decltype(taps)::value;
                Vec<T> sums[R][N] = {};
                gradient_tile_turned<T, R, N>(sums, under(in, 0), forward_.offset.data() + row + tap,
                                              group.under_dz.data() + y0 * width, dz, group.dz_places.data() + y0 * width,
                                              (y1 - y0) * width);
                for (int i = 0; i < R; i++) add(gradient + forward_.weight[size_t(row + tap + i)] + first, sums[i]);
            });
        });
        if (!bias_gradient) return;
        Vec<T> sums[N] = {};
        for (int32_t place : group.dz_places)
            for (int j = 0; j < N; j++) sums[j] += load(dz + place + j * kLanes<T>);
        add(bias_gradient + first, sums);
    }

    void gradient_by_lanes(Map<T> in, Map<T> dz, T* gradient, T* bias_gradient) const {
        long height = stage_.used_height(), lanes = stage_.used_width() * samples_, outputs = stage_.convolved.channels;
        long chunk = std::max<long>(1, kGradientChunkBytes / long(sizeof(T)) / (kGradientRows * lanes));
        chunk = (height + blocks_of(height, chunk) - 1) / blocks_of(height, chunk);
        for (long top = 0; top < height; top += chunk)
            for_row_blocks<kGradientRows>(outputs, [&](auto rows, long first_output) {
                constexpr int R = decltype(rows)::value;
                for_kernel_rows(top, top + chunk, [&](long row, long y0, long y1) {
                    if (y0 == y1) return;
                    for_row_blocks<kGradientTaps>(forward_.per_row, [&](auto width, long first) {
                        constexpr int N = decltype(width)::value;
                        T sums[round_up(R * N, kLanes<T>)];
                        gradient_tile<T, R, N>(dz.at(first_output, y0), dz.channel, dz.row, under(in, y0),
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
    MapLayout<T> dz_;
    Ways<T> ways_;
    TapTable<T> forward_, backward_;
    std::vector<Group> groups_;
    std::vector<int32_t> forward_source_, backward_source_;  // where each packed weight comes from
    Buffer<T> forward_weights_, backward_weights_;
    Buffer<T> row_, dz_turned_;  // [position][channel]: of one row of a map; and of `dz` with its borders, which stay zero
    bool dz_is_turned_ = false;
};

}  // namespace coterie
