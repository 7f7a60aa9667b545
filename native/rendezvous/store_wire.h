// What a store's client and server say to each other, after the handshake: a 32-bit length, then a
// request or a response.  One request is under way per connection.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "base/status.h"
#include "rendezvous/board.h"

namespace rabit {

inline constexpr uint8_t kStoreWireVersion = 1;
inline constexpr size_t kStoreLengthBytes = 4;
// Of what follows the length: the largest key and value, and room for fields and error texts.
inline constexpr size_t kStoreFrameBytesMax = kStoreKeyBytesMax + kStoreValueBytesMax + 1024;

// kWill: when the connection ends the server does a kSetOnce, unless the value is empty.
enum class StoreOp : uint8_t { kSet = 1, kGet = 2, kAdd = 3, kSetOnce = 4, kWill = 5 };

struct StoreRequest {
  StoreOp op = StoreOp::kGet;
  std::string key;
  std::string value;     // kSet, kSetOnce, kWill
  int64_t amount = 0;    // kAdd
  uint32_t wait_ms = 0;  // kGet: how long the server waits for the key
};

struct StoreResponse {
  Code code = Code::kOk;
  std::string text;  // the value, the counter in decimal, or the error's message
};

// With the length in front.
std::vector<std::byte> EncodeStoreRequest(const StoreRequest& request);
std::vector<std::byte> EncodeStoreResponse(const StoreResponse& response);
// Without the length.
Result<StoreRequest> DecodeStoreRequest(ConstBytes frame);
Result<StoreResponse> DecodeStoreResponse(ConstBytes frame);

}  // namespace rabit
