// HMAC-SHA256 (RFC 2104) and comparison that does not tell where two digests differ.
#pragma once

#include "base/bytes.h"
#include "base/sha256.h"

namespace rabit {

// Keyed once, used for one message: Update any number of times, then Finish once.
class HmacSha256 {
 public:
  explicit HmacSha256(ConstBytes key);
  void Update(ConstBytes bytes) { inner_.Update(bytes); }
  Digest Finish();

 private:
  Sha256 inner_;
  Sha256 outer_;
};

Digest HmacSha256Of(ConstBytes key, ConstBytes message);

// Takes the same time wherever the first difference is.  False if the sizes differ.
bool EqualInConstantTime(ConstBytes a, ConstBytes b);

}  // namespace rabit
