#include "backend/mpi/mpi_library.h"

#include <cstddef>
#include <mutex>
#include <string>
#include <type_traits>

#include "base/dynamic_library.h"

namespace rabit {
namespace {

constexpr int kSuccess = 0;
constexpr int kErrorTextBytes = 8192;  // above MPI_MAX_ERROR_STRING of every library

// Larger than any library's MPI_Status, whose layout differs from one to the other.
struct alignas(16) AnyStatus {
  std::byte bytes[256];
};

// The functions with handles of type H: int32_t or void*.
template <class H>
struct MpiFunctions {
  int (*finalized)(int*);
  int (*comm_rank)(H, int*);
  int (*comm_size)(H, int*);
  int (*comm_set_errhandler)(H, H);
  int (*comm_idup)(H, H*, H*);
  int (*comm_group)(H, H*);
  int (*comm_create_group)(H, H, int, H*);
  int (*comm_free)(H*);
  int (*group_incl)(H, int, const int*, H*);
  int (*group_free)(H*);
  int (*error_string)(int, char*, int*);
  int (*test)(H*, int*, AnyStatus*);
  int (*cancel)(H*);
  int (*get_count)(const AnyStatus*, H, int*);
  int (*isend)(const void*, int, H, int, int, H, H*);
  int (*irecv)(void*, int, H, int, int, H, H*);
  int (*ibarrier)(H, H*);
  int (*ibcast)(void*, int, H, int, H, H*);
  int (*iallreduce)(const void*, void*, int, H, H, H, H*);
  int (*ireduce)(const void*, void*, int, H, H, int, H, H*);
  int (*ireduce_scatter)(const void*, void*, const int*, H, H, H, H*);
  int (*iallgatherv)(const void*, int, H, void*, const int*, const int*, H, H, H*);
  int (*igatherv)(const void*, int, H, void*, const int*, const int*, H, int, H, H*);
  int (*iscatterv)(const void*, const int*, const int*, H, void*, int, H, int, H, H*);
  int (*ialltoallv)(const void*, const int*, const int*, H, void*, const int*, const int*, H, H,
                    H*);

  Status FindIn(const DynamicLibrary& library) {
    RABIT_RETURN_IF_ERROR(library.Find("MPI_Finalized", finalized));
    RABIT_RETURN_IF_ERROR(library.Find("MPI_Comm_rank", comm_rank));
    RABIT_RETURN_IF_ERROR(library.Find("MPI_Comm_size", comm_size));
    RABIT_RETURN_IF_ERROR(library.Find("MPI_Comm_set_errhandler", comm_set_errhandler));
    RABIT_RETURN_IF_ERROR(library.Find("MPI_Comm_idup", comm_idup));
    RABIT_RETURN_IF_ERROR(library.Find("MPI_Comm_group", comm_group));
    RABIT_RETURN_IF_ERROR(library.Find("MPI_Comm_create_group", comm_create_group));
    RABIT_RETURN_IF_ERROR(library.Find("MPI_Comm_free", comm_free));
    RABIT_RETURN_IF_ERROR(library.Find("MPI_Group_incl", group_incl));
    RABIT_RETURN_IF_ERROR(library.Find("MPI_Group_free", group_free));
    RABIT_RETURN_IF_ERROR(library.Find("MPI_Error_string", error_string));
    RABIT_RETURN_IF_ERROR(library.Find("MPI_Test", test));
    RABIT_RETURN_IF_ERROR(library.Find("MPI_Cancel", cancel));
    RABIT_RETURN_IF_ERROR(library.Find("MPI_Get_count", get_count));
    RABIT_RETURN_IF_ERROR(library.Find("MPI_Isend", isend));
    RABIT_RETURN_IF_ERROR(library.Find("MPI_Irecv", irecv));
    RABIT_RETURN_IF_ERROR(library.Find("MPI_Ibarrier", ibarrier));
    RABIT_RETURN_IF_ERROR(library.Find("MPI_Ibcast", ibcast));
    RABIT_RETURN_IF_ERROR(library.Find("MPI_Iallreduce", iallreduce));
    RABIT_RETURN_IF_ERROR(library.Find("MPI_Ireduce", ireduce));
    RABIT_RETURN_IF_ERROR(library.Find("MPI_Ireduce_scatter", ireduce_scatter));
    RABIT_RETURN_IF_ERROR(library.Find("MPI_Iallgatherv", iallgatherv));
    RABIT_RETURN_IF_ERROR(library.Find("MPI_Igatherv", igatherv));
    RABIT_RETURN_IF_ERROR(library.Find("MPI_Iscatterv", iscatterv));
    return library.Find("MPI_Ialltoallv", ialltoallv);
  }
};

template <class H>
class MpiLibraryOf final : public MpiLibrary {
 public:
  MpiLibraryOf(const MpiFunctions<H>& functions, const MpiHandles& handles)
      : functions_(functions),
        // Handles come as 64-bit numbers, and are turned into the library's own type at this border
        // alone.
        byte_(In(handles.byte)),
        in_place_(reinterpret_cast<void*>(static_cast<uintptr_t>(handles.in_place))),
        is_serialized_(handles.is_serialized) {}

