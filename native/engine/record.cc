#include "engine/record.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/clock.h"
#include "base/numbered_name.h"

namespace rabit {
namespace {

// The file, in bytes: the package's header, counters, texts, operations, and what the package adds.
constexpr size_t kCountersAt = 8192;
constexpr size_t kTextsAt = 12288;
constexpr size_t kTextBytes = 64 << 10;
constexpr size_t kEntriesAt = kTextsAt + kTextBytes;
constexpr size_t kMappedBytes = kEntriesAt + Record::kEntries * sizeof(RecordEntry);
constexpr std::string_view kMagic = "rabitrec";
constexpr int64_t kClockEveryNs = 5'000'000;
constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, Linux 5.14

constexpr auto kRelaxed = std::memory_order_relaxed;

constexpr std::string_view kOrdered = "(ordered)";

std::string UpperName(Kind kind) {
  std::string name(Name(kind));
  for (char& c : name) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return name;
}

// The first eight bytes of the texts say how many are used; a text has two bytes of length before
// it.
std::atomic<uint64_t>& UsedOf(std::byte* memory) {
  return *reinterpret_cast<std::atomic<uint64_t>*>(memory + kTextsAt);
}

}  // namespace

Record::~Record() {
  Stop();
  if (memory_ != nullptr) ::munmap(memory_, kMappedBytes);
}

Status Record::Start(const std::string& path, int64_t epoch, const std::string& log) {
  if (!path.empty()) RABIT_RETURN_IF_ERROR(Map(path, epoch));
  return log.empty() ? Status() : log_.Start(log);
}

Status Record::Map(const std::string& path, int64_t epoch) {
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat found = {};
  const bool is_open = file >= 0 && ::fstat(file, &found) == 0;
  const bool is_whole = is_open && static_cast<size_t>(found.st_size) >= kMappedBytes;
  void* memory = MAP_FAILED;
  if (is_whole) memory = ::mmap(nullptr, kMappedBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const int error = errno;
  // The mapping outlives the descriptor, and a forked child inherits one descriptor less.
  if (file >= 0) ::close(file);
  if (memory == MAP_FAILED || std::memcmp(memory, kMagic.data(), kMagic.size()) != 0) {
    if (memory != MAP_FAILED) ::munmap(memory, kMappedBytes);
    return InvalidArgument(
        "the record '" + path +
        "' cannot be used: " + (is_open && !is_whole ? "it is too short" : std::strerror(error)) +
        "; name a folder that is writable (RABIT_RECORD), or set RABIT_RECORD=0");
  }
  memory_ = static_cast<std::byte*>(memory);
  // Now, not in the first operations that touch a page; an older kernel does it then.
  ::madvise(memory_, kMappedBytes, kPopulateWrite);
  counters_ = reinterpret_cast<std::atomic<int64_t>*>(memory_ + kCountersAt);
  // Place 0 stands for no text, so the count of used bytes itself takes the first eight.
  if (UsedOf(memory_).load() == 0) UsedOf(memory_).store(sizeof(uint64_t));
  // The counters go on where an earlier engine of this process has left them; a scraper takes a
  // fall for a restart.
  before_ = {counters_[kCommunicatingNs].load(), counters_[kWaitingNs].load(),
             counters_[kBothNs].load()};
  epoch_ = static_cast<uint32_t>(epoch);
  Set(kRunning, 1);
  // It comes last, because other calls look at it.
  entries_ = reinterpret_cast<RecordEntry*>(memory_ + kEntriesAt);
  return Status();
}

void Record::Stop() {
  (void)timeline_.Stop();  // if it is open
  log_.Stop();
  if (counters_ != nullptr) Set(kRunning, 0);
}

std::pair<uint32_t, int64_t> Record::NameOf(std::string_view name) {
  if (entries_ == nullptr) return {0, -1};
  if (!IsNumbered(name)) return {Text(name), -1};
  const size_t digits = name.find_last_not_of("0123456789") + 1;
  int64_t number = -1;
  std::from_chars(name.data() + digits, name.data() + name.size(), number);
  const std::string_view stem = name.substr(0, digits - 1);
  const auto found = std::find_if(stems_.begin(), stems_.end(),
                                  [&](const auto& each) { return each.first == stem; });
  if (found != stems_.end()) return {found->second, number};
  const uint32_t place = Text(stem);
  if (stems_.size() < kWords) stems_.emplace_back(stem, place);
  return {place, number};
}

void Record::Submitted(const PendingRequest& request) {
  if (entries_ == nullptr) return;
  const auto [name, number] = request.named.recorded;
  Open(request.handle.value, request.request.signature, request.request.input.count, name, number,
       request.submitted_ns);
}

void Record::Ordered(uint64_t handle, const Signature& signature, int64_t elements,
                     int64_t now_ns) {
  if (entries_ == nullptr) return;
  Open(handle, signature, elements, WordOf(kOrdered), -1, now_ns);
}

void Record::Open(uint64_t handle, const Signature& signature, int64_t elements, uint32_t name,
                  int64_t number, int64_t now_ns) {
  RecordEntry& entry = entries_[handle % kEntries];
  entry.handle.store(0, kRelaxed);
  // A reader that finds the old handle again afterwards has seen none of the new fields: the zero
  // comes before all of them.
  std::atomic_thread_fence(std::memory_order_release);
  entry.round.store(0, kRelaxed);
  entry.submitted_ns.store(now_ns, kRelaxed);
  entry.agreed_ns.store(0, kRelaxed);
  entry.started_ns.store(0, kRelaxed);
  entry.finished_ns.store(0, kRelaxed);
  entry.elements.store(elements, kRelaxed);
  entry.number.store(number, kRelaxed);
  entry.name.store(name, kRelaxed);
  entry.algorithm.store(0, kRelaxed);
  entry.backend.store(0, kRelaxed);
  entry.group.store(signature.group, kRelaxed);
  entry.kind.store(static_cast<uint8_t>(signature.kind), kRelaxed);
  entry.dtype.store(static_cast<uint8_t>(signature.dtype), kRelaxed);
  entry.state.store(0, kRelaxed);
  entry.lane.store(0, kRelaxed);
  entry.epoch.store(epoch_, kRelaxed);
  entry.root.store(signature.root, kRelaxed);
  entry.priority.store(signature.priority, kRelaxed);
  entry.handle.store(handle, std::memory_order_release);
  Add(kSubmitted, 1);
}

void Record::Agreed(const ReadyTensor& ready, const PendingRequest& request, uint64_t round,
                    int64_t now_ns) {
  if (RecordEntry* const entry = Find(request.handle.value); entry != nullptr) {
    entry->agreed_ns.store(now_ns, kRelaxed);
    entry->round.store(round, kRelaxed);
    Add(kNegotiationNs, now_ns - request.submitted_ns);
  }
  if (!timeline_.is_active()) return;
  const Kind kind = ready.signature.kind;
  timeline_.Span(TimelineRow(kind, ready.name), "NEGOTIATE_" + UpperName(kind),
                 request.submitted_ns, now_ns);
}

void Record::Started(const BucketJob& job, std::string_view backend, std::string_view algorithm,
                     int64_t now_ns) {
  const bool is_traced = timeline_.is_active();
  for (const BucketItem& item : job.items) {
    if (is_traced) {
      timeline_.Span(TimelineRow(job.bucket.kind, item.tensor->ready->name), "QUEUE",
                     item.tensor->agreed_ns, now_ns);
    }
    if (item.request() == nullptr) continue;
    Started(item.request()->handle.value, backend, algorithm, job.bucket.lane, now_ns);
  }
}

void Record::Started(uint64_t handle, std::string_view backend, std::string_view algorithm,
                     int lane, int64_t now_ns) {
  RecordEntry* const entry = Find(handle);
  // Partitions of one request start on several lanes; two that meet here write values that are both
  // true.
  if (entry == nullptr || entry->started_ns.load(kRelaxed) != 0) return;
  entry->backend.store(WordOf(backend), kRelaxed);
  entry->algorithm.store(WordOf(algorithm), kRelaxed);
  entry->lane.store(static_cast<uint8_t>(lane), kRelaxed);
  entry->started_ns.store(now_ns, kRelaxed);
}

void Record::Staged(const BucketJob& job, std::string_view stage, int64_t begin_ns, int64_t end_ns,
                    std::string_view arguments) {
  if (!timeline_.is_active()) return;
  for (const BucketItem& item : job.items) {
    timeline_.Span(TimelineRow(job.bucket.kind, item.tensor->ready->name), stage, begin_ns, end_ns,
                   arguments);
  }
}

void Record::Exchanged(const BucketJob& job, const Route& route, int64_t begin_ns,
                       int64_t wire_bytes) {
  if (!timeline_.is_active()) return;
  Staged(job, UpperName(job.bucket.kind), begin_ns, NowNs(),
         "\"algorithm\":\"" + std::string(route.algorithm) + "\",\"row\":\"" +
             std::string(route.row) + "\",\"bytes\":" + std::to_string(wire_bytes) +
             ",\"lane\":" + std::to_string(job.bucket.lane));
}

void Record::Carried(const ReadyTensor& ready, int64_t begin_ns) {
  if (!timeline_.is_active()) return;
  const Kind kind = ready.signature.kind;
  timeline_.Span(TimelineRow(kind, ready.name), UpperName(kind), begin_ns, NowNs(),
                 "\"algorithm\":\"inline\",\"bytes\":" + std::to_string(ready.data.size()));
}

void Record::Finished(const PendingRequest& request) {
  if (!is_active()) return;
  const Request& asked = request.request;
  const size_t bytes = std::max(asked.input.bytes(), request.output().view.bytes());
  Finished(request.handle.value,
           {asked.name, asked.signature.kind, asked.signature.dtype, asked.signature.group,
            static_cast<int64_t>(bytes), request.submitted_ns, NowNs(), request.status().ok()});
}

void Record::Finished(uint64_t handle, const OperationLog::Entry& operation) {
  if (log_.is_active()) log_.Add(operation);
  if (entries_ == nullptr) return;
  const int64_t now_ns = operation.end_ns;
  if (RecordEntry* const entry = Find(handle); entry != nullptr) {
    entry->finished_ns.store(now_ns, kRelaxed);
    entry->state.store(operation.is_ok ? 1 : 2, kRelaxed);
  }
  const int place = static_cast<int>(operation.kind);
  if (!operation.is_ok) Add(kFailed, 1);
  Add(static_cast<Counter>(kOfKind + place), 1);
  Add(static_cast<Counter>(kBytesOfKind + place), operation.bytes);
  Set(kLastProgressNs, now_ns);
  // The ring is larger than the nearest caches: the next operation finds its place there.
  const auto* const next = reinterpret_cast<const char*>(&entries_[(handle + 1) % kEntries]);
  __builtin_prefetch(next, 1);
  __builtin_prefetch(next + sizeof(RecordEntry) - 1, 1);
  // Reading the clock takes a lock of all lanes, so it is not done for each small tensor.
  if (now_ns - clock_read_ns_.load(kRelaxed) < kClockEveryNs) return;
  clock_read_ns_.store(now_ns, kRelaxed);
  const OverlapClock::Totals totals = clock_.totals();
  Set(kCommunicatingNs, before_.communicating_ns + totals.communicating_ns);
  Set(kWaitingNs, before_.waiting_ns + totals.waiting_ns);
  Set(kBothNs, before_.both_ns + totals.both_ns);
}

void Record::Forget(uint64_t handle) {
  RecordEntry* const entry = Find(handle);
  if (entry == nullptr) return;
  entry->handle.store(0, kRelaxed);
  Add(kSubmitted, -1);
}

void Record::Add(Counter counter, int64_t by) {
  if (counters_ != nullptr) counters_[counter].fetch_add(by, kRelaxed);
}

void Record::Set(Counter counter, int64_t value) {
  if (counters_ != nullptr) counters_[counter].store(value, kRelaxed);
}

RecordEntry* Record::Find(uint64_t handle) const {
  if (entries_ == nullptr) return nullptr;
  RecordEntry& entry = entries_[handle % kEntries];
  // A request older than the ring has lost its place to a newer one, which has another handle.
  return entry.handle.load(kRelaxed) == handle ? &entry : nullptr;
}

uint32_t Record::Text(std::string_view text) {
  text = text.substr(0, 1000);
  const uint64_t needed = sizeof(uint16_t) + text.size();
  std::atomic<uint64_t>& used = UsedOf(memory_);
  // Each writer gets room of its own by this one addition; no text is ever moved or freed.
  const uint64_t place = used.fetch_add(needed);
  if (place + needed > kTextBytes) {  // the texts are full: what comes later has no name
    used.fetch_sub(needed);
    return 0;
  }
  const auto length = static_cast<uint16_t>(text.size());
  std::byte* const at = memory_ + kTextsAt + place;
  std::memcpy(at + sizeof length, text.data(), text.size());
  // The length comes last: a reader that finds zero stops there.
  std::memcpy(at, &length, sizeof length);
  return static_cast<uint32_t>(place);
}

uint32_t Record::WordOf(std::string_view word) {
  if (word.empty()) return 0;
  for (const Word& known : words_) {
    const char* const text = known.text.load(std::memory_order_acquire);
    if (text == nullptr) break;
    if (text == word.data()) return known.place.load(kRelaxed);
  }
  // Lanes meet new words at the same time: one of them writes, and a place belongs to one word.
  const MutexLock lock(words_lock_);
  for (Word& known : words_) {
    const char* const text = known.text.load(kRelaxed);
    if (text == word.data()) return known.place.load(kRelaxed);
    if (text != nullptr) continue;
    known.place.store(Text(word), kRelaxed);
    known.text.store(word.data(), std::memory_order_release);
    return known.place.load(kRelaxed);
  }
  return 0;
}

}  // namespace rabit
