// The kinds whose ranks hold different parts of a tensor, by no rule.  They run one tensor at a
// time: messages with the same peer and tag arrive in order, so the tensors of a bucket may share
// its tag.
#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "engine/bucket_work.h"
#include "engine/fusion_buffer.h"

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

// Of the whole tensor; a rank without a request brings nothing.
ConstBytes InputOf(const BucketWork& work, const BucketItem& item) {
  return item.request() == nullptr ? ConstBytes() : work.memory.Slice(item, Side::kInput, 0);
}

// Where exchanges write a result of `bytes`: the output of the item, which is prepared, if it has
// one and they can; else scratch, whose content a rank without a request drops.
Result<Bytes> ResultOf(BucketWork& work, const BucketItem& item, size_t bytes) {
  if (item.request() != nullptr && work.memory.CanReachOutput(item)) {
    return work.memory.Slice(item, Side::kOutput, 0);
  }
  return work.memory.Scratch(FusionBuffer::kPacked, bytes);
}

// The same for a result of `rows` rows, which it prepares the output for.
Result<Bytes> ResultOfRows(BucketWork& work, const BucketItem& item, int64_t rows) {
  if (item.request() != nullptr) {
    RABIT_RETURN_IF_ERROR(item.request()->PrepareOutput(WithRows(ShapeOf(item), rows)));
  }
  return ResultOf(work, item, static_cast<size_t>(rows * RowBytes(item, work.bucket().dtype)));
}

// The result is in `from`, which ResultOf gave.
Status Deliver(BucketWork& work, const BucketItem& item, ConstBytes from) {
  if (item.request() == nullptr || work.memory.CanReachOutput(item)) return Status();
  return work.memory.HandOver(item, work.memory.Output(item), from);
}

Status RunBroadcast(BucketWork& work, const BucketItem& item) {
  const bool has_request = item.request() != nullptr;
  const size_t bytes = static_cast<size_t>(item.partition.count) * work.element_bytes();
  if (has_request) RABIT_RETURN_IF_ERROR(item.request()->PrepareOutput(ShapeOf(item)));
  RABIT_ASSIGN_OR_RETURN(const Bytes buffer, ResultOf(work, item, bytes));
  if (buffer.empty()) return Status();
  if (work.is_root() && has_request) {
    RABIT_RETURN_IF_ERROR(
        work.memory.Bring(item, work.memory.Input(item), buffer.data(), item.partition.count, 1.0));
  }
  const auto load = static_cast<int64_t>(bytes);
  RABIT_RETURN_IF_ERROR(
      work.exchange.Communicate(work.bucket(), {load}, load, [&](Backend& backend) {
        return backend.Broadcast(work.exchange.lane(), buffer,
                                 work.group().IndexOf(work.bucket().root));
      }));
  return Deliver(work, item, buffer);
}

Status RunAllgather(BucketWork& work, const BucketItem& item) {
  RABIT_RETURN_IF_ERROR(CheckExtents(item, work.group().ranks.size()));
  const std::vector<int64_t>& rows = item.tensor->ready->extents;
  const std::vector<int64_t> part_bytes = Times(rows, RowBytes(item, work.bucket().dtype));
  RABIT_ASSIGN_OR_RETURN(const Bytes all, ResultOfRows(work, item, Sum(rows)));
  const Load load{Sum(part_bytes), std::find(rows.begin(), rows.end(), 0) != rows.end()};
  if (load.bytes == 0) return Status();  // agreed, so no rank makes the exchange
  RABIT_RETURN_IF_ERROR(
      work.exchange.Communicate(work.bucket(), load, load.bytes, [&](Backend& backend) {
        return backend.Allgather(work.exchange.lane(), InputOf(work, item), all, part_bytes);
      }));
  return Deliver(work, item, all);
}

