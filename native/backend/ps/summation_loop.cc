#include "backend/ps/summation_loop.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "arithmetic/reduce.h"
#include "backend/ps/wait_while_alive.h"
#include "base/wire.h"

namespace rabit {
namespace {

// How soon a server that is lost is replaced as the one that has the copies, while nothing is
// pushed.
constexpr auto kLookBehindEvery = std::chrono::seconds(1);

StepClock ClockFrom(ConstBytes bytes) {
  return {LoadLittle<int64_t>(bytes.data()), LoadLittle<int64_t>(bytes.data() + 8) != 0};
}

// An update that does not fit what is kept fails on its worker, and ends nothing else.
bool IsRefused(const Status& status) { return status.code() == Code::kInvalidArgument; }

}  // namespace

SummationLoop::SummationLoop(Transport& endpoints, const PlaceCrew& crew,
                             std::atomic<uint64_t>& bytes_summed, ParameterStore& store,
                             const EncodingAdder* adder, const SilenceLimit& silence)
    : endpoints_(endpoints),
      crew_(crew),
      bytes_summed_(bytes_summed),
      store_(store),
      adder_(adder),
      inputs_(crew.members.size()),
      is_refused_(kChunksKept),
      arriving_(kChunksKept * crew.members.size()),
      leaving_(kChunksKept * crew.members.size()) {
  if (crew.chain.size() > 1) copies_.emplace(endpoints, crew, silence);
}

Status SummationLoop::Run() {
  PlaceCopies::Taken taken;
  if (crew_.mine > 0) {
    const auto note = [this](const PlacedPush& placed, Bytes bytes) {
      const Status combined = Combine(placed, bytes);
      return IsRefused(combined) ? Status() : combined;
    };
    // This blocks for as long as a server before this one lives, which is mostly the whole job.
    RABIT_RETURN_IF_ERROR(copies_->Follow(note));
    const auto redo = [this](const PlacedPush& placed, Bytes bytes) {
      if (placed.header.mode == PushMode::kClock) return Combine(placed, bytes);
      const auto begin = static_cast<int64_t>(placed.at.chunk) * placed.header.chunk_count;
      return store_.Read(placed.header, begin, bytes);
    };
    RABIT_ASSIGN_OR_RETURN(taken, copies_->TakeOver(redo));
  }
  push_ = taken.at.push;
  if (taken.header.has_value()) {
    RABIT_RETURN_IF_ERROR(Serve(*taken.header, taken.at.chunk));
  }
  for (;;) {
    RABIT_ASSIGN_OR_RETURN(const PushHeader header, NextHeader());
    if (header.mode == PushMode::kEnd) return WaitSent();
    RABIT_RETURN_IF_ERROR(Serve(header, 0));
  }
}

Result<PushHeader> SummationLoop::NextHeader() {
  PushHeaderBytes bytes{};
  Operation receive =
      endpoints_.Recv(crew_.members.front(), crew_.TagOf(PlaceStep::kHeader), bytes);
  if (has_copies()) {
    for (;;) {
      const Status come = receive.Wait(After(kLookBehindEvery));
      if (come.ok()) break;
      if (come.code() != Code::kTimedOut) return come;
      // While nothing is pushed this thread alone could find that the server behind is lost.
      RABIT_RETURN_IF_ERROR(copies_->LookBehind());
    }
  }
  RABIT_RETURN_IF_ERROR(WaitWhileAlive(receive));
  RABIT_ASSIGN_OR_RETURN(const PushHeader header,
                         DecodePushHeader(bytes, static_cast<int>(crew_.members.size())));
  // A tag of another stream would take the messages of the thread that serves it.
  if (StreamOf(header.tag) != crew_.stream) {
    return Internal("rank " + std::to_string(crew_.members.front()) + " announced tag " +
                    std::to_string(header.tag) + " on stream " + std::to_string(crew_.stream) +
                    "; run the same version of rabit on every worker and server");
  }
  return header;
}

Status SummationLoop::Serve(const PushHeader& header, uint64_t first) {
  const uint64_t chunks = header.chunks() - first;
  const uint64_t lag = kPsChunksInFlight - 1;
  // A sum that is being copied holds up no other one.
  const uint64_t copy_lag = has_copies() ? 1 : 0;
  // Slots count chunks from the first one that is served.
  chunks_before_ -= first;
  for (uint64_t k = first; k < first + chunks + lag + copy_lag; ++k) {
    if (k < header.chunks()) RABIT_RETURN_IF_ERROR(Ask(header, k));
    if (k >= first + lag && k - lag < header.chunks()) {
      RABIT_RETURN_IF_ERROR(Sum(header, k - lag));
    }
    if (k < first + lag + copy_lag) continue;
    RABIT_RETURN_IF_ERROR(Answer(header, k - lag - copy_lag));
  }
  chunks_before_ += header.chunks();
  ++push_;
  return Status();
}

// The first member has all its sums, others may not have theirs.
Status SummationLoop::WaitSent() {
  return WaitWhileAlive([&](Deadline deadline) { return leaving_.WaitAll(deadline); });
}

Bytes SummationLoop::Input(uint64_t k, size_t member, size_t bytes) {
  const auto members = crew_.members.size();
  const auto each = static_cast<size_t>(PsChunkBytesMax(static_cast<int>(members)));
  // As soon as there is something to sum; groups that never push take no memory.
  if (memory_.empty()) memory_.resize(each * members * kChunksKept);
  return Bytes(memory_.data() + SlotOf(k, member) * each, bytes);
}

Status SummationLoop::Ask(const PushHeader& header, uint64_t k) {
  const size_t members = crew_.members.size();
  // The sum of an earlier chunk is sent from the same place.
  RABIT_RETURN_IF_ERROR(WaitWhileAlive(
      [&](Deadline deadline) { return leaving_.WaitRange(SlotOf(k, 0), members, deadline); }));
  for (size_t i = 0; i < members; ++i) {
    arriving_.Start(SlotOf(k, i),
                    endpoints_.Recv(crew_.members[i], header.tag, Input(k, i, header.bytes_of(k))));
  }
  return Status();
}

Status SummationLoop::Sum(const PushHeader& header, uint64_t k) {
  const size_t members = crew_.members.size();
  RABIT_RETURN_IF_ERROR(WaitWhileAlive(
      [&](Deadline deadline) { return arriving_.WaitRange(SlotOf(k, 0), members, deadline); }));
  const PlacedPush placed{header, {push_, k}};
  const Bytes result = Input(k, 0, header.bytes_of(k));
  // Parameters are updated on both servers, sums are formed on one.
  if (has_copies() && crew_.is_updated()) RABIT_RETURN_IF_ERROR(copies_->Keep(placed, result));
  const Status combined = Combine(placed, result);
  const bool is_refused = crew_.is_updated() && IsRefused(combined);
  is_refused_[RoundOf(k)] = is_refused;
  if (!is_refused) RABIT_RETURN_IF_ERROR(combined);
  if (has_copies() && !crew_.is_updated()) RABIT_RETURN_IF_ERROR(copies_->Keep(placed, result));
  bytes_summed_.fetch_add(result.size() * members, std::memory_order_relaxed);
  return Status();
}

Status SummationLoop::Answer(const PushHeader& header, uint64_t k) {
  if (has_copies()) RABIT_RETURN_IF_ERROR(copies_->WaitCopied());
  const Bytes sum = is_refused_[RoundOf(k)] ? Bytes() : Input(k, 0, header.bytes_of(k));
  // Every server begins with another worker, so that a worker does not hear from all at once.
  const auto first = static_cast<size_t>(endpoints_.rank());
  for (size_t turn = 0; turn < crew_.members.size(); ++turn) {
    const size_t i = (first + turn) % crew_.members.size();
    leaving_.Start(SlotOf(k, i), endpoints_.Send(crew_.members[i], header.tag + 1, sum));
  }
  return Status();
}

Status SummationLoop::Update(const PlacedPush& placed, Bytes values) {
  const auto begin = static_cast<int64_t>(placed.at.chunk) * placed.header.chunk_count;
  return store_.Update(placed.header, begin, values);
}

Status SummationLoop::Combine(const PlacedPush& placed, Bytes result) {
  const PushHeader& header = placed.header;
  if (header.mode == PushMode::kClock) {
    const int64_t ahead = store_.Advance(header.key, crew_.members.front(), ClockFrom(result));
    StoreLittle<int64_t>(result.data(), ahead);
    return Status();
  }
  if (crew_.is_updated() && header.mode != PushMode::kSum) return Update(placed, result);
  for (size_t i = 0; i < inputs_.size(); ++i) {
    inputs_[i] = Input(placed.at.chunk, i, result.size()).data();
  }
  if (header.mode == PushMode::kCoded) return AddEncodings(result);
  Reduce(header.op, header.dtype, inputs_, result.data(),
         static_cast<int64_t>(result.size() / SizeOf(header.dtype)), header.epilogue);
  return Status();
}

Status SummationLoop::AddEncodings(Bytes result) {
  if (adder_ != nullptr) return adder_->Add(inputs_, result);
  return Internal("workers push encodings, and this server was started to add none; report this");
}

}  // namespace rabit
