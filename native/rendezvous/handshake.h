// The handshake that opens every connection: three fixed-size messages, one round trip.
//
//   dialler -> listener  hello  72 bytes: magic, version, kind, epoch, rank, stream, purpose, nonce
//   listener -> dialler  reply  88 bytes: magic, version, kind, epoch, rank, refusal, nonce, MAC
//   dialler -> listener  proof  32 bytes: MAC
//
// A MAC is HMAC-SHA256 over everything that was exchanged before it, with a key of its own for
// each direction, derived from the secret.  Both nonces are fresh, so nothing can be replayed.
// The first eight bytes are laid out alike in every version, so that a mismatch can be told.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "base/hmac.h"
#include "base/result.h"
#include "base/status.h"
#include "rendezvous/listener.h"

namespace rabit {

inline constexpr uint32_t kHandshakeMagic = 0x54424152;  // "RABT"
inline constexpr uint16_t kHandshakeVersion = 1;
inline constexpr size_t kHelloBytes = 72;
inline constexpr size_t kReplyBytes = 88;
inline constexpr size_t kProofBytes = 32;
inline constexpr size_t kPurposeBytesMax = 15;

using Nonce = std::array<std::byte, 32>;
using Hello = std::array<std::byte, kHelloBytes>;
using Reply = std::array<std::byte, kReplyBytes>;

// The listener's side of the reply.
struct Answer {
  uint64_t epoch = 0;
  int32_t rank = -1;
  bool is_refused = false;  // another epoch: the dialler can tell from `epoch`
};

Hello EncodeHello(const Greeting& greeting, const Nonce& nonce);
// Fails on a stranger's bytes, another version, or fields out of range.  Proves nothing yet.
Result<Greeting> DecodeHello(ConstBytes hello);

Reply EncodeReply(const Secret& secret, const Hello& hello, const Answer& answer,
                  const Nonce& nonce);
// Only after the MAC is found right; kInvalidArgument if the secrets differ.
Result<Answer> DecodeReply(const Secret& secret, const Hello& hello, const Reply& reply);

Digest MakeProof(const Secret& secret, const Hello& hello, const Reply& reply);

// What the first eight bytes say is wrong with a message of `kind` (1 hello, 2 reply), or OK:
// kInvalidArgument for a stranger's, kUnsupported for another version's.
Status CheckPreamble(ConstBytes message, uint16_t kind);

}  // namespace rabit
