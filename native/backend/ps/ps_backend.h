// PsBackend: allreduces by way of summation servers.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/ps/holders.h"
#include "backend/ps/link_shares.h"
#include "backend/ps/placement.h"
#include "backend/ps/ps_wire.h"
#include "base/bytes.h"
#include "base/encoded_sum.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/operation.h"
#include "base/wake_signal.h"
#include "collective/scratch.h"
#include "transport/transport.h"

namespace rabit {

// A server as people know it: by the number with which it was started, which it keeps when an
// engine begins without some that were lost before.
struct ServerName {
  int number = 0;
  std::string host;
};

// The streams of each link.
struct PsStreams {
  int sums = 1;              // as many as servers sum on
  bool has_updates = false;  // behind them one for Update
};

// A worker's side.  Every member of a group pushes its tensor, part by part, to the servers and to
// those members that sum a part themselves, and pulls the sums, which are formed in the order of
// the ranks: equal bits on all ranks, and those of the algorithm 'direct'.  Who sums how much
// follows from the links (link_shares.h).  Encodings of codecs are added up in the same way.  Does
// no other kind of collective.  Thread-safe for different lanes; one lane runs one collective at a
// time.  With replicas, servers may be lost.
class PsBackend final : public Backend {
 public:
  // Ranks 0 … workers - 1 of `endpoints` are the workers; the server that servers[s] names is rank
  // workers + s.
  // `replicas`: servers that have each sum. `adder`: of encodings; null: nobody adds any.
  // `logger`: rank 0 warns when it goes on without a server.
  PsBackend(std::unique_ptr<Transport> endpoints, Places places, std::vector<ServerName> servers,
            PsStreams streams = {}, int replicas = 1,
            std::unique_ptr<const EncodingAdder> adder = nullptr,
            const Logger& logger = Logger(LogLevel::kOff));

  std::string_view name() const override { return "ps"; }
  // Its connections are its own; ranks that are lost are the control plane's business.
  bool fails_apart() const override { return true; }
  bool applies_epilogues() const override { return true; }
  // Rank 0 tells the servers.
  Status AddGroup(const Group& group) override;
  // The first member tells the servers, unless a server that takes over may be asked for the sums
  // of others: with replicas, servers keep what they have for a group.
  void RemoveGroup(const Group& group) override;
  Operation Allreduce(const LaneContext& lane, const TensorView& in_out, ReduceOp op) override;
  std::vector<EncodedSlice> DivideEncoded(const LaneContext& lane, int64_t bytes,
                                          int64_t largest) override;
  Operation SumEncoded(const LaneContext& lane, Bytes in_out,
                       std::span<const EncodedSlice> slices) override;

  // Has the servers add to the parameters that they keep under `key` (kAdd), keep these if they
  // have none (kFill); `in_out` is then what they keep.  Or says how far this rank is (kClock):
  // `in_out` is the step, below 0 if this rank takes part no more, and by how many steps it may be
  // ahead of the slowest one, below 0: by any number; afterwards its lead, and 1 if it has waited
  // for that.  Asks no other rank.  Blocks; any thread.
  Status Update(PushMode mode, uint64_t key, const TensorView& in_out, Deadline deadline);

  void Abort(Status why) override;
  void WriteStatistics(JsonWriter& json) const override;

 private:
  struct Server {
    ServerName name;
    std::atomic<uint64_t> bytes_pushed{0};
    std::atomic<uint64_t> bytes_pulled{0};
  };

  // Of one group on one lane.
  struct Pushes {
    Placement placement;
    std::vector<PlaceRoute> routes;
  };
  // Of one lane, which alone touches what it has, but for what groups leave.
  struct Lane {
    Mutex mutex;
    std::map<GroupId, Pushes> pushes RABIT_GUARDED_BY(mutex);
    Scratch scratch;
  };
  // Says that a group pushes no more on one stream to one server.
  struct End {
    PushHeaderBytes header;
    std::optional<Operation> sent;
  };

  Status Check(const LaneContext& lane) const;
  Status Sum(const LaneContext& lane, const TensorView& in_out, ReduceOp op, PushMode mode,
             std::span<const Slice> slices);
  Status FailureSoFar() const;
  // As others than this engine count it: behind the workers, by its number.
  int RankOf(int server) const {
    return places_.workers + servers_[static_cast<size_t>(server)].name.number;
  }
  void TellOfLoss(int server, const Status& why) const;
  // What a failed message with a server means.
  Status Blame(int server, const Status& status) const;
  // Equal on all members.
  int64_t ChunkBytesFor(int members) const;
  Pushes& PushesOf(Lane& lane, const Group& group) const;
  std::vector<PlaceRoute> FirstRoutes() const;
  void Count(std::span<const Slice> slices, size_t element_bytes, const Group& group);
  std::vector<Slice> SlicesOf(PushMode mode, uint64_t key, const TensorView& view) const;
  Status TellServer(int server, const Group& group);
  Status Exchange(PushMode mode, uint64_t key, const TensorView& in_out, Deadline deadline);
  Status Advance(uint64_t key, const TensorView& in_out, Deadline deadline);

  const std::unique_ptr<Transport> endpoints_;
  const Places places_;
  std::vector<Server> servers_;
  std::vector<int> server_numbers_;
  const Logger logger_;
  Holders holders_;
  const std::unique_ptr<const EncodingAdder> adder_;
  std::vector<Lane> lanes_;
  std::atomic<uint64_t> bytes_summed_{0};  // by this rank, over all that are added up

  const PsStreams streams_;
  std::deque<End> ends_;  // under way; RemoveGroup only
  Mutex update_mutex_;    // held while a server is asked, which answers at once
  uint64_t updates_ RABIT_GUARDED_BY(update_mutex_) = 0;
  Status update_failure_ RABIT_GUARDED_BY(update_mutex_);  // leaves half an update under way
  Scratch update_scratch_ RABIT_GUARDED_BY(update_mutex_);
  std::vector<PlaceRoute> update_routes_ RABIT_GUARDED_BY(update_mutex_);
  std::atomic<uint64_t> bytes_updated_{0};
  std::atomic<uint64_t> steps_{0}, steps_waited_{0};
  std::atomic<int64_t> ahead_max_{0};

  std::atomic<bool> has_failed_{false};
  WakeSignal failed_;
  mutable Mutex mutex_;
  Status failure_ RABIT_GUARDED_BY(mutex_);
};

}  // namespace rabit
