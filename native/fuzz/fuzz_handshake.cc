// What a stranger may send before it has proved anything: the hello, and the reply to ours.
#include <algorithm>

#include "fuzz/round_trip.h"
#include "rendezvous/handshake.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rabit;
  const ConstBytes bytes = fuzz::AsBytes(data, size);
  Nonce nonce{};
  if (bytes.size() >= kHelloBytes)
    std::copy_n(bytes.end() - nonce.size(), nonce.size(), nonce.begin());
  fuzz::CheckRoundTrip(bytes, DecodeHello, [&](const Greeting& greeting) {
    const Hello hello = EncodeHello(greeting, nonce);
    return std::vector<std::byte>(hello.begin(), hello.end());
  });
  if (bytes.size() != kReplyBytes) return 0;
  Reply reply;
  std::copy_n(bytes.begin(), kReplyBytes, reply.begin());
  const Secret secret =
      *Secret::FromHex("00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff");
  const Result<Answer> answer = DecodeReply(secret, Hello{}, reply);
  RABIT_CHECK(!answer.ok(), "a reply without the secret was believed");
  return 0;
}
