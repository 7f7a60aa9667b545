// NCCL for tests without a GPU: a shared library with NCCL's names, over the emulated CUDA driver.
// A kernel is work on a stream, in which the ranks, threads or processes of one host, exchange
// bytes through pipes in shared memory.  It is as strict as the real one may be: kernels of a
// device run one after the other in the order of their launches, so that ranks that launch in
// different orders wait for each other for ever, and so do ranks whose calls differ.
#include "testing/emulated_nccl/emulated_nccl.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "testing/emulated_nccl/bootstrap.h"
#include "testing/emulated_nccl/described.h"
#include "testing/emulated_nccl/kernels.h"
#include "testing/emulated_nccl/library.h"

using namespace rabit::nccl;           // NOLINT: NCCL's own words
using namespace rabit::emulated_nccl;  // NOLINT

#define RABIT_EXPORT extern "C" __attribute__((visibility("default")))

RABIT_EXPORT Result ncclGetVersion(int32_t* version) {
  RABIT_ENTER_NCCL();
  *version = all.version;
  return kSuccess;
}
RABIT_EXPORT const char* ncclGetErrorString(Result result) {
  Lock lock(library().mutex);
  ++library().calls[__func__];
  return result == kRemoteError ? "remote process exited or there was a network error"
                                : "an emulated failure";
}
RABIT_EXPORT const char* ncclGetLastError(Comm) {
  static thread_local std::string text;
  Lock lock(library().mutex);
  ++library().calls[__func__];
  text = library().last_error;
  return text.c_str();
}
RABIT_EXPORT Result ncclGetUniqueId(UniqueId* id) {
  RABIT_ENTER_NCCL();
  const std::string file = "/dev/shm/rabit-nccl-" + std::to_string(::getpid()) + "-" +
                           std::to_string(std::random_device()()) + "-" +
                           std::to_string(++all.made);
  const int made = ::open(file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (made < 0) return Tell(all, kSystemError, "no file " + file);
  const bool is_large = ::ftruncate(made, sizeof(Board)) == 0;
  ::close(made);
  if (!is_large) return Tell(all, kSystemError, "no room for " + file);
  *id = {};
  std::strncpy(id->internal, file.c_str(), sizeof id->internal - 1);
  return kSuccess;
}
RABIT_EXPORT Result ncclCommInitRankConfig(Comm* comm, int32_t size, UniqueId id, int32_t rank,
                                           Config* config) {
  RABIT_ENTER_NCCL();
  if (config->size != sizeof(Config) || config->magic != kConfigMagic || config->blocking != 0 ||
      config->version != kVersionMin || size > kRanksMax || rank >= size) {
    return Violated(all, kInvalidArgument, "a bad configuration");
  }
  const int device = CurrentDevice();
  if (device < 0) return Violated(all, kUnhandledCudaError, "no device is current");
  const auto made = std::make_shared<Communicator>();
  made->file = id.internal;
  made->board = Map(made->file);
  if (made->board == nullptr) return Tell(all, kSystemError, "nobody listens at this identity");
  made->rank = rank;
  made->size = size;
  made->device = device;
  made->board->places[rank] = PlaceOf(device);
  if (made->board->joined.fetch_add(1) + 1 == size) (void)::unlink(made->file.c_str());
  *comm = reinterpret_cast<Comm>(++all.made * 64);
  made->handle = *comm;
  made->place = comm;
  all.comms[*comm] = made;
  ++all.counts.communicators;
  return kInProgress;
}
RABIT_EXPORT Result ncclCommFinalize(Comm comm) {
  RABIT_ENTER_NCCL();
  Shared found;
  if (const Result result = Find(all, comm, found, true); result != kSuccess) return result;
  found->is_finalizing = true;
  return kInProgress;
}
RABIT_EXPORT Result ncclCommDestroy(Comm comm) {
  RABIT_ENTER_NCCL();
  Shared found;
  if (const Result result = Find(all, comm, found, false); result != kSuccess) return result;
  if (!found->is_finalized) return Violated(all, kInvalidUsage, "the comm is not finalized");
  Remove(all, comm);
  return kSuccess;
}
RABIT_EXPORT Result ncclCommAbort(Comm comm) {
  RABIT_ENTER_NCCL();
  Shared found;
  if (const Result result = Find(all, comm, found, false); result != kSuccess) return result;
  WriteHandle(all, *found);
  found->is_aborted = true;
  found->launches.clear();
  if (!found->has_joined) (void)::unlink(found->file.c_str());
  if (!found->is_finalized) found->board->is_gone[found->rank] = 1;
  Remove(all, comm);
  all.changed.notify_all();
  group().aborted.push_back(found);
  return group().depth > 0 ? kSuccess : AwaitAborted(all, lock);
}
RABIT_EXPORT Result ncclCommGetAsyncError(Comm comm, Result* error) {
  RABIT_ENTER_NCCL();
  Shared found;
  if (const Result result = Find(all, comm, found, false); result != kSuccess) return result;
  *error = Poll(all, *found);
  return kSuccess;
}
RABIT_EXPORT Result ncclRedOpCreatePreMulSum(RedOp* op, void* scalar, DataType type,
                                             Residence residence, Comm comm) {
  RABIT_ENTER_NCCL();
  Shared found;
  if (const Result result = Find(all, comm, found, true); result != kSuccess) return result;
  if (residence != kScalarHostImmediate) return Violated(all, kInvalidArgument, "a bad residence");
  *op = kNumOps;
  while (found->operators.contains(*op)) ++*op;
  found->operators[*op] = {kSum, true, ScalarOf(type, scalar)};
  found->operator_types[*op] = type;
  ++all.counts.operators;
  return kSuccess;
}
RABIT_EXPORT Result ncclRedOpDestroy(RedOp op, Comm comm) {
  RABIT_ENTER_NCCL();
  Shared found;
  if (const Result result = Find(all, comm, found, false); result != kSuccess) return result;
  if (found->operators.erase(op) == 0) return Violated(all, kInvalidArgument, "no operator");
  --all.counts.operators;
  return kSuccess;
}
RABIT_EXPORT Result ncclGroupStart() {
  RABIT_ENTER_NCCL();
  ++group().depth;
  return kSuccess;
}
// It ends, whatever it returns.
RABIT_EXPORT Result ncclGroupEnd() {
  const bool has_begun = group().depth > 0;
  if (has_begun) --group().depth;
  std::vector<Call> calls;
  if (group().depth == 0) calls.swap(group().calls);
  RABIT_ENTER_NCCL();
  if (!has_begun) return Violated(all, kInvalidUsage, "no group has begun");
  if (group().depth > 0) return kSuccess;
  const Result aborted = AwaitAborted(all, lock);
  return aborted == kSuccess ? Begin(all, std::move(calls)) : aborted;
}

#define RABIT_ENTER_COMM() \
  RABIT_ENTER_NCCL();      \
  Shared found;            \
  if (const Result known = Find(all, comm, found, true); known != kSuccess) return known

RABIT_EXPORT Result ncclAllReduce(const void* in, void* out, size_t count, DataType type, RedOp op,
                                  Comm comm, Stream stream) {
  RABIT_ENTER_COMM();
  Operator with;
  if (const Result known = FindOperator(all, *found, op, type, with); known != kSuccess)
    return known;
  const size_t bytes = count * BytesOf(type);
  Collective run{__func__, in, out, bytes, bytes, static_cast<uint64_t>(type)};
  run.finish = [=](const Parts& parts, std::byte* to) { Reduce(type, with, parts, to, count); };
  return Add(all, found, stream, std::move(run));
}
RABIT_EXPORT Result ncclReduce(const void* in, void* out, size_t count, DataType type, RedOp op,
                               int32_t root, Comm comm, Stream stream) {
  RABIT_ENTER_COMM();
  Operator with;
  if (const Result known = FindOperator(all, *found, op, type, with); known != kSuccess)
    return known;
  const size_t bytes = count * BytesOf(type);
  const bool is_root = found->rank == root;
  Collective run{__func__, in, out, bytes, is_root ? bytes : 0, static_cast<uint64_t>(root)};
  run.sends_to = [root](int peer) { return peer == root; };
  run.wants_all = is_root;
  if (is_root) {
    run.finish = [=](const Parts& parts, std::byte* to) { Reduce(type, with, parts, to, count); };
  }
  return Add(all, found, stream, std::move(run));
}
RABIT_EXPORT Result ncclBroadcast(const void* in, void* out, size_t count, DataType type,
                                  int32_t root, Comm comm, Stream stream) {
  RABIT_ENTER_COMM();
  const size_t bytes = count * BytesOf(type);
  const bool is_root = found->rank == root;
  if (!AreOfDevice(*found, is_root ? in : nullptr, is_root ? bytes : 0, out, bytes)) {
    return Violated(all, kInvalidArgument, "ncclBroadcast: memory of no device");
  }
  const auto exchange = [=, comm = found] {
    std::byte* const from = is_root ? Reach(in, bytes, comm->device) : nullptr;
    std::byte* const to = Reach(out, bytes, comm->device);
    const Header header{KindOf("ncclBroadcast", static_cast<uint64_t>(root)), bytes};
    std::vector<Message> sent;
    for (int peer = 0; is_root && peer < comm->size; ++peer) {
      if (peer != root) sent.push_back({peer, header, from});
    }
    std::vector<Message> received;
    if (!is_root) received.push_back({root, header, to});
    if (is_root && from != to && bytes > 0) std::memmove(to, from, bytes);
    return ExchangeIn(*comm, std::move(sent), std::move(received));
  };
  return Add(all, {found, stream, false, exchange});
}
RABIT_EXPORT Result ncclAllGather(const void* in, void* out, size_t count, DataType type, Comm comm,
                                  Stream stream) {
  RABIT_ENTER_COMM();
  const size_t bytes = count * BytesOf(type);
  Collective run{__func__, in, out, bytes, bytes * static_cast<size_t>(found->size)};
  run.finish = CopyAll;
  return Add(all, found, stream, std::move(run));
}
RABIT_EXPORT Result ncclReduceScatter(const void* in, void* out, size_t count, DataType type,
                                      RedOp op, Comm comm, Stream stream) {
  RABIT_ENTER_COMM();
  Operator with;
  if (const Result known = FindOperator(all, *found, op, type, with); known != kSuccess)
    return known;
  const size_t bytes = count * BytesOf(type);
  const auto ranks = static_cast<size_t>(found->size);
  const auto first = static_cast<size_t>(found->rank) * bytes;
  Collective run{__func__, in, out, bytes * ranks, bytes, static_cast<uint64_t>(type)};
  run.finish = [=](const Parts& parts, std::byte* to) {
    Parts mine;
    for (const auto& part : parts) {
      mine.emplace_back(part.begin() + static_cast<std::ptrdiff_t>(first),
                        part.begin() + static_cast<std::ptrdiff_t>(first + bytes));
    }
    Reduce(type, with, mine, to, count);
  };
  return Add(all, found, stream, std::move(run));
}

RABIT_EXPORT Result ncclSend(const void* in, size_t count, DataType type, int32_t peer, Comm comm,
                             Stream stream) {
  RABIT_ENTER_COMM();
  return AddMessage(all, found, stream, in, count * BytesOf(type), peer, false);
}
RABIT_EXPORT Result ncclRecv(void* out, size_t count, DataType type, int32_t peer, Comm comm,
                             Stream stream) {
  RABIT_ENTER_COMM();
  return AddMessage(all, found, stream, out, count * BytesOf(type), peer, true);
}

RABIT_EXPORT void rabit_emulated_nccl_fail(const char* function, uint64_t skip, Result result) {
  Lock lock(library().mutex);
  if (result == kSuccess) {
    library().failures.erase(function);
  } else {
    library().failures[function] = {skip, result};
  }
}
RABIT_EXPORT void rabit_emulated_nccl_break(uint64_t skip, Result result) {
  Lock lock(library().mutex);
  library().broken = {skip, result};
}
RABIT_EXPORT void rabit_emulated_nccl_version(int32_t version) {
  Lock lock(library().mutex);
  library().version = version;
}
RABIT_EXPORT void rabit_emulated_nccl_show() {
  Lock lock(library().mutex);
  std::puts(Described(library()).c_str());
}
RABIT_EXPORT void rabit_emulated_nccl_counts(Counts* counts) {
  Lock lock(library().mutex);
  *counts = library().counts;
}
RABIT_EXPORT uint64_t rabit_emulated_nccl_calls(const char* function) {
  Lock lock(library().mutex);
  return library().calls[function];
}
