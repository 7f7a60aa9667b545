#include "backend/ps/summation_loop.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "arithmetic/reduce.h"
#include "base/wire.h"

namespace rabit {
namespace {

// A server waits for its workers as long as they live, which the transport finds out.
constexpr auto kLookEvery = std::chrono::hours(1);

template <class Wait>
Status WaitWhileAlive(Wait wait) {
  for (;;) {
    Status status = wait(After(kLookEvery));
    if (status.code() != Code::kTimedOut) return status;
  }
}

}  // namespace

SummationLoop::SummationLoop(Transport& endpoints, GroupId group, std::vector<int> members,
                             int stream, std::atomic<uint64_t>& bytes_summed,
                             ParameterStore& store)
    : endpoints_(endpoints),
      group_(group),
      members_(std::move(members)),
      stream_(stream),
      bytes_summed_(bytes_summed),
      store_(store),
      inputs_(members_.size()),
      arriving_(kChunksKept * members_.size()),
      leaving_(kChunksKept * members_.size()) {}

Status SummationLoop::Run() {
  for (;;) {
    PushHeaderBytes bytes{};
    Operation receive = endpoints_.Recv(members_.front(), PushHeaderTag(stream_, group_), bytes);
    RABIT_RETURN_IF_ERROR(
        WaitWhileAlive([&](Deadline deadline) { return receive.Wait(deadline); }));
    RABIT_ASSIGN_OR_RETURN(const PushHeader header,
                           DecodePushHeader(bytes, static_cast<int>(members_.size())));
    if (StreamOf(header.tag) != stream_) {
      return Internal("rank " + std::to_string(members_.front()) + " announced tag " +
                      std::to_string(header.tag) + " on stream " + std::to_string(stream_) +
                      "; run the same version of rabit on every worker and server");
    }
    RABIT_RETURN_IF_ERROR(Serve(header));
  }
}

Status SummationLoop::Serve(const PushHeader& header) {
  const size_t element_bytes = SizeOf(header.dtype);
  const auto count = static_cast<uint64_t>(header.count);
  const auto chunk_count = static_cast<uint64_t>(header.chunk_count);
  const uint64_t chunks = (count + chunk_count - 1) / chunk_count;
  const auto bytes_of = [&](uint64_t k) {
    return std::min(chunk_count, count - k * chunk_count) * element_bytes;
  };
  const uint64_t lag = kPsChunksInFlight - 1;
  for (uint64_t k = 0; k < chunks + lag; ++k) {
    if (k < chunks) RABIT_RETURN_IF_ERROR(Ask(header, chunks_before_ + k, bytes_of(k)));
    if (k < lag) continue;
    RABIT_RETURN_IF_ERROR(Answer(header, chunks_before_ + k - lag, bytes_of(k - lag)));
  }
  chunks_before_ += chunks;
  return Status();
}

Bytes SummationLoop::Input(uint64_t chunk, size_t member, size_t bytes) {
  const auto each = static_cast<size_t>(PsChunkBytesMax(static_cast<int>(members_.size())));
  // As soon as there is something to sum; groups that never push take no memory.
  if (memory_.empty()) memory_.resize(each * members_.size() * kChunksKept);
  return Bytes(memory_.data() + SlotOf(chunk, member) * each, bytes);
}

Status SummationLoop::Ask(const PushHeader& header, uint64_t chunk, size_t bytes) {
  // The sum of an earlier chunk is sent from the same place.
  RABIT_RETURN_IF_ERROR(WaitWhileAlive([&](Deadline deadline) {
    return leaving_.WaitRange(SlotOf(chunk, 0), members_.size(), deadline);
  }));
  for (size_t i = 0; i < members_.size(); ++i) {
    arriving_.Start(SlotOf(chunk, i),
                    endpoints_.Recv(members_[i], header.tag, Input(chunk, i, bytes)));
  }
  return Status();
}

Status SummationLoop::Answer(const PushHeader& header, uint64_t chunk, size_t bytes) {
  RABIT_RETURN_IF_ERROR(WaitWhileAlive([&](Deadline deadline) {
    return arriving_.WaitRange(SlotOf(chunk, 0), members_.size(), deadline);
  }));
  RABIT_RETURN_IF_ERROR(Combine(header, chunk, bytes));
  const Bytes sum = Input(chunk, 0, bytes);
  bytes_summed_.fetch_add(bytes * members_.size(), std::memory_order_relaxed);
  // Every server begins with another worker, so that a worker does not hear from all at once.
  const auto first = static_cast<size_t>(endpoints_.rank());
  for (size_t turn = 0; turn < members_.size(); ++turn) {
    const size_t i = (first + turn) % members_.size();
    leaving_.Start(SlotOf(chunk, i), endpoints_.Send(members_[i], header.tag + 1, sum));
  }
  return Status();
}

Status SummationLoop::Combine(const PushHeader& header, uint64_t chunk, size_t bytes) {
  const Bytes result = Input(chunk, 0, bytes);
  if (header.mode == PushMode::kClock) {
    StepClock said;
    said.step = LoadLittle<int64_t>(result.data());
    said.staleness = LoadLittle<int64_t>(result.data() + 8);
    StepLead lead;
    RABIT_RETURN_IF_ERROR(store_.Advance(header.key, members_.front(), said, lead));
    StoreLittle<int64_t>(result.data(), lead.ahead);
    StoreLittle<int64_t>(result.data() + 8, lead.waited);
    return Status();
  }
  if (header.mode != PushMode::kSum) {
    const auto begin = static_cast<int64_t>(chunk - chunks_before_) * header.chunk_count;
    return store_.Update(header, begin, result);
  }
  for (size_t i = 0; i < members_.size(); ++i) inputs_[i] = Input(chunk, i, bytes).data();
  Reduce(header.op, header.dtype, inputs_, result.data(),
         static_cast<int64_t>(bytes / SizeOf(header.dtype)));
  return Status();
}

}  // namespace rabit
