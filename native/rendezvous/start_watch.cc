#include "rendezvous/start_watch.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <utility>

namespace rabit {
namespace {

using std::chrono_literals::operator""ms;

constexpr auto kLookInterval = 100ms;
// Who notices that a rank has gone may notice a consequence: the cause is known about now.
constexpr auto kCauseTime = 300ms;
constexpr size_t kMessageBytesMax = 4096;

// What one rank finds and all can report; anything else is the failure of the rank that finds it.
bool IsShared(const Status& status) {
  return status.code() == Code::kMismatch ||
         (status.culprit() >= 0 &&
          (status.code() == Code::kPeerLost || status.code() == Code::kTimedOut));
}

// "code culprit message"
std::string ToRecord(const Status& status) {
  return std::to_string(static_cast<int>(status.code())) + " " + std::to_string(status.culprit()) +
         " " + status.message().substr(0, kMessageBytesMax);
}

Status FromRecord(std::string_view record) {
  int code = 0;
  int culprit = -1;
  const char* const end = record.data() + record.size();
  const auto [after_code, code_error] = std::from_chars(record.data(), end, code);
  if (code_error == std::errc() && after_code != end) {
    const auto [after_culprit, error] = std::from_chars(after_code + 1, end, culprit);
    if (error == std::errc() && after_culprit != end && code > 0 &&
        code <= static_cast<int>(Code::kInternal)) {
      return Status(static_cast<Code>(code), std::string(after_culprit + 1, end))
          .WithCulprit(culprit);
    }
  }
  return Internal("the store tells of a failed start, but not which: '" + std::string(record) +
                  "'. Install one version on all ranks");
}

}  // namespace

StartWatch::StartWatch(TcpStore& store, int64_t epoch, int rank, std::string who)
    : store_(store),
      rank_(rank),
      who_(who.empty() ? "rank " + std::to_string(rank) : std::move(who)),
      key_(std::to_string(epoch) + "/failed") {}

Status StartWatch::Join(Deadline deadline) {
  const Status will = PeerLost(rank_, who_ +
                                          " ended before all ranks had started; its own output "
                                          "tells why");
  return store_.LeaveWill(key_, ToRecord(will), deadline);
}

Status StartWatch::Read(Deadline deadline) {
  Result<std::string> record = store_.Get(key_, deadline);
  if (record.ok()) return FromRecord(*record);
  return record.status().code() == Code::kTimedOut ? Status() : record.status();
}

Status StartWatch::Look() {
  {
    MutexLock lock(mutex_);
    const auto now = std::chrono::steady_clock::now();
    if (now < next_look_) return Status();
    next_look_ = now + kLookInterval;
  }
  return Read(Deadline{});
}

Result<Versioned> StartWatch::Watch(std::string_view key, uint64_t seen, Deadline deadline) {
  Result<Versioned> value = store_.WatchUnless(key_, key, seen, deadline);
  if (value.status().code() == Code::kAborted) RABIT_RETURN_IF_ERROR(Read(Deadline{}));
  return value;
}

Status StartWatch::Fail(const Status& why) {
  // Without a culprit it is the store that is lost.
  if (why.code() == Code::kPeerLost && why.culprit() < 0) return why;
  const bool is_suspicion = IsShared(why) && why.code() != Code::kMismatch;
  if (is_suspicion) {
    if (Status verdict = Read(After(kCauseTime)); !verdict.ok() && verdict.culprit() >= 0) {
      return verdict;
    }
  }
  const std::string record = ToRecord(
      IsShared(why) ? why
                    : PeerLost(rank_, who_ + " could not start: " + why.message()));
  const Result<std::string> first = store_.SetOnce(key_, record);
  return is_suspicion && first.ok() && *first != record ? FromRecord(*first) : why;
}

}  // namespace rabit
