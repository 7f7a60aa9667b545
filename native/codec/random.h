// Random numbers without a state: each is a function of a key and a position, so that results do
// not depend on threads, fusion and cuts.
#pragma once

#include <cstdint>
#include <string_view>

namespace rabit {

// The finalizer of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators,
// 2014).
constexpr uint64_t MixBits(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Of one call for one tensor; equal on all ranks that pass the same seed.
constexpr uint64_t KeyOfTensor(uint64_t seed, std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return MixBits(MixBits(seed) ^ hash);
}

// Of one block of it on one rank.
constexpr uint64_t KeyOfBlock(uint64_t tensor_key, uint64_t rank, uint64_t block) {
  return MixBits(MixBits(tensor_key ^ MixBits(rank)) + block);
}

// 32 random bits for position i of a block.  The inner steps are a 32-bit integer hash; the upper
// half of the key enters between them, so that two blocks never share a sequence.
constexpr uint32_t RandomBits(uint64_t block_key, uint32_t i) {
  uint32_t x = static_cast<uint32_t>(block_key) + i * 0x9e3779b9u;
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15) ^ static_cast<uint32_t>(block_key >> 32)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

}  // namespace rabit
