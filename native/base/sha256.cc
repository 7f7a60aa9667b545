#include "base/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace rabit {
namespace {

constexpr std::array<uint32_t, 64> kRoundConstants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

constexpr std::array<uint32_t, 8> kInitialState = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                                   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

uint32_t LoadBig(const std::byte* from) {
  uint32_t value;
  std::memcpy(&value, from, sizeof value);
  return __builtin_bswap32(value);
}

void StoreBig(std::byte* to, uint32_t value) {
  value = __builtin_bswap32(value);
  std::memcpy(to, &value, sizeof value);
}

void Blocks(std::array<uint32_t, 8>& state, const std::byte* data, size_t blocks) {
  for (; blocks > 0; --blocks, data += 64) {
    std::array<uint32_t, 64> w;
    for (size_t t = 0; t < 16; ++t) w[t] = LoadBig(data + 4 * t);
    for (size_t t = 16; t < 64; ++t) {
      const uint32_t x = w[t - 15];
      const uint32_t y = w[t - 2];
      const uint32_t s0 = std::rotr(x, 7) ^ std::rotr(x, 18) ^ (x >> 3);
      const uint32_t s1 = std::rotr(y, 17) ^ std::rotr(y, 19) ^ (y >> 10);
      w[t] = w[t - 16] + s0 + w[t - 7] + s1;
    }
    auto [a, b, c, d, e, f, g, h] = state;
    for (size_t t = 0; t < 64; ++t) {
      const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
      const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
      const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRoundConstants[t] + w[t];
      const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
      h = g;
      g = f;
      f = e;
      e = d + t1;
      d = c;
      c = b;
      b = a;
      a = t1 + t2;
    }
    const std::array<uint32_t, 8> mixed = {a, b, c, d, e, f, g, h};
    for (size_t i = 0; i < 8; ++i) state[i] += mixed[i];
  }
}

}  // namespace

Sha256::Sha256() : state_(kInitialState) {}

void Sha256::Update(ConstBytes bytes) {
  const size_t held = total_bytes_ % 64;
  total_bytes_ += bytes.size();
  if (held > 0) {
    const size_t taken = std::min(bytes.size(), 64 - held);
    std::copy_n(bytes.begin(), taken, block_.begin() + static_cast<std::ptrdiff_t>(held));
    bytes = bytes.subspan(taken);
    if (held + taken < 64) return;
    Blocks(state_, block_.data(), 1);
  }
  Blocks(state_, bytes.data(), bytes.size() / 64);
  bytes = bytes.subspan(bytes.size() / 64 * 64);
  std::copy(bytes.begin(), bytes.end(), block_.begin());
}

Digest Sha256::Finish() {
  const uint64_t total_bits = total_bytes_ * 8;
  const size_t held = total_bytes_ % 64;
  std::array<std::byte, 128> tail{};
  std::copy_n(block_.begin(), held, tail.begin());
  tail[held] = std::byte{0x80};
  const size_t tail_bytes = held < 56 ? 64 : 128;
  StoreBig(tail.data() + tail_bytes - 8, static_cast<uint32_t>(total_bits >> 32));
  StoreBig(tail.data() + tail_bytes - 4, static_cast<uint32_t>(total_bits));
  Blocks(state_, tail.data(), tail_bytes / 64);
  Digest digest;
  for (size_t i = 0; i < 8; ++i) StoreBig(digest.data() + 4 * i, state_[i]);
  return digest;
}

Digest Sha256Of(ConstBytes bytes) {
  Sha256 hash;
  hash.Update(bytes);
  return hash.Finish();
}

}  // namespace rabit
