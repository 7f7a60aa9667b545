// TensorKey: which tensor a rank talks about while it has no id yet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "base/ids.h"
#include "control/agreement.h"

namespace rabit {

// The same name may be in flight in two disjoint groups, or between two pairs of ranks: those are
// different tensors.
struct TensorKey {
  std::string name;
  GroupId group = kWorld;
  int32_t sender = -1;  // global ranks; only for send and recv
  int32_t receiver = -1;

  bool is_pair() const { return sender >= 0; }
  bool operator==(const TensorKey&) const = default;
};

// Into a key that there is: its name keeps its memory.
inline void SetKey(TensorKey& key, const std::string& name, const Signature& signature, int rank) {
  key.name = name;
  key.group = signature.group;
  key.sender = key.receiver = -1;
  if (signature.kind == Kind::kSend) {
    key.sender = rank;
    key.receiver = signature.root;
  } else if (signature.kind == Kind::kRecv) {
    key.sender = signature.root;
    key.receiver = rank;
  }
}

inline TensorKey KeyOf(const std::string& name, const Signature& signature, int rank) {
  TensorKey key;
  SetKey(key, name, signature, rank);
  return key;
}

struct TensorKeyHash {
  size_t operator()(const TensorKey& key) const {
    const size_t place = static_cast<size_t>(key.group) * 0x9e3779b97f4a7c15ULL +
                         static_cast<size_t>(key.sender) * 0xff51afd7ed558ccdULL +
                         static_cast<size_t>(key.receiver);
    return std::hash<std::string>()(key.name) ^ place;
  }
};

}  // namespace rabit
