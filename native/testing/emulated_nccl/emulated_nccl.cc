// NCCL for tests without a GPU: a shared library with NCCL's names, over the emulated CUDA driver.
// A kernel is work on a stream, in which the ranks, threads or processes of one host, exchange
// bytes through pipes in shared memory.  It is as strict as the real one may be: kernels of a
// device run one after the other in the order of their launches, so that ranks that launch in
// different orders wait for each other for ever, and so do ranks whose calls differ.
#include "testing/emulated_nccl/emulated_nccl.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "testing/emulated_cuda/emulated_cuda.h"
#include "testing/emulated_nccl/numbers.h"
#include "testing/emulated_nccl/pipes.h"

namespace {

using namespace rabit::nccl;           // NOLINT: NCCL's own words
using namespace rabit::emulated_nccl;  // NOLINT

struct Communicator {
  std::string file;
  Board* board = nullptr;
  int rank = 0;
  int size = 1;
  int device = 0;
  int polls_left = 0;  // before it tells that what was begun is done
  bool has_joined = false;
  std::vector<std::function<void()>> launches;  // what was begun, and is not on a stream yet
  std::map<RedOp, Operator> operators;
  std::map<RedOp, DataType> operator_types;
  std::string last_error;
  std::atomic<Result> error{kSuccess};
  std::atomic<bool> is_aborted{false};

