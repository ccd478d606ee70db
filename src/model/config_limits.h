// What the numbers of a model's description are held to.
#pragma once

namespace kvcake {

constexpr int kMaxDimension = 1 << 20;
constexpr int kMaxVocab = 1 << 24;
constexpr int kMaxPositions = 1 << 30;
constexpr int kMaxLayers = 4096;
constexpr int kMaxExperts = 1 << 17;  // of all layers: each has tensors of its own

}  // namespace kvcake
