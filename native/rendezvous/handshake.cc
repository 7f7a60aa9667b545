#include "rendezvous/handshake.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/wire.h"

namespace rabit {
namespace {

constexpr uint16_t kKindHello = 1;
constexpr uint16_t kKindReply = 2;
constexpr size_t kSignedReplyBytes = kReplyBytes - sizeof(Digest);

constexpr std::string_view kListenerLabel = "rabit handshake 1: listener to dialler";
constexpr std::string_view kDiallerLabel = "rabit handshake 1: dialler to listener";

Digest DeriveKey(const Secret& secret, std::string_view label) {
  return HmacSha256Of(std::as_bytes(std::span(secret.key)), AsBytes(label));
}

void StorePreamble(std::byte* to, uint16_t kind) {
  StoreLittle(to, kHandshakeMagic);
  StoreLittle(to + 4, kHandshakeVersion);
  StoreLittle(to + 6, kind);
}

Digest ReplyMac(const Secret& secret, const Hello& hello, const Reply& reply) {
  HmacSha256 mac(DeriveKey(secret, kListenerLabel));
  mac.Update(hello);
  mac.Update(ConstBytes(reply).first(kSignedReplyBytes));
  return mac.Finish();
}

}  // namespace

Status CheckPreamble(ConstBytes message, uint16_t kind) {
  if (message.size() < 8 || LoadLittle<uint32_t>(message.data()) != kHandshakeMagic) {
    return InvalidArgument("the other side does not speak rabit's handshake");
  }
  const uint16_t version = LoadLittle<uint16_t>(message.data() + 4);
  if (version != kHandshakeVersion) {
    return Unsupported("the other side speaks handshake version " + std::to_string(version) +
                       ", this process version " + std::to_string(kHandshakeVersion) +
                       "; install the same version of rabit on every host");
  }
  if (LoadLittle<uint16_t>(message.data() + 6) != kind) {
    return Status(Code::kPeerLost, "the other side sent a handshake message out of order");
  }
  return {};
}

Hello EncodeHello(const Greeting& greeting, const Nonce& nonce) {
  RABIT_CHECK(!greeting.purpose.empty() && greeting.purpose.size() <= kPurposeBytesMax,
              "a purpose has 1 to 15 bytes");
  Hello hello{};
  StorePreamble(hello.data(), kKindHello);
  StoreLittle(hello.data() + 8, greeting.epoch);
  StoreLittle(hello.data() + 16, greeting.rank);
  StoreLittle(hello.data() + 20, greeting.stream);
  std::memcpy(hello.data() + 24, greeting.purpose.data(), greeting.purpose.size());
  std::copy(nonce.begin(), nonce.end(), hello.begin() + 40);
  return hello;
}

Result<Greeting> DecodeHello(ConstBytes hello) {
  RABIT_RETURN_IF_ERROR(CheckPreamble(hello, kKindHello));
  if (hello.size() != kHelloBytes) return Internal("a hello has the wrong size");
  Greeting greeting;
  greeting.epoch = LoadLittle<uint64_t>(hello.data() + 8);
  greeting.rank = LoadLittle<int32_t>(hello.data() + 16);
  greeting.stream = LoadLittle<int32_t>(hello.data() + 20);
  const std::string_view field = AsText(hello.subspan(24, kPurposeBytesMax + 1));
  greeting.purpose = field.substr(0, field.find('\0'));
  const bool is_padded =
      std::all_of(field.begin() + static_cast<std::ptrdiff_t>(greeting.purpose.size()), field.end(),
                  [](char c) { return c == '\0'; });
  if (greeting.purpose.empty() || greeting.purpose.size() > kPurposeBytesMax || !is_padded ||
      greeting.rank < -1 || greeting.stream < 0) {
    return InvalidArgument("a hello names no purpose, or a rank or stream out of range");
  }
  return greeting;
}

Reply EncodeReply(const Secret& secret, const Hello& hello, const Answer& answer,
                  const Nonce& nonce) {
  Reply reply{};
  StorePreamble(reply.data(), kKindReply);
  StoreLittle(reply.data() + 8, answer.epoch);
  StoreLittle(reply.data() + 16, answer.rank);
  StoreLittle(reply.data() + 20, uint32_t{answer.is_refused});
  std::copy(nonce.begin(), nonce.end(), reply.begin() + 24);
  const Digest mac = ReplyMac(secret, hello, reply);
  std::copy(mac.begin(), mac.end(), reply.begin() + kSignedReplyBytes);
  return reply;
}

Result<Answer> DecodeReply(const Secret& secret, const Hello& hello, const Reply& reply) {
  RABIT_RETURN_IF_ERROR(CheckPreamble(reply, kKindReply));
  if (!EqualInConstantTime(ReplyMac(secret, hello, reply),
                           ConstBytes(reply).subspan(kSignedReplyBytes))) {
    return InvalidArgument(
        "the other side holds another secret: it belongs to another job, or RABIT_SECRET differs "
        "between the hosts");
  }
  return Answer{LoadLittle<uint64_t>(reply.data() + 8), LoadLittle<int32_t>(reply.data() + 16),
                LoadLittle<uint32_t>(reply.data() + 20) != 0};
}

Digest MakeProof(const Secret& secret, const Hello& hello, const Reply& reply) {
  HmacSha256 mac(DeriveKey(secret, kDiallerLabel));
  mac.Update(hello);
  mac.Update(reply);
  return mac.Finish();
}

}  // namespace rabit
