// PartServer: memory of this rank that others read when they need it, without a thread of the program.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/result.h"
#include "rendezvous/listener.h"

namespace rabit {

// A part is closed while its owner writes it, and has a version while it is open.  Who asks for a later
// version waits, and gets a sign of life four times a second; who asks for an earlier one is refused.
// Thread-safe.  The destructor closes every connection.
class PartServer {
 public:
  virtual ~PartServer() = default;

  // `address`: "127.0.0.1:0".  Serves on a thread of its own, to holders of the secret.
  static Result<std::unique_ptr<PartServer>> Start(std::string_view address, const Secret& secret,
                                                   int32_t rank);

  virtual std::string address() const = 0;
  // A new part, closed; its memory must stay until the server ends.
  virtual void Add(uint64_t part, ConstBytes memory) = 0;
  // When this returns, nobody reads the part.
  virtual Status Close(uint64_t part) = 0;
  virtual Status Open(uint64_t part, uint64_t version) = 0;
};

}  // namespace rabit
