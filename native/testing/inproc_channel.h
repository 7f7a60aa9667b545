// InprocHub: the channel between ranks that are threads of one process.
#pragma once

#include <memory>
#include <string_view>

#include "transport/channel.h"
#include "transport/rank_tree.h"

namespace rabit::testing {

// Thread-safe.  Channels stay usable after the hub is gone.
class InprocHub {
 public:
  explicit InprocHub(int size) : InprocHub(RankTree::Star(size)) {}
  explicit InprocHub(RankTree tree);
  ~InprocHub();

  // The channel of `rank`; once per rank.  Its destructor says goodbye to the others.
  std::unique_ptr<Channel> Connect(int rank);

  // For tests: makes `rank` look dead to its neighbours, who see `how` ("was killed by signal 9").
  void Kill(int rank, std::string_view how);

 private:
  struct Shared;
  class HubChannel;

  std::shared_ptr<Shared> shared_;
};

}  // namespace rabit::testing
