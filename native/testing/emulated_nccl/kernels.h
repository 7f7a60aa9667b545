// Kernels of the emulated NCCL: what is called becomes work on a stream, one after the other on a
// device, and there the ranks exchange bytes.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "testing/emulated_nccl/library.h"

namespace rabit::emulated_nccl {

// False: the communicator was aborted meanwhile.
inline bool ExchangeIn(const Communicator& comm, std::vector<Message> sent,
                       std::vector<Message> received) {
  const auto differ = [] {
    Lock lock(library().mutex);
    ++library().counts.violations;
  };
  return Exchange({*comm.board, comm.rank, comm.is_aborted, differ}, std::move(sent),
                  std::move(received));
}

// Every rank's `mine`, by rank; those that `wants` is not true of stay empty.
using Parts = std::vector<std::vector<std::byte>>;

inline bool GatherTo(Communicator& comm, uint64_t kind, std::byte* mine, size_t bytes,
                     const std::function<bool(int)>& sends_to, bool wants_all, Parts& parts) {
  std::vector<Message> sent;
  std::vector<Message> received;
  parts.assign(static_cast<size_t>(comm.size), {});
  for (int peer = 0; peer < comm.size; ++peer) {
    if (sends_to(peer)) sent.push_back({peer, {kind, bytes}, mine});
    if (!wants_all) continue;
    std::vector<std::byte>& part = parts[static_cast<size_t>(peer)];
    part.resize(bytes);
    received.push_back({peer, {kind, bytes}, part.data()});
  }
  return ExchangeIn(comm, std::move(sent), std::move(received));
}

// The body of a kernel; on the thread of its stream.
struct Kernel {
  Shared comm;
  uint64_t turn = 0;
  bool is_broken = false;
  Result result = kSuccess;  // of a broken one
  std::function<bool()> exchange;
};

inline void Pass(Library& all, int device, uint64_t turn) {
  Turns& turns = all.turns[device];
  turns.over.insert(turn);
  while (turns.over.erase(turns.current) > 0) ++turns.current;
  all.changed.notify_all();
}

inline void RunKernel(void* argument) {
  const std::unique_ptr<Kernel> kernel(static_cast<Kernel*>(argument));
  Communicator& comm = *kernel->comm;
  Library& all = library();
  Lock lock(all.mutex);
  const auto is_mine = [&] { return all.turns[comm.device].current == kernel->turn; };
  all.changed.wait(lock, [&] { return is_mine() || comm.is_aborted.load(); });
  if (kernel->is_broken) {
    comm.error = kernel->result;
    all.changed.wait(lock, [&] { return comm.is_aborted.load(); });
  }
  bool is_done = false;
  if (!comm.is_aborted.load()) {
    lock.unlock();
    is_done = kernel->exchange();
    lock.lock();
  }
  if (is_done) ++all.counts.exchanged;
  --comm.kernels;
  Pass(all, comm.device, kernel->turn);
}

// With the lock.  The real one waits for all that the communicator has on streams, which may stand
// behind kernels of others.
inline Result AwaitAborted(Library& all, Lock& lock) {
  constexpr auto kForEver = std::chrono::seconds(20);
  for (const Shared& comm : std::exchange(group().aborted, {})) {
    const bool has_ended = all.changed.wait_for(lock, kForEver, [&] { return comm->kernels == 0; });
    if (!has_ended) return Violated(all, kInternalError, "an abort that never ends");
  }
  return kSuccess;
}

// With the lock.
inline void Launch(Library& all, const Shared& comm, Stream stream,
                   std::function<bool()> exchange) {
  static auto* const launch =
      OfDriver<emulated_cuda::rabit_emulated_launch_type>("rabit_emulated_launch");
  auto* const kernel =
      new Kernel{comm, all.turns[comm->device].next++, false, kSuccess, std::move(exchange)};
  if (all.broken.result != kSuccess && all.broken.skip-- == 0) {
    kernel->is_broken = true;
    kernel->result = std::exchange(all.broken.result, kSuccess);
  }
  ++all.counts.kernels;
  ++comm->kernels;
  launch(comm->device, reinterpret_cast<rabit::cuda::Stream>(stream), RunKernel, kernel);
}

inline bool Overlap(const void* one, size_t one_bytes, const void* other, size_t other_bytes) {
  if (one_bytes == 0 || other_bytes == 0) return false;
  const auto first = reinterpret_cast<uintptr_t>(one);
  const auto second = reinterpret_cast<uintptr_t>(other);
  return first < second + other_bytes && second < first + one_bytes;
}

// With the lock.  Sends and receipts of one communicator and stream become one kernel.
inline void LaunchAll(Library& all, std::vector<Call> calls) {
  std::vector<std::pair<const Call*, std::vector<const Call*>>> kernels;
  for (const Call& call : calls) {
    const auto fits = [&call](const auto& kernel) {
      return kernel.first->is_message && call.is_message && kernel.first->comm == call.comm &&
             kernel.first->stream == call.stream;
    };
    auto found = std::find_if(kernels.begin(), kernels.end(), fits);
    if (found == kernels.end()) found = kernels.insert(kernels.end(), {&call, {}});
    found->second.push_back(&call);
  }
  for (const auto& [first, parts] : kernels) {
    if (!first->is_message) {
      Launch(all, first->comm, first->stream, first->exchange);
      continue;
    }
    std::vector<Message> sent;
    std::vector<Message> received;
    for (const Call* part : parts) (part->is_receipt ? received : sent).push_back(part->message);
    for (const Message& to : received) {
      for (const Message& from : sent) {
        if (Overlap(from.bytes, from.header.bytes, to.bytes, to.header.bytes)) {
          (void)Violated(all, kInvalidArgument, "messages that overlap");
        }
      }
    }
    Launch(all, first->comm, first->stream,
           [comm = first->comm, sent, received] { return ExchangeIn(*comm, sent, received); });
  }
}

// With the lock.  What is called alone is a group of one.  Where ranks have to be connected first,
// it is on its stream when the communicators say that they are no longer in progress; later on it
// may be there at once.
inline Result Begin(Library& all, std::vector<Call> calls) {
  if (calls.empty()) return kSuccess;
  std::set<Shared> comms;
  for (const Call& call : calls) comms.insert(call.comm);
  bool is_connected = true;
  for (const Shared& comm : comms) {
    is_connected = std::exchange(comm->is_connected, true) && is_connected;
  }
  if (is_connected && all.random() % 2 == 0) {
    LaunchAll(all, std::move(calls));
    return kSuccess;
  }
  for (const Shared& comm : comms) comm->polls_left = 1 + static_cast<int>(all.random() % 3);
  const Shared first = calls.front().comm;
  first->launches.push_back([&all, calls] { LaunchAll(all, calls); });
  return kInProgress;
}

inline Result Add(Library& all, Call call) {
  if (group().depth == 0) return Begin(all, {std::move(call)});
  group().calls.push_back(std::move(call));
  return kSuccess;
}

// With the lock.
inline bool AreOfDevice(const Communicator& comm, const void* in, size_t in_bytes, const void* out,
                        size_t out_bytes) {
  const bool has_in = in_bytes == 0 || Reach(in, in_bytes, comm.device) != nullptr;
  return has_in && (out_bytes == 0 || Reach(out, out_bytes, comm.device) != nullptr);
}

// Whether `out` may be where it is: apart from `in`, or where NCCL works in place.
inline bool MayAlias(const Communicator& comm, const void* in, size_t in_bytes, const void* out,
                     size_t out_bytes) {
  if (!Overlap(in, in_bytes, out, out_bytes)) return true;
  const size_t part = std::min(in_bytes, out_bytes) * static_cast<size_t>(comm.rank);
  const auto* const from = static_cast<const std::byte*>(in) + (out_bytes < in_bytes ? part : 0);
  const auto* const to = static_cast<const std::byte*>(out) + (in_bytes < out_bytes ? part : 0);
  return from == to;
}

inline Result FindOperator(Library& all, const Communicator& comm, RedOp op, DataType type,
                           Operator& found) {
  found = {op, false, 1.0};
  if (op < kNumOps) return kSuccess;
  const auto made = comm.operators.find(op);
  if (made == comm.operators.end() || comm.operator_types.at(op) != type) {
    return Violated(all, kInvalidArgument, "there is no such operator of this type");
  }
  found = made->second;
  return kSuccess;
}

inline uint64_t KindOf(const char* function, uint64_t detail = 0) {
  uint64_t kind = detail;
  for (const char* c = function; *c != '\0'; ++c) kind = kind * 131 + static_cast<uint64_t>(*c);
  return kind;
}

// A collective whose ranks bring `in` and get `out`; see GatherTo for the functions.
struct Collective {
  const char* name;
  const void* in;
  void* out;
  size_t in_bytes;
  size_t out_bytes;
  uint64_t detail = 0;  // what must be equal besides the size
  std::function<bool(int peer)> sends_to = [](int) { return true; };
  bool wants_all = true;
  std::function<void(const Parts&, std::byte* out)> finish = {};
};

inline Result Add(Library& all, const Shared& comm, Stream stream, Collective run) {
  if (!AreOfDevice(*comm, run.in, run.in_bytes, run.out, run.out_bytes)) {
    return Violated(all, kInvalidArgument, std::string(run.name) + ": memory of no device");
  }
  if (!MayAlias(*comm, run.in, run.in_bytes, run.out, run.out_bytes)) {
    return Violated(all, kInvalidArgument, std::string(run.name) + ": memory that overlaps");
  }
  const auto exchange = [comm, run] {
    std::byte* const in = Reach(run.in, run.in_bytes, comm->device);
    std::byte* const out = Reach(run.out, run.out_bytes, comm->device);
    const bool has_gone = (run.in_bytes > 0 && in == nullptr) || (run.out_bytes > 0 && !out);
    if (has_gone) {
      Lock lock(library().mutex);
      ++library().counts.violations;
      return false;
    }
    Parts parts;
    const uint64_t kind = KindOf(run.name, run.detail);
    if (!GatherTo(*comm, kind, in, run.in_bytes, run.sends_to, run.wants_all, parts)) return false;
    if (run.finish) run.finish(parts, out);
    return true;
  };
  return Add(all, {comm, stream, false, exchange});
}

inline void CopyAll(const Parts& parts, std::byte* out) {
  for (const auto& part : parts) {
    if (!part.empty()) std::memcpy(out, part.data(), part.size());
    out += part.size();
  }
}

// With the lock.
inline Result AddMessage(Library& all, const Shared& comm, Stream stream, const void* memory,
                         size_t bytes, int peer, bool is_receipt) {
  std::byte* const inside = bytes == 0 ? nullptr : Reach(memory, bytes, comm->device);
  if (bytes > 0 && inside == nullptr) {
    return Violated(all, kInvalidArgument, "a message in memory of no device");
  }
  Call call{comm, stream, true};
  call.message = {peer, {KindOf("message"), bytes}, inside};
  call.is_receipt = is_receipt;
  return Add(all, std::move(call));
}

}  // namespace rabit::emulated_nccl
