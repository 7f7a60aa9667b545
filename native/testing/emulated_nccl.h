// The emulated NCCL, opened as the real one would be, and a backend over it for memory of the host.
#pragma once

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/nccl/nccl_backend.h"
#include "backend/on_stream.h"
#include "base/device/pinned_pool.h"
#include "base/mutex.h"
#include "testing/emulated_driver.h"
#include "testing/emulated_nccl/emulated_nccl.h"

namespace rabit::testing {

// What the emulation offers to tests; one for the process.
struct NcclEmulation {
#define RABIT_EMULATED_MEMBER(name, ...) emulated_nccl::name##_type* name = nullptr;
  RABIT_EMULATED_NCCL_FUNCTIONS(RABIT_EMULATED_MEMBER)
#undef RABIT_EMULATED_MEMBER

  emulated_nccl::Counts counts() const {
    emulated_nccl::Counts counts;
    rabit_emulated_nccl_counts(&counts);
    return counts;
  }
};

inline const NcclEmulation& nccl_emulation() {
  static const NcclEmulation found = [] {
    (void)emulation();  // its streams carry the kernels
    const std::vector<std::string> names = {RABIT_TEST_NCCL};
    const Result<DynamicLibrary> library = DynamicLibrary::Open(names, "build rabit_test_nccl");
    RABIT_CHECK(library.ok(), library.status().message());
    NcclEmulation all;
#define RABIT_EMULATED_FIND(name, ...) \
  RABIT_CHECK(library->Find(#name, all.name).ok(), "the emulation has no " #name);
    RABIT_EMULATED_NCCL_FUNCTIONS(RABIT_EMULATED_FIND)
#undef RABIT_EMULATED_FIND
    return all;
  }();
  return found;
}

inline std::shared_ptr<const NcclLibrary> OpenEmulatedNccl() {
  (void)nccl_emulation();
  Result<std::shared_ptr<const NcclLibrary>> library = NcclLibrary::Load(RABIT_TEST_NCCL);
  RABIT_CHECK(library.ok(), library.status().message());
  return *library;
}

// Bytes of the host in the memory of a device.
class DeviceImage {
 public:
  DeviceImage(const DevicePlace& place, ConstBytes host)
      : place_(place), array_(place.device, host.size()) {
    std::vector<uint8_t> values(host.size());
    if (!host.empty()) std::memcpy(values.data(), host.data(), host.size());
    array_.Launch(std::move(values), place.stream);
  }

  Bytes bytes() const { return {static_cast<std::byte*>(array_.data()), array_.count()}; }
  TensorView As(const TensorView& view) const {
    return {array_.data(), view.count, view.dtype, {}};
  }
  void CopyBack(Bytes host) const {
    const std::vector<uint8_t> values = array_.Read(place_.stream);
    if (!host.empty()) std::memcpy(host.data(), values.data(), host.size());
  }

 private:
  const DevicePlace place_;
  const DeviceArray<uint8_t> array_;
};

// A backend that works on devices, for those who have memory of the host: copies there and back,
// and blocks.  Each lane has a device of its own, because lanes have no order.
class HostedBackend final : public Backend {
 public:
  static constexpr int kLanesMax = 8;

  HostedBackend(std::unique_ptr<Backend> inner, int rank)
      : inner_(std::move(inner)), driver_(OpenManyDevices()), first_device_(rank * kLanesMax) {}
  ~HostedBackend() override {
    streams_.clear();
    emulation().rabit_emulated_devices(2);
  }

  std::string_view name() const override { return inner_->name(); }
  Status AddGroup(const Group& group) override { return inner_->AddGroup(group); }
  void Abort(Status why) override { inner_->Abort(std::move(why)); }

  Operation Allreduce(const LaneContext& lane, const TensorView& in_out, ReduceOp op) override {
    return Run(lane, {Of(in_out)},
               [&](Context& at) { return inner_->Allreduce(at.lane, at[0].As(in_out), op); });
  }
  Operation Reduce(const LaneContext& lane, const TensorView& in_out, ReduceOp op,
                   int root) override {
    return Run(lane, {Of(in_out)},
               [&](Context& at) { return inner_->Reduce(at.lane, at[0].As(in_out), op, root); });
  }
  Operation Allgather(const LaneContext& lane, ConstBytes mine, Bytes all,
                      std::span<const int64_t> part_bytes) override {
    return Run(lane, {Writable(mine), all}, [&](Context& at) {
      return inner_->Allgather(at.lane, at[0].bytes(), at[1].bytes(), part_bytes);
    });
  }
  Operation ReduceScatter(const LaneContext& lane, const TensorView& in, const TensorView& out,
                          std::span<const int64_t> part_counts, ReduceOp op) override {
    const auto offset = static_cast<std::byte*>(out.data) - static_cast<std::byte*>(in.data);
    const bool is_within = offset >= 0 && offset < static_cast<std::ptrdiff_t>(in.bytes());
    return Run(lane, {Of(in), Of(out)}, [&](Context& at) {
      TensorView to = at[1].As(out);
      if (is_within) to.data = at[0].bytes().data() + offset;
      Operation operation = inner_->ReduceScatter(at.lane, at[0].As(in), to, part_counts, op);
      const Status status = operation.Wait(lane.deadline);
      if (!status.ok() || !is_within) return status;
      return driver_->CopyWithin(at.place.device, at.place.stream, at[1].bytes().data(), to.data,
                                 out.bytes());
    });
  }
  Operation Broadcast(const LaneContext& lane, Bytes buffer, int root) override {
    return Run(lane, {buffer},
               [&](Context& at) { return inner_->Broadcast(at.lane, at[0].bytes(), root); });
  }
  Operation Alltoall(const LaneContext& lane, ConstBytes in, std::span<const int64_t> send_bytes,
                     Bytes out, std::span<const int64_t> receive_bytes) override {
    return Run(lane, {Writable(in), out}, [&](Context& at) {
      return inner_->Alltoall(at.lane, at[0].bytes(), send_bytes, at[1].bytes(), receive_bytes);
    });
  }
  Operation Gather(const LaneContext& lane, ConstBytes mine, Bytes all,
                   std::span<const int64_t> part_bytes, int root) override {
    return Run(lane, {Writable(mine), all}, [&](Context& at) {
      return inner_->Gather(at.lane, at[0].bytes(), at[1].bytes(), part_bytes, root);
    });
  }
  Operation Scatter(const LaneContext& lane, ConstBytes all, std::span<const int64_t> part_bytes,
                    Bytes mine, int root) override {
    return Run(lane, {Writable(all), mine}, [&](Context& at) {
      return inner_->Scatter(at.lane, at[0].bytes(), part_bytes, at[1].bytes(), root);
    });
  }
  // On a device there is none: a sum of nothing holds back as well.
  Operation Barrier(const LaneContext& lane) override {
    int32_t nothing = 0;
    return Allreduce(lane, {&nothing, 1, DType::kInt32, {}}, ReduceOp::kSum);
  }
  Operation Send(const LaneContext& lane, ConstBytes buffer, int peer) override {
    return Run(lane, {Writable(buffer)},
               [&](Context& at) { return inner_->Send(at.lane, at[0].bytes(), peer); });
  }
  Operation Recv(const LaneContext& lane, Bytes buffer, int peer) override {
    return Run(lane, {buffer},
               [&](Context& at) { return inner_->Recv(at.lane, at[0].bytes(), peer); });
  }

 private:
  struct Context {
    LaneContext lane;
    DevicePlace place;
    std::vector<std::unique_ptr<DeviceImage>> images;
    const DeviceImage& operator[](size_t i) const { return *images[i]; }
  };

  static std::shared_ptr<DeviceDriver> OpenManyDevices() {
    emulation().rabit_emulated_devices(8 * kLanesMax);
    return OpenEmulatedDriver();
  }
  static Bytes Writable(ConstBytes bytes) {
    return {const_cast<std::byte*>(bytes.data()), bytes.size()};
  }
  static Bytes Of(const TensorView& view) {
    return {static_cast<std::byte*>(view.data), view.bytes()};
  }

  DevicePlace PlaceOf(int lane) {
    MutexLock lock(mutex_);
    DeviceStream& stream = streams_[lane];
    const int device = first_device_ + lane;
    if (!stream) stream = MakeStream(driver_, device).value();
    return {driver_, device, stream.get(), 1.0, pinned_};
  }

  template <class Start>
  Status Run(const LaneContext& lane, const std::vector<Bytes>& host, Start start) {
    Context at{lane, PlaceOf(lane.lane), {}};
    at.lane.place = &at.place;
    for (const Bytes& bytes : host) {
      at.images.push_back(std::make_unique<DeviceImage>(at.place, bytes));
    }
    Operation operation = start(at);
    const Status begun = operation.Wait(lane.deadline);
    RABIT_ASSIGN_OR_RETURN(const DeviceEvent event, MakeEvent(driver_, at.place.device));
    RABIT_RETURN_IF_ERROR(driver_->Record(at.place.device, event.get(), at.place.stream));
    const Status status =
        begun.ok() ? WaitOnStream(*inner_, lane.group, at.place, event.get(), lane.deadline)
                   : begun;
    if (status.code() == Code::kTimedOut) nccl_emulation().rabit_emulated_nccl_show();
    if (!status.ok()) {
      (void)WaitOver(*driver_, at.place.device, event.get(), After(std::chrono::seconds(30)));
      return status;
    }
    for (size_t i = 0; i < host.size(); ++i) at.images[i]->CopyBack(host[i]);
    return Status();
  }

  const std::unique_ptr<Backend> inner_;
  const std::shared_ptr<DeviceDriver> driver_;
  const std::shared_ptr<PinnedPool> pinned_ = std::make_shared<PinnedPool>(size_t{1} << 26);
  const int first_device_;
  Mutex mutex_;
  std::map<int, DeviceStream> streams_ RABIT_GUARDED_BY(mutex_);
};

}  // namespace rabit::testing
