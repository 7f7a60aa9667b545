// The kinds whose ranks hold different parts of a tensor, by no rule.  They run one tensor at a
// time: messages with the same peer and tag arrive in order, so the tensors of a bucket may share
// its tag.
#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "engine/bucket_run.h"

namespace rabit {
namespace {

const std::vector<int64_t>& ShapeOf(const BucketItem& item) {
  return item.tensor->ready->signature.shape;
}

// Bytes of one row: everything but extent 0.
int64_t RowBytes(const BucketItem& item, DType dtype) {
  const std::vector<int64_t>& shape = ShapeOf(item);
  int64_t bytes = static_cast<int64_t>(SizeOf(dtype));
  for (size_t i = 1; i < shape.size(); ++i) bytes *= shape[i];
  return bytes;
}

int64_t Sum(std::span<const int64_t> values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

std::vector<int64_t> Times(std::span<const int64_t> values, int64_t factor) {
  std::vector<int64_t> products(values.begin(), values.end());
  for (int64_t& product : products) product *= factor;
  return products;
}

std::vector<int64_t> WithRows(std::vector<int64_t> shape, int64_t rows) {
  if (shape.empty()) shape.push_back(rows);
  shape[0] = rows;
  return shape;
}

Status CheckExtents(const BucketItem& item, size_t expected) {
  const size_t extents = item.tensor->ready->extents.size();
  if (extents == expected) return Status();
  return Internal("the agreement has " + std::to_string(extents) + " extents where " +
                  std::to_string(expected) + " belong; report this");
}

}  // namespace

Bytes BucketRun::OutputBytes(const BucketItem& item) const {
  const TensorView& view = item.request()->output().view;
  const bool is_image = is_staged_ && view.device.kind != DeviceKind::kCpu;
  if (is_image) return {staged_.OutputOf(item, job_), view.bytes()};
  return {static_cast<std::byte*>(view.data), view.bytes()};
}

ConstBytes BucketRun::InputBytes(const BucketItem& item) const {
  if (item.request() == nullptr) return {};
  const TensorView& view = item.request()->request.input;
  if (is_staged_) return {staged_.InputOf(item, job_), view.bytes()};
  return {static_cast<const std::byte*>(view.data), view.bytes()};
}

Status BucketRun::RunEach() {
  for (const BucketItem& item : job_.items) {
    RABIT_RETURN_IF_ERROR(Settle());  // tensors share the buffer
    Status status;
    switch (bucket_.kind) {
      case Kind::kBroadcast:
        status = RunBroadcast(item);
        break;
      case Kind::kAllgather:
        status = RunAllgather(item);
        break;
      case Kind::kGather:
        status = RunGather(item);
        break;
      case Kind::kScatter:
        status = RunScatter(item);
        break;
      case Kind::kAlltoall:
        status = RunAlltoall(item);
        break;
      case Kind::kBarrier:
        status =
            Communicate(bucket_, {}, 0, [&](Backend& backend) { return backend.Barrier(lane_); });
        break;
      case Kind::kSend:
      case Kind::kRecv:
        status = RunSendOrRecv(item);
        break;
      default:
        status = Internal("a bucket of kind " + std::string(Name(bucket_.kind)));
    }
    RABIT_RETURN_IF_ERROR(status);
  }
  return Status();
}

Status BucketRun::RunBroadcast(const BucketItem& item) {
  const size_t part_bytes = static_cast<size_t>(item.partition.count) * SizeOf(bucket_.dtype);
  Bytes buffer;
  std::byte* output = nullptr;
  if (item.request() != nullptr) {
    RABIT_ASSIGN_OR_RETURN(output, OutputOf(item));
    buffer = {output, part_bytes};
  }
  if (item.request() == nullptr || !CanReachOutput(item)) {
    RABIT_ASSIGN_OR_RETURN(buffer, Packed(part_bytes));
  }
  if (buffer.empty()) return Status();
  const bool is_root = bucket_.root == services_.rank && item.request() != nullptr;
  if (is_root) RABIT_RETURN_IF_ERROR(Carry(buffer.data(), InputOf(item), part_bytes));
  const auto bytes = static_cast<int64_t>(buffer.size());
  RABIT_RETURN_IF_ERROR(Communicate(bucket_, {bytes}, bytes, [&](Backend& backend) {
    return backend.Broadcast(lane_, buffer, group_.IndexOf(bucket_.root));
  }));
  if (output == nullptr || output == buffer.data()) return Status();
  return HandOver(item, output, buffer.data(), part_bytes);
}

Status BucketRun::RunAllgather(const BucketItem& item) {
  RABIT_RETURN_IF_ERROR(CheckExtents(item, group_.ranks.size()));
  const std::vector<int64_t>& rows = item.tensor->ready->extents;
  const std::vector<int64_t> part_bytes = Times(rows, RowBytes(item, bucket_.dtype));
  const auto bytes = static_cast<size_t>(Sum(part_bytes));
  Bytes all;
  if (item.request() != nullptr) {
    RABIT_RETURN_IF_ERROR(item.request()->PrepareOutput(WithRows(ShapeOf(item), Sum(rows))));
    RABIT_ASSIGN_OR_RETURN(all, ResultBytes(item));
  } else {
    RABIT_ASSIGN_OR_RETURN(all, Packed(bytes));
  }
  if (bytes == 0) return Status();
  const Load load{static_cast<int64_t>(bytes),
                  std::find(rows.begin(), rows.end(), 0) != rows.end()};
  RABIT_RETURN_IF_ERROR(Communicate(bucket_, load, load.bytes, [&](Backend& backend) {
    return backend.Allgather(lane_, InputBytes(item), all, part_bytes);
  }));
  return Deliver(item, all);
}

Status BucketRun::RunGather(const BucketItem& item) {
  RABIT_RETURN_IF_ERROR(CheckExtents(item, group_.ranks.size()));
  const std::vector<int64_t>& rows = item.tensor->ready->extents;
  const std::vector<int64_t> part_bytes = Times(rows, RowBytes(item, bucket_.dtype));
  const int64_t bytes = Sum(part_bytes);
  Bytes all;
  if (bucket_.root == services_.rank && item.request() != nullptr) {
    RABIT_RETURN_IF_ERROR(item.request()->PrepareOutput(WithRows(ShapeOf(item), Sum(rows))));
    RABIT_ASSIGN_OR_RETURN(all, ResultBytes(item));
  } else if (item.request() != nullptr) {
    RABIT_RETURN_IF_ERROR(item.request()->PrepareOutput(WithRows(ShapeOf(item), 0)));
  }
  if (bytes == 0) return Status();
  RABIT_RETURN_IF_ERROR(Communicate(bucket_, {bytes}, bytes, [&](Backend& backend) {
    return backend.Gather(lane_, InputBytes(item), all, part_bytes, group_.IndexOf(bucket_.root));
  }));
  return Deliver(item, all);
}

Status BucketRun::RunScatter(const BucketItem& item) {
  const size_t size = group_.ranks.size();
  RABIT_RETURN_IF_ERROR(CheckExtents(item, size));
  const int root = group_.IndexOf(bucket_.root);
  const std::vector<int64_t>& rows = item.tensor->ready->extents;
  const std::vector<int64_t> part_bytes = Times(rows, RowBytes(item, bucket_.dtype));
  const auto my_index = static_cast<size_t>(group_.my_index);
  Bytes mine;
  if (item.request() != nullptr) {
    RABIT_RETURN_IF_ERROR(item.request()->PrepareOutput(WithRows(ShapeOf(item), rows[my_index])));
    RABIT_ASSIGN_OR_RETURN(mine, ResultBytes(item));
  } else {
    RABIT_ASSIGN_OR_RETURN(mine, Packed(static_cast<size_t>(part_bytes[my_index])));
  }
  const int64_t bytes = Sum(part_bytes);
  if (bytes == 0) return Status();
  const ConstBytes all = group_.my_index == root ? InputBytes(item) : ConstBytes();
  RABIT_RETURN_IF_ERROR(Communicate(bucket_, {bytes}, bytes, [&](Backend& backend) {
    return backend.Scatter(lane_, all, part_bytes, mine, root);
  }));
  return Deliver(item, mine);
}

Status BucketRun::RunAlltoall(const BucketItem& item) {
  const PendingRequest* const pending = item.request();
  const size_t size = group_.ranks.size();
  const int64_t row_bytes = RowBytes(item, bucket_.dtype);
  const bool is_even = item.tensor->ready->extents.empty();
  const int64_t even_rows = is_even ? ShapeOf(item)[0] / group_.size() : 0;
  const std::vector<int64_t> sent =
      pending == nullptr ? std::vector<int64_t>(size) : pending->request.splits;
  std::vector<int64_t> received(size, even_rows);
  if (is_even) {
    for (const int joined : bucket_.joined)
      received[static_cast<size_t>(group_.IndexOf(joined))] = 0;
  } else {
    RABIT_ASSIGN_OR_RETURN(received, ExchangeRows(item, sent));
  }
  const std::vector<int64_t> send_bytes = Times(sent, row_bytes);
  const std::vector<int64_t> receive_bytes = Times(received, row_bytes);
  Bytes out;
  if (pending != nullptr) {
    RABIT_RETURN_IF_ERROR(item.request()->PrepareOutput(WithRows(ShapeOf(item), Sum(received))));
    item.request()->SetReceivedSplits(received);
    RABIT_ASSIGN_OR_RETURN(out, ResultBytes(item));
  } else {
    RABIT_ASSIGN_OR_RETURN(out, Packed(static_cast<size_t>(Sum(receive_bytes))));
  }
  const bool is_empty = is_even && even_rows * row_bytes == 0;
  if (is_empty) return Status();
  // How much the others exchange is known as a mean.
  const int64_t rows = is_even ? ShapeOf(item)[0] : item.tensor->ready->extents[0];
  RABIT_RETURN_IF_ERROR(
      Communicate(bucket_, {rows * row_bytes}, Sum(send_bytes), [&](Backend& backend) {
        return backend.Alltoall(lane_, InputBytes(item), send_bytes, out, receive_bytes);
      }));
  return Deliver(item, out);
}

// How many rows each rank has for this one, where they are not agreed.
Result<std::vector<int64_t>> BucketRun::ExchangeRows(const BucketItem& item,
                                                     const std::vector<int64_t>& sent) {
  const size_t size = sent.size();
  std::vector<int64_t> received(size);
  const std::vector<int64_t> number_bytes(size, sizeof(int64_t));
  const auto bytes = static_cast<int64_t>(size * sizeof(int64_t));
  Work on_host;
  const Work* work = &bucket_;
  if (is_on_device_) {  // the numbers are not, and nobody but the device's backend works there
    on_host = bucket_;
    on_host.device_kind = DeviceKind::kCpu;
    on_host.backend = kAnyBackend;
    work = &on_host;
  }
  RABIT_RETURN_IF_ERROR(Communicate(*work, {bytes}, bytes, [&](Backend& backend) {
    return backend.Alltoall(lane_, std::as_bytes(std::span(sent)), number_bytes,
                            std::as_writable_bytes(std::span(received)), number_bytes);
  }));
  RABIT_RETURN_IF_ERROR(Settle());
  const int64_t row_bytes = std::max<int64_t>(RowBytes(item, bucket_.dtype), 1);
  int64_t left = std::numeric_limits<int64_t>::max() / row_bytes;
  for (size_t i = 0; i < size; ++i) {
    if (received[i] < 0 || received[i] > left) {
      return Internal("rank " + std::to_string(group_.ranks[i]) + " has " +
                      std::to_string(received[i]) + " rows of " + std::to_string(row_bytes) +
                      " bytes for this rank, which cannot be; report this")
          .WithCulprit(group_.ranks[i]);
    }
    left -= received[i];
  }
  return received;
}

// Only the two partners have a request; their own kinds tell who sends.
Status BucketRun::RunSendOrRecv(const BucketItem& item) {
  if (item.request() == nullptr) return Status();
  const Signature& mine = item.request()->request.signature;
  const int peer = group_.IndexOf(mine.root);
  if (mine.kind == Kind::kSend) {
    const ConstBytes input = InputBytes(item);
    return Communicate(bucket_, job_.load, static_cast<int64_t>(input.size()),
                       [&](Backend& backend) { return backend.Send(lane_, input, peer); });
  }
  RABIT_RETURN_IF_ERROR(item.request()->PrepareOutput(ShapeOf(item)));
  RABIT_ASSIGN_OR_RETURN(const Bytes output, ResultBytes(item));
  RABIT_RETURN_IF_ERROR(
      Communicate(bucket_, job_.load, static_cast<int64_t>(output.size()),
                  [&](Backend& backend) { return backend.Recv(lane_, output, peer); }));
  return Deliver(item, output);
}

}  // namespace rabit
