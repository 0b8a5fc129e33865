// How the products of a convolution (convolution.hpp) are computed.
#pragma once

#include "network.hpp"
#include "vector.hpp"

namespace coterie {

// Which products have the channels of the output in vectors, and not the positions: what costs less, or has many kernels.
// Costs are in vectors multiplied, counted for a block and measured on AVX-512.
template <class T>
struct Ways {
    bool routed, forward_turned, backward_turned, gradient_turned;
    double cost = 0;

    Ways(const TrunkStage& s, long samples, bool for_groups) : routed(for_groups) {
        long outputs = s.convolved.channels, lanes = s.used_width() * samples, in_lanes = s.in.width * samples;
        double rows = double(s.used_height()), weights = double(s.weights()), vectors = blocks_of(outputs, kLanes<T>);
        double turned = vectors * (kTurned * double(lanes * s.taps()) + kTurning * blocks_of(lanes, kLanes<T>));
        double alone = blocks_of(outputs, kLanes<T>) % 2 ? kAlone * double(lanes * s.taps()) : 0;
        double sums = double(in_lanes) * (weights / double(outputs) * vectors + kSumOfLanes * double(s.in.channels));
        double by_lanes = blocks_of(lanes, kLanes<T>) * weights;
        forward_turned = choose(rows * (turned + alone), rows * by_lanes + kPacking * weights);
        backward_turned = choose(double(s.in.height) * sums,
                                 double(s.in.height) * blocks_of(in_lanes, kLanes<T>) * weights + kPacking * weights);
        gradient_turned = choose(rows * turned, rows * by_lanes + kLaneSums * weights);
        // Groups share the vectors of what is done to single positions.
        double positions = double(outputs) * rows * double(s.used_width());
        cost += kPosition * positions * (routed ? double(samples) / kLanes<T> : blocks_of(samples, kLanes<T>));
    }

   private:
    bool choose(double turned, double by_lanes) {
        bool is_turned = routed || turned < by_lanes;
        cost += is_turned ? turned : by_lanes;
        return is_turned;
    }
    static constexpr double kTurned = 1.1;    // a vector of channels, with one pointer for every row of its tile ...
    static constexpr double kAlone = 0.4;     // ... and more, forward, if the tile is one vector wide: bound by loads
    static constexpr double kTurning = 100;   // a square of values, from one order into the other
    static constexpr double kSumOfLanes = 5;  // of one value, for the way back
    static constexpr double kLaneSums = 6;    // of each pair of channels, for the gradient by lanes
    static constexpr double kPacking = 3;     // a weight, from one order into the other
    static constexpr double kPosition = 50;   // pool and activation, both ways
};

}  // namespace coterie