Status RunGather(BucketWork& work, const BucketItem& item) {
  RABIT_RETURN_IF_ERROR(CheckExtents(item, work.group().ranks.size()));
  const std::vector<int64_t>& rows = item.tensor->ready->extents;
  const std::vector<int64_t> part_bytes = Times(rows, RowBytes(item, work.bucket().dtype));
  const int64_t bytes = Sum(part_bytes);
  Bytes all;
  if (work.is_root() && item.request() != nullptr) {
    RABIT_ASSIGN_OR_RETURN(all, ResultOfRows(work, item, Sum(rows)));
  } else if (item.request() != nullptr) {
    RABIT_RETURN_IF_ERROR(item.request()->PrepareOutput(WithRows(ShapeOf(item), 0)));
  }
  if (bytes == 0) return Status();
  RABIT_RETURN_IF_ERROR(
      work.exchange.Communicate(work.bucket(), {bytes}, bytes, [&](Backend& backend) {
        return backend.Gather(work.exchange.lane(), InputOf(work, item), all, part_bytes,
                              work.group().IndexOf(work.bucket().root));
      }));
  return Deliver(work, item, all);
}

Status RunScatter(BucketWork& work, const BucketItem& item) {
  const size_t size = work.group().ranks.size();
  RABIT_RETURN_IF_ERROR(CheckExtents(item, size));
  const int root = work.group().IndexOf(work.bucket().root);
  const std::vector<int64_t>& rows = item.tensor->ready->extents;
  const std::vector<int64_t> part_bytes = Times(rows, RowBytes(item, work.bucket().dtype));
  // Rows are agreed for every rank, so one that has joined receives what is its own, and drops it.
  const auto my_index = static_cast<size_t>(work.group().my_index);
  RABIT_ASSIGN_OR_RETURN(const Bytes mine, ResultOfRows(work, item, rows[my_index]));
  const int64_t bytes = Sum(part_bytes);
  if (bytes == 0) return Status();
  const ConstBytes all = work.group().my_index == root ? InputOf(work, item) : ConstBytes();
  RABIT_RETURN_IF_ERROR(
      work.exchange.Communicate(work.bucket(), {bytes}, bytes, [&](Backend& backend) {
        return backend.Scatter(work.exchange.lane(), all, part_bytes, mine, root);
      }));
  return Deliver(work, item, mine);
}

// How many rows each rank has for this one, where they are not agreed.
Result<std::vector<int64_t>> ExchangeRows(BucketWork& work, const BucketItem& item,
                                          const std::vector<int64_t>& sent) {
  const size_t size = sent.size();
  std::vector<int64_t> received(size);
  const std::vector<int64_t> number_bytes(size, sizeof(int64_t));
  const auto bytes = static_cast<int64_t>(size * sizeof(int64_t));
  // The numbers lie in the memory of the host, wherever the tensors do.
  Work on_host = work.bucket();
  if (work.memory.place() != nullptr) {
    on_host.device_kind = DeviceKind::kCpu;
    on_host.backend = kAnyBackend;
  }
  RABIT_RETURN_IF_ERROR(work.exchange.Alltoall(
      on_host, {bytes}, std::as_bytes(std::span(sent)), number_bytes,
      std::as_writable_bytes(std::span(received)), number_bytes));
  // The sizes are needed at once, so this exchange cannot stay pending.
  RABIT_RETURN_IF_ERROR(work.exchange.Settle());
  // They come from other ranks: a sum that overflows would become a wrong allocation.
  const int64_t row_bytes = std::max<int64_t>(RowBytes(item, work.bucket().dtype), 1);
  int64_t left = std::numeric_limits<int64_t>::max() / row_bytes;
  for (size_t i = 0; i < size; ++i) {
    if (received[i] < 0 || received[i] > left) {
      return Internal("rank " + std::to_string(work.group().ranks[i]) + " has " +
                      std::to_string(received[i]) + " rows of " + std::to_string(row_bytes) +
                      " bytes for this rank, which cannot be; report this")
          .WithCulprit(work.group().ranks[i]);
    }
    left -= received[i];
  }
  return received;
}

