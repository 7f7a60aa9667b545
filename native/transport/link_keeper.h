// LinkKeeper: connections that outlive the engine that used them.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/unique_fd.h"

namespace rabit {

// What was found out about a connection and set for it: each costs a question of the kernel, of
// every connection of a job when an engine starts.
struct LinkTuning {
  bool is_within_host = false;
  bool is_many_to_one = false;

  bool operator==(const LinkTuning&) const = default;
};

// An authenticated connection between two links, and what stands in it between two frames: a link
// of a later epoch can go on from here.
struct KeptSocket {
  UniqueFd fd;
  std::vector<std::byte> unread = {};  // has been read from the socket, and belongs to the next link
  size_t to_discard = 0;               // first of that and of the socket: the rest of a payload
  std::vector<std::byte> unsent = {};  // the rest of a frame, which must precede all others
  std::optional<LinkTuning> tuning = {};  // nothing yet

  bool was_used() const { return tuning.has_value(); }  // by a link of an earlier epoch
};

// Whoever has taken connections, and can give them back before it ends itself.
class LinkBorrower {
 public:
  virtual ~LinkBorrower() = default;
  // What it does with them fails from now on.  Waits until no thread of its own uses them.
  virtual void GiveBack() = 0;
};

// Connections have the names under which both ends find them again: what they are for, which member
// is at the other end, and a number.  Thread-safe.
class LinkKeeper {
 public:
  virtual ~LinkKeeper() = default;
  // Empty where none is kept; dialling makes another one then.
  virtual std::optional<KeptSocket> Take(std::string_view purpose, int member, int index) = 0;
  virtual void Keep(std::string_view purpose, int member, int index, KeptSocket socket) = 0;
  // Whom to ask for connections when their epoch ends; it must leave before it is destroyed.
  virtual void Enter(LinkBorrower& borrower) = 0;
  virtual void Leave(LinkBorrower& borrower) = 0;
};

}  // namespace rabit