  bool IsFinalized() override {
    int flag = 0;
    return functions_.finalized(&flag) != kSuccess || flag != 0;
  }

  Status RankAndSize(MpiHandle comm, int* rank, int* size) override {
    RABIT_RETURN_IF_ERROR(Call("MPI_Comm_rank", functions_.comm_rank, In(comm), rank));
    return Call("MPI_Comm_size", functions_.comm_size, In(comm), size);
  }

  Status ReturnErrors(MpiHandle comm, MpiHandle errors_return) override {
    return Call("MPI_Comm_set_errhandler", functions_.comm_set_errhandler, In(comm),
                In(errors_return));
  }

  Status Idup(MpiHandle comm, MpiHandle* copy, MpiHandle* request) override {
    // The library fills in the copy when the request is done, so it needs the caller's memory.
    H started{};
    const Status status =
        Call("MPI_Comm_idup", functions_.comm_idup, In(comm), reinterpret_cast<H*>(copy), &started);
    *request = Out(started);
    return status;
  }

  Status CreateGroup(MpiHandle parent, std::span<const int> ranks, int tag,
                     MpiHandle* comm) override {
    H all{}, some{}, made{};
    RABIT_RETURN_IF_ERROR(Call("MPI_Comm_group", functions_.comm_group, In(parent), &all));
    Status status = Call("MPI_Group_incl", functions_.group_incl, all,
                         static_cast<int>(ranks.size()), ranks.data(), &some);
    if (status.ok()) {
      status =
          Call("MPI_Comm_create_group", functions_.comm_create_group, In(parent), some, tag, &made);
      // A group is a description; the communicator does not need it any longer.
      (void)Call("MPI_Group_free", functions_.group_free, &some);
    }
    (void)Call("MPI_Group_free", functions_.group_free, &all);
    *comm = Out(made);
    return status;
  }

  Status FreeComm(MpiHandle comm) override {
    H handle = In(comm);
    return Call("MPI_Comm_free", functions_.comm_free, &handle);
  }

  Status Test(MpiHandle* request, bool* is_done, int64_t* received) override {
    H handle = In(*request);
    int flag = 0;
    AnyStatus status;
    Status tested = Call("MPI_Test", functions_.test, &handle, &flag, &status);
    *request = Out(handle);
    *is_done = flag != 0;
    // The size is read from the status at once: the request is gone after a successful test.
    if (!tested.ok() || flag == 0 || received == nullptr) return tested;
    int count = 0;
    tested = Call("MPI_Get_count", functions_.get_count, &status, byte_, &count);
    *received = count;
    return tested;
  }

  Status Cancel(MpiHandle request) override {
    H handle = In(request);
    return Call("MPI_Cancel", functions_.cancel, &handle);
  }