Status RunAlltoall(BucketWork& work, const BucketItem& item) {
  const PendingRequest* const pending = item.request();
  const size_t size = work.group().ranks.size();
  const int64_t row_bytes = RowBytes(item, work.bucket().dtype);
  const bool is_even = item.tensor->ready->extents.empty();
  const int64_t even_rows = is_even ? ShapeOf(item)[0] / work.group().size() : 0;
  const std::vector<int64_t> sent =
      pending == nullptr ? std::vector<int64_t>(size) : pending->request.splits;
  std::vector<int64_t> received(size, even_rows);
  if (is_even) {
    for (const int joined : work.bucket().joined)
      received[static_cast<size_t>(work.group().IndexOf(joined))] = 0;
  } else {
    RABIT_ASSIGN_OR_RETURN(received, ExchangeRows(work, item, sent));
  }
  const std::vector<int64_t> send_bytes = Times(sent, row_bytes);
  const std::vector<int64_t> receive_bytes = Times(received, row_bytes);
  RABIT_ASSIGN_OR_RETURN(const Bytes out, ResultOfRows(work, item, Sum(received)));
  if (pending != nullptr) item.request()->SetReceivedSplits(received);
  // With splits a rank cannot know that nobody sends anything, so the exchange is made.
  const bool is_empty = is_even && even_rows * row_bytes == 0;
  if (is_empty) return Status();
  // How much the others exchange is known as a mean.
  const int64_t rows = is_even ? ShapeOf(item)[0] : item.tensor->ready->extents[0];
  RABIT_RETURN_IF_ERROR(work.exchange.Alltoall(work.bucket(), {rows * row_bytes},
                                               InputOf(work, item), send_bytes, out,
                                               receive_bytes));
  return Deliver(work, item, out);
}

// Only the two partners have a request; their own kinds tell who sends.
Status RunSendOrRecv(BucketWork& work, const BucketItem& item) {
  // A third rank of the group has the bucket as well, so that all count the same; it does nothing.
  if (item.request() == nullptr) return Status();
  const Signature& mine = item.request()->request.signature;
  const int peer = work.group().IndexOf(mine.root);
  if (mine.kind == Kind::kSend) {
    const ConstBytes input = InputOf(work, item);
    return work.exchange.Communicate(
        work.bucket(), work.job.load, static_cast<int64_t>(input.size()),
        [&](Backend& backend) { return backend.Send(work.exchange.lane(), input, peer); });
  }
  RABIT_RETURN_IF_ERROR(item.request()->PrepareOutput(ShapeOf(item)));
  const auto bytes = static_cast<size_t>(work.job.load.bytes);
  RABIT_ASSIGN_OR_RETURN(const Bytes output, ResultOf(work, item, bytes));
  RABIT_RETURN_IF_ERROR(work.exchange.Communicate(
      work.bucket(), work.job.load, static_cast<int64_t>(output.size()),
      [&](Backend& backend) { return backend.Recv(work.exchange.lane(), output, peer); }));
  return Deliver(work, item, output);
}

}  // namespace

Status RunEach(BucketWork& work) {
  for (const BucketItem& item : work.job.items) {
    RABIT_RETURN_IF_ERROR(work.exchange.Settle());  // tensors share the buffer
    Status status;
    switch (work.bucket().kind) {
      case Kind::kBroadcast:
        status = RunBroadcast(work, item);
        break;
      case Kind::kAllgather:
        status = RunAllgather(work, item);
        break;
      case Kind::kGather:
        status = RunGather(work, item);
        break;
      case Kind::kScatter:
        status = RunScatter(work, item);
        break;
      case Kind::kAlltoall:
        status = RunAlltoall(work, item);
        break;
      case Kind::kBarrier:
        status = work.exchange.Communicate(work.bucket(), {}, 0, [&](Backend& backend) {
          return backend.Barrier(work.exchange.lane());
        });
        break;
      case Kind::kSend:
      case Kind::kRecv:
        status = RunSendOrRecv(work, item);
        break;
      default:
        status = Internal("a bucket of kind " + std::string(Name(work.bucket().kind)));
    }
    RABIT_RETURN_IF_ERROR(status);
  }
  return Status();
}

}  // namespace rabit
