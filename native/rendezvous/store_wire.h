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

inline constexpr uint8_t kStoreWireVersion = 3;
inline constexpr size_t kStoreLengthBytes = 4;
// Of what follows the length: the largest key and value, and room for fields and error texts.
inline constexpr size_t kStoreFrameBytesMax = kStoreKeyBytesMax + kStoreValueBytesMax + 1024;

// kWill: when the connection ends the server sets the key unless it exists, or the value is empty.
enum class StoreOp : uint8_t { kSet = 1, kWatch = 2, kCompareAndSet = 3, kWill = 4 };

struct StoreRequest {
  StoreOp op = StoreOp::kWatch;
  std::string key;
  std::string value;     // kSet, kCompareAndSet, kWill
  std::string unless;    // kWatch: a key that ends the wait when it is set; empty: none
  uint64_t version = 0;  // kWatch: that was seen; kCompareAndSet: that the key must have
  uint32_t wait_ms = 0;  // kWatch: how long the server waits for a later version
};

struct StoreResponse {
  Code code = Code::kOk;
  bool is_mine = false;  // kCompareAndSet: this request has set the key
  uint64_t version = 0;
  std::string text;  // the value, or the error's message
};

// With the length in front.
std::vector<std::byte> EncodeStoreRequest(const StoreRequest& request);
std::vector<std::byte> EncodeStoreResponse(const StoreResponse& response);
// Without the length.
Result<StoreRequest> DecodeStoreRequest(ConstBytes frame);
Result<StoreResponse> DecodeStoreResponse(ConstBytes frame);

}  // namespace rabit
