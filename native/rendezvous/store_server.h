// StoreServer: the store that the processes of one job share.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "rendezvous/listener.h"

namespace rabit {

// Runs in the launcher, or in rank 0 where there is none, on a thread of its own.  Only holders of
// the secret get as far as a request.  The destructor closes every connection.
class StoreServer {
 public:
  virtual ~StoreServer() = default;

  // `address` as for Listener::Open: "127.0.0.1:0" takes a free port.
  static Result<std::unique_ptr<StoreServer>> Start(std::string_view address, const Secret& secret);

  virtual std::string address() const = 0;
};

}  // namespace rabit
