// BadWire: a wire between a dialler and a listener that can do harm.
#pragma once

#include <functional>
#include <memory>
#include <random>
#include <string>

#include "base/bytes.h"

namespace rabit::testing {

// The handshake has proofs of its own: a changed bit there means another secret.
inline bool IsBehindHandshake(bool is_answer, uint64_t offset) {
  return offset >= (is_answer ? 88u : 104u);
}

// Flips one bit in one piece of 20 to 40, never in two pieces close to each other: a frame whose
// copies are all hit would lose the peer for good reason.
class BitFlipper {
 public:
  explicit BitFlipper(unsigned seed) : random_(seed) {}
  // Whether it has.
  bool Hit(Bytes bytes) {
    if (left_-- > 0) return false;
    left_ = 20 + static_cast<int>(random_() % 20);
    const size_t bit = random_() % (bytes.size() * 8);
    bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    return true;
  }

 private:
  std::mt19937 random_;
  int left_ = 20;
};

// Listens on an address of its own and passes bytes on to `target` and back.
class BadWire {
 public:
  struct Piece {
    int connection = 0;     // in the order of their making, from 0
    bool is_answer = false;  // from the target to the dialler
    uint64_t offset = 0;    // of the first byte, in its direction of the connection
    Bytes bytes;
  };
  enum class Fate {
    kPass,
    kSwallow,       // the piece is gone; nobody is told
    kSwallowOneByte,  // the first byte is
    kReset,         // both ends see the connection break
    kResetTarget,   // the target does; the dialler hears nothing more
  };
  // May change the bytes.  One call at a time; any thread.
  using Harm = std::function<Fate(const Piece& piece)>;

  BadWire(const std::string& target, Harm harm);
  ~BadWire();
  std::string address() const;

 private:
  class Pump;
  const std::unique_ptr<Pump> pump_;
};

}  // namespace rabit::testing
