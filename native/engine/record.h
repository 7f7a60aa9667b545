// Record: what the operations of this rank have come to.  Whoever submits, agrees on, starts or
// finishes one says so here alone; the log of operations and the timeline are written from the same
// calls.
//
// Entries are in a mapped file that outlives the process.  The package makes the file and its
// header (rabit/diagnostics/record/layout.py has the same numbers); the engine writes operations,
// the texts that they name, and counters.  Who reads it, a doctor or an agent, needs neither this
// process nor its locks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/kind.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/status.h"
#include "engine/bucket_job.h"
#include "engine/operation_log.h"
#include "engine/overlap_clock.h"
#include "engine/pending_request.h"
#include "engine/timeline.h"

namespace rabit {

// One operation.  Fields are written one by one while others read: `handle` is zero while what it
// names is replaced, so that a reader who finds it equal before and after has one operation's.
struct RecordEntry {
  std::atomic<uint64_t> handle;  // 0: nothing
  std::atomic<uint64_t> round;   // of all agreed operations, from 1, equal on all ranks; 0: not yet
  std::atomic<int64_t> submitted_ns;  // NowNs; so are the others, 0: not yet
  std::atomic<int64_t> agreed_ns;
  std::atomic<int64_t> started_ns;
  std::atomic<int64_t> finished_ns;
  std::atomic<int64_t> elements;
  std::atomic<int64_t> number;      // of a name that ends in one; -1: it does not
  std::atomic<uint32_t> name;       // places in the texts
  std::atomic<uint32_t> algorithm;  // 0: none yet
  std::atomic<uint32_t> backend;    // 0: none yet
  std::atomic<GroupId> group;
  std::atomic<uint8_t> kind;
  std::atomic<uint8_t> dtype;
  std::atomic<uint8_t> state;  // 0: open, 1: well, 2: failed
  std::atomic<uint8_t> lane;
  std::atomic<uint32_t> epoch;
  std::atomic<int32_t> root;
  std::atomic<int32_t> priority;
};
static_assert(sizeof(RecordEntry) == 96, "the format of the file");

// Thread-safe, apart from Start.  Costs a look at a flag each while nothing is written.  Its owner
// outlives the lanes, also those that are left behind: the file is unmapped with it.
class Record {
 public:
  enum Counter {
    kSubmitted = 0,
    kFailed = 2,  // readers add up those of a kind: how many have finished, and their bytes
    kNegotiationNs = 4,
    kCommunicatingNs,
    kWaitingNs,
    kBothNs,
    kStallReports,
    kLastProgressNs,
    kBuckets,
    kRunning,  // 1 from Start to Stop
    kOfKind = 16,
    kBytesOfKind = 32,
  };
  static constexpr size_t kEntries = 4096;

  Record(int rank, const Logger& logger, const OverlapClock& clock)
      : clock_(clock), log_(rank, logger), timeline_(rank, logger) {}
  ~Record();
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;

  // Once.  `path`: a file that the package has made; empty: there are no entries.  `log`: the file
  // of the log of operations, or empty.
  Status Start(const std::string& path, int64_t epoch, const std::string& log = {});
  void Stop();
  // Whether there are entries or a log.
  bool is_active() const { return entries_ != nullptr || log_.is_active(); }
  Timeline& timeline() { return timeline_; }

  // The place of a name's text, which is written once, and the number that it ends in or -1.  The
  // caller keeps others out.
  std::pair<uint32_t, int64_t> NameOf(std::string_view name);

  void Submitted(const PendingRequest& request);
  void Agreed(const ReadyTensor& ready, const PendingRequest& request, uint64_t round,
              int64_t now_ns);
  // The bucket in which they are, or the first of them, begins.  Names are constants of the
  // process.
  void Started(const BucketJob& job, std::string_view backend, std::string_view algorithm,
               int64_t now_ns);
  // A part of the bucket's work is over.
  void Staged(const BucketJob& job, std::string_view stage, int64_t begin_ns, int64_t end_ns,
              std::string_view arguments = {});
  void Exchanged(const BucketJob& job, const Route& route, int64_t begin_ns, int64_t wire_bytes);
  // Its data came with the announcements, and nothing else is to be done.
  void Carried(const ReadyTensor& ready, int64_t begin_ns);
  void Finished(const PendingRequest& request);
  void Forget(uint64_t handle);
  void Add(Counter counter, int64_t by);
  void Set(Counter counter, int64_t value);

  // A call that is not negotiated, from its begin to its end.
  void Ordered(uint64_t handle, const Signature& signature, int64_t elements, int64_t now_ns);
  void Started(uint64_t handle, std::string_view backend, std::string_view algorithm, int lane,
               int64_t now_ns);
  void Finished(uint64_t handle, const OperationLog::Entry& operation);

 private:
  Status Map(const std::string& path, int64_t epoch);
  void Open(uint64_t handle, const Signature& signature, int64_t elements, uint32_t name,
            int64_t number, int64_t now_ns);
  RecordEntry* Find(uint64_t handle) const;
  uint32_t Text(std::string_view text);
  uint32_t WordOf(std::string_view word);

  std::byte* memory_ = nullptr;
  RecordEntry* entries_ = nullptr;
  std::atomic<int64_t>* counters_ = nullptr;
  uint32_t epoch_ = 0;
  const OverlapClock& clock_;
  OperationLog log_;
  Timeline timeline_;
  OverlapClock::Totals before_;  // of earlier engines of this process
  std::atomic<int64_t> clock_read_ns_{0};
  std::vector<std::pair<std::string, uint32_t>> stems_;  // of names that end in a number
  Mutex words_lock_;  // of those who write a word
  // Backends and algorithms, by the address of their name: found without a lock once written.
  struct Word {
    std::atomic<const char*> text;
    std::atomic<uint32_t> place;
  };
  static constexpr size_t kWords = 64;
  Word words_[kWords] = {};
};

}  // namespace rabit