  ~Communicator() {
    if (board != nullptr) ::munmap(board, sizeof(Board));
  }
};
using Shared = std::shared_ptr<Communicator>;

// A call between ncclGroupStart and ncclGroupEnd, or one alone.
struct Call {
  Shared comm;
  Stream stream = nullptr;
  bool is_message = false;           // sends and receipts of a group are one kernel
  std::function<bool()> exchange{};  // false: it was aborted
  Message message{};
  bool is_receipt = false;
};

struct Injected {
  uint64_t skip = 0;
  Result result = kSuccess;
};

// Whose turn it is on a device.
struct Turns {
  uint64_t next = 0;
  uint64_t current = 0;
  std::set<uint64_t> over;
};

struct Library {
  std::mutex mutex;
  std::condition_variable changed;
  std::minstd_rand random{7};
  int32_t version = 22703;
  Counts counts;
  std::map<std::string, uint64_t> calls;
  std::map<std::string, Injected> failures;
  Injected broken{0, kSuccess};  // a kernel
  std::map<Comm, Shared> comms;
  std::map<int, Turns> turns;
  std::string last_error;
  uint64_t made = 0;  // identities and communicators
};

// Lives on: streams may outlive main.
Library& library() {
  static Library* const the_one = new Library;
  return *the_one;
}

struct Group {
  int depth = 0;
  std::vector<Call> calls;
};
Group& group() {
  static thread_local Group mine;
  return mine;
}

using Lock = std::unique_lock<std::mutex>;
template <class Function>
Function* OfDriver(const char* name) {
  static void* const loaded = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  return loaded == nullptr ? nullptr : reinterpret_cast<Function*>(::dlsym(loaded, name));
}
namespace cuda = rabit::emulated_cuda;

int CurrentDevice() {
  static auto* const ask =
      OfDriver<cuda::rabit_emulated_current_device_type>("rabit_emulated_current_device");
  return ask == nullptr ? -1 : ask();
}
std::byte* Reach(const void* memory, size_t bytes, int device) {
  static auto* const ask = OfDriver<cuda::rabit_emulated_reach_type>("rabit_emulated_reach");
  return static_cast<std::byte*>(ask(reinterpret_cast<uintptr_t>(memory), bytes, device));
}

// With the lock.
Result Tell(Library& all, Result result, std::string why) {
  all.last_error = std::move(why);
  return result;
}
Result Violated(Library& all, Result result, std::string why) {
  ++all.counts.violations;
  return Tell(all, result, std::move(why));
}

// What every function begins with.
Result Enter(Library& all, const char* function) {
  ++all.calls[function];
  const auto found = all.failures.find(function);
  if (found == all.failures.end() || found->second.skip-- > 0) return kSuccess;
  const Result result = found->second.result;
  all.failures.erase(found);
  return Tell(all, result, std::string(function) + " was told to fail");
}

#define RABIT_ENTER_NCCL()  \
  Library& all = library(); \
  Lock lock(all.mutex);     \
  if (const Result entered = Enter(all, __func__); entered != kSuccess) return entered

Result Find(Library& all, Comm comm, Shared& found, bool must_be_ready) {
  const auto at = all.comms.find(comm);
  if (at == all.comms.end()) return Violated(all, kInvalidArgument, "there is no such comm");
  found = at->second;
  if (!must_be_ready) return kSuccess;
  const bool is_ready = found->has_joined && found->polls_left == 0 && found->launches.empty();
  if (!is_ready) return Violated(all, kInvalidUsage, "the comm is in progress still");
  if (CurrentDevice() == found->device) return kSuccess;
  return Violated(all, kUnhandledCudaError, "another device is current");
}

// ---- Exchange ---------------------------------------------------------------------------------

// False: the communicator was aborted meanwhile.
bool ExchangeIn(const Communicator& comm, std::vector<Message> sent,
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

bool GatherTo(Communicator& comm, uint64_t kind, std::byte* mine, size_t bytes,
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

// ---- Launches ---------------------------------------------------------------------------------

// The body of a kernel; on the thread of its stream.
struct Kernel {
  Shared comm;
  uint64_t turn = 0;
  bool is_broken = false;
  Result result = kSuccess;  // of a broken one
  std::function<bool()> exchange;
};

void Pass(Library& all, int device, uint64_t turn) {
  Turns& turns = all.turns[device];
  turns.over.insert(turn);
  while (turns.over.erase(turns.current) > 0) ++turns.current;
  all.changed.notify_all();
}

void RunKernel(void* argument) {
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
  Pass(all, comm.device, kernel->turn);
}

// With the lock.
void Launch(Library& all, const Shared& comm, Stream stream, std::function<bool()> exchange) {
  static auto* const launch = OfDriver<cuda::rabit_emulated_launch_type>("rabit_emulated_launch");
  auto* const kernel =
      new Kernel{comm, all.turns[comm->device].next++, false, kSuccess, std::move(exchange)};
  if (all.broken.result != kSuccess && all.broken.skip-- == 0) {
    kernel->is_broken = true;
    kernel->result = std::exchange(all.broken.result, kSuccess);
  }
  ++all.counts.kernels;
  launch(comm->device, reinterpret_cast<rabit::cuda::Stream>(stream), RunKernel, kernel);
}

// With the lock.  Sends and receipts of one communicator and stream become one kernel.
void LaunchAll(Library& all, std::vector<Call> calls) {
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
    Launch(all, first->comm, first->stream,
           [comm = first->comm, sent, received] { return ExchangeIn(*comm, sent, received); });
  }
}

// With the lock.  What is called alone is a group of one.  It is on its stream when the
// communicators say that they are no longer in progress.
Result Begin(Library& all, std::vector<Call> calls) {
  if (calls.empty()) return kSuccess;
  std::set<Shared> comms;
  for (const Call& call : calls) comms.insert(call.comm);
  for (const Shared& comm : comms) comm->polls_left = 1 + static_cast<int>(all.random() % 3);
  const Shared first = calls.front().comm;
  first->launches.push_back([&all, calls] { LaunchAll(all, calls); });
  return kInProgress;
}

Result Add(Library& all, Call call) {
  if (group().depth == 0) return Begin(all, {std::move(call)});
  group().calls.push_back(std::move(call));
  return kSuccess;
}

// With the lock.
bool AreOfDevice(const Communicator& comm, const void* in, size_t in_bytes, const void* out,
                 size_t out_bytes) {
  const bool has_in = in_bytes == 0 || Reach(in, in_bytes, comm.device) != nullptr;
  return has_in && (out_bytes == 0 || Reach(out, out_bytes, comm.device) != nullptr);
}

Result FindOperator(Library& all, const Communicator& comm, RedOp op, DataType type,
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

uint64_t KindOf(const char* function, uint64_t detail = 0) {
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

Result Add(Library& all, const Shared& comm, Stream stream, Collective run) {
  if (!AreOfDevice(*comm, run.in, run.in_bytes, run.out, run.out_bytes)) {
    return Violated(all, kInvalidArgument, std::string(run.name) + ": memory of no device");
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

void CopyAll(const Parts& parts, std::byte* out) {
  for (const auto& part : parts) {
    if (!part.empty()) std::memcpy(out, part.data(), part.size());
    out += part.size();
  }
}

Board* Map(const std::string& file) {
  const int opened = ::open(file.c_str(), O_RDWR | O_CLOEXEC);
  if (opened < 0) return nullptr;
  void* const memory =
      ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, opened, 0);
  ::close(opened);
  return memory == MAP_FAILED ? nullptr : static_cast<Board*>(memory);
}

// With the lock.  The last one to come removes the file, which nobody needs any more.
Result Poll(Library& all, Communicator& comm) {
  if (comm.error != kSuccess) return comm.error;
  if (!comm.has_joined) {
    if (comm.board->joined.load() < comm.size) return kInProgress;
    comm.has_joined = true;
    for (int rank = 0; rank < comm.size; ++rank) {
      const bool is_same = comm.board->places[rank].load() == comm.board->places[comm.rank].load();
      if (rank == comm.rank || !is_same) continue;
      comm.error = Tell(all, kInvalidUsage,
                        "Duplicate GPU detected : rank " + std::to_string(comm.rank) +
                            " and rank " + std::to_string(rank) + " both on CUDA device");
      return comm.error;
    }
  }
  if (comm.polls_left > 0) {
    --comm.polls_left;
    return kInProgress;
  }
  for (const auto& launch : std::exchange(comm.launches, {})) launch();
  return kSuccess;
}

}  // namespace

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
  made->board->places[rank] = int64_t{::getpid()} * 64 + device + 1;
  if (made->board->joined.fetch_add(1) + 1 == size) (void)::unlink(made->file.c_str());
  *comm = reinterpret_cast<Comm>(++all.made * 64);
  all.comms[*comm] = made;
  ++all.counts.communicators;
  return kInProgress;
}
RABIT_EXPORT Result ncclCommAbort(Comm comm) {
  RABIT_ENTER_NCCL();
  Shared found;
  if (const Result result = Find(all, comm, found, false); result != kSuccess) return result;
  found->is_aborted = true;
  found->launches.clear();
  if (!found->has_joined) (void)::unlink(found->file.c_str());
  all.comms.erase(comm);
  all.counts.operators -= static_cast<int64_t>(found->operators.size());
  --all.counts.communicators;
  all.changed.notify_all();
  return kSuccess;
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
  return has_begun ? Begin(all, std::move(calls))
                   : Violated(all, kInvalidUsage, "no group has begun");
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

// With the lock.
Result AddMessage(Library& all, const Shared& comm, Stream stream, const void* memory, size_t bytes,
                  int peer, bool is_receipt) {
  std::byte* const inside = bytes == 0 ? nullptr : Reach(memory, bytes, comm->device);
  if (bytes > 0 && inside == nullptr) {
    return Violated(all, kInvalidArgument, "a message in memory of no device");
  }
  Call call{comm, stream, true};
  call.message = {peer, {KindOf("message"), bytes}, inside};
  call.is_receipt = is_receipt;
  return Add(all, std::move(call));
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
RABIT_EXPORT void rabit_emulated_nccl_counts(Counts* counts) {
  Lock lock(library().mutex);
  *counts = library().counts;
}
RABIT_EXPORT uint64_t rabit_emulated_nccl_calls(const char* function) {
  Lock lock(library().mutex);
  return library().calls[function];
}