  Status Isend(const void* data, int bytes, int peer, int tag, MpiHandle comm,
               MpiHandle* request) override {
    return Start(request, "MPI_Isend", functions_.isend, data, bytes, byte_, peer, tag, In(comm));
  }
  Status Irecv(void* data, int bytes, int peer, int tag, MpiHandle comm,
               MpiHandle* request) override {
    return Start(request, "MPI_Irecv", functions_.irecv, data, bytes, byte_, peer, tag, In(comm));
  }
  Status Ibarrier(MpiHandle comm, MpiHandle* request) override {
    return Start(request, "MPI_Ibarrier", functions_.ibarrier, In(comm));
  }
  Status Ibcast(void* data, int bytes, int root, MpiHandle comm, MpiHandle* request) override {
    return Start(request, "MPI_Ibcast", functions_.ibcast, data, bytes, byte_, root, In(comm));
  }
  Status Iallreduce(void* data, int count, MpiHandle dtype, MpiHandle op, MpiHandle comm,
                    MpiHandle* request) override {
    return Start(request, "MPI_Iallreduce", functions_.iallreduce, in_place_, data, count,
                 In(dtype), In(op), In(comm));
  }
  Status Ireduce(void* data, int count, MpiHandle dtype, MpiHandle op, int root, bool is_root,
                 MpiHandle comm, MpiHandle* request) override {
    const void* input = is_root ? in_place_ : data;
    void* output = is_root ? data : nullptr;
    return Start(request, "MPI_Ireduce", functions_.ireduce, input, output, count, In(dtype),
                 In(op), root, In(comm));
  }
  Status IreduceScatter(const void* in, void* out, std::span<const int> counts, MpiHandle dtype,
                        MpiHandle op, MpiHandle comm, MpiHandle* request) override {
    return Start(request, "MPI_Ireduce_scatter", functions_.ireduce_scatter, in, out, counts.data(),
                 In(dtype), In(op), In(comm));
  }
  Status Iallgatherv(const void* mine, int bytes, void* all, MpiParts parts, MpiHandle comm,
                     MpiHandle* request) override {
    return Start(request, "MPI_Iallgatherv", functions_.iallgatherv, OrInPlace(mine), bytes, byte_,
                 all, parts.counts.data(), parts.offsets.data(), byte_, In(comm));
  }
  Status Igatherv(const void* mine, int bytes, void* all, MpiParts parts, int root, MpiHandle comm,
                  MpiHandle* request) override {
    return Start(request, "MPI_Igatherv", functions_.igatherv, OrInPlace(mine), bytes, byte_, all,
                 parts.counts.data(), parts.offsets.data(), byte_, root, In(comm));
  }
  Status Iscatterv(const void* all, MpiParts parts, void* mine, int bytes, int root, MpiHandle comm,
                   MpiHandle* request) override {
    return Start(request, "MPI_Iscatterv", functions_.iscatterv, all, parts.counts.data(),
                 parts.offsets.data(), byte_, OrInPlace(mine), bytes, byte_, root, In(comm));
  }
  Status Ialltoallv(const void* in, MpiParts sends, void* out, MpiParts receives, MpiHandle comm,
                    MpiHandle* request) override {
    return Start(request, "MPI_Ialltoallv", functions_.ialltoallv, in, sends.counts.data(),
                 sends.offsets.data(), byte_, out, receives.counts.data(), receives.offsets.data(),
                 byte_, In(comm));
  }

 private:
  static H In(MpiHandle handle) {
    if constexpr (std::is_pointer_v<H>) {
      return reinterpret_cast<H>(static_cast<uintptr_t>(handle));
    } else {
      return static_cast<H>(static_cast<uint32_t>(handle));
    }
  }
  static MpiHandle Out(H handle) {
    if constexpr (std::is_pointer_v<H>) {
      return reinterpret_cast<uintptr_t>(handle);
    } else {
      return static_cast<uint32_t>(handle);
    }
  }
  template <class Pointer>
  void* OrInPlace(Pointer mine) const {
    return mine == nullptr ? in_place_ : const_cast<void*>(static_cast<const void*>(mine));
  }

  template <class Function, class... Arguments>
  Status Call(const char* name, Function function, Arguments... arguments) {
    std::unique_lock lock(turn_, std::defer_lock);
    // A library of thread level "serialized" allows calls of any thread, but one at a time. No call
    // under this lock blocks, except making a group.
    if (is_serialized_) lock.lock();
    const int code = function(arguments...);
    return code == kSuccess ? Status() : Failed(name, code);
  }
  template <class Function, class... Arguments>
  Status Start(MpiHandle* request, const char* name, Function function, Arguments... arguments) {
    H started{};
    const Status status = Call(name, function, arguments..., &started);
    *request = Out(started);
    return status;
  }

  Status Failed(const char* name, int code) const {
    std::string text(kErrorTextBytes, '\0');
    int length = 0;
    if (functions_.error_string(code, text.data(), &length) != kSuccess) length = 0;
    // The text goes into JSON and logs, so it is made printable.
    text.resize(static_cast<size_t>(length));
    for (char& c : text) c = c < ' ' || c > '~' ? ' ' : c;
    return PeerLost(-1, std::string(name) + " failed with code " + std::to_string(code) + ": " +
                            (text.empty() ? "no text" : text) +
                            "; look at what the MPI library printed, and at the other ranks");
  }

  const MpiFunctions<H> functions_;
  const H byte_;
  void* const in_place_;
  const bool is_serialized_;
  std::mutex turn_;
};

template <class H>
Result<std::unique_ptr<MpiLibrary>> FindWith(const DynamicLibrary& library,
                                             const MpiHandles& handles) {
  MpiFunctions<H> functions;
  RABIT_RETURN_IF_ERROR(functions.FindIn(library));
  return std::unique_ptr<MpiLibrary>(std::make_unique<MpiLibraryOf<H>>(functions, handles));
}

}  // namespace

Result<std::unique_ptr<MpiLibrary>> MpiLibrary::Find(const MpiHandles& handles) {
  const std::string names[] = {handles.library};
  RABIT_ASSIGN_OR_RETURN(
      const DynamicLibrary library,
      DynamicLibrary::FindLoaded(names, "import mpi4py.MPI before the engine starts"));
  if (handles.width == 4) return FindWith<int32_t>(library, handles);
  return FindWith<void*>(library, handles);
}

}  // namespace rabit
