// LocalExchange: ranks that are threads of one process, for tests of codecs.
#pragma once

#include <array>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "arithmetic/reduce.h"
#include "codec/exchange.h"
#include "testing/meeting.h"

namespace rabit::testing {

// What the ranks lend each other between two meetings.
class LocalHub {
 public:
  explicit LocalHub(int size) : size_(size), lent_(static_cast<size_t>(size)), meeting_(size) {}

  int size() const { return size_; }
  // Calls `take` with what every rank has lent.  Nobody returns before all have taken.
  void Trade(int rank, ConstBytes mine,
             const std::function<void(std::span<const ConstBytes>)>& take) {
    lent_[static_cast<size_t>(rank)] = mine;
    meeting_.Await();
    take(lent_);
    meeting_.Await();
  }

 private:
  const int size_;
  std::vector<ConstBytes> lent_;
  Meeting meeting_;
};

class LocalExchange final : public Exchange {
 public:
  LocalExchange(LocalHub& hub, int rank) : hub_(hub), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return hub_.size(); }

  Status Allreduce(const TensorView& in_out) override {
    const auto* const data = static_cast<const std::byte*>(in_out.data);
    const std::vector<std::byte> mine(data, data + in_out.bytes());
    hub_.Trade(rank_, mine, [&](std::span<const ConstBytes> all) {
      std::vector<const std::byte*> inputs;
      for (const ConstBytes each : all) inputs.push_back(each.data());
      rabit::Reduce(ReduceOp::kSum, in_out.dtype, inputs, static_cast<std::byte*>(in_out.data),
                    in_out.count);
    });
    return {};
  }

  Status Allgather(ConstBytes mine, Bytes all, std::span<const int64_t> part_bytes) override {
    const std::vector<std::byte> own(mine.begin(), mine.end());  // `mine` may lie inside `all`
    bool fits = true;
    hub_.Trade(rank_, own, [&](std::span<const ConstBytes> lent) {
      size_t at = 0;
      for (size_t i = 0; i < lent.size(); ++i) {
        fits = fits && lent[i].size() == static_cast<size_t>(part_bytes[i]);
        if (fits && !lent[i].empty()) std::memcpy(&all[at], lent[i].data(), lent[i].size());
        at += lent[i].size();
      }
    });
    return fits ? Status() : Internal("a part has another size than was said");
  }

  Status Alltoall(ConstBytes in, std::span<const int64_t> send_bytes, Bytes out,
                  std::span<const int64_t> receive_bytes) override {
    std::vector<std::byte> message(send_bytes.size() * sizeof(int64_t));
    std::memcpy(message.data(), send_bytes.data(), message.size());
    message.insert(message.end(), in.begin(), in.end());
    bool fits = true;
    hub_.Trade(rank_, message, [&](std::span<const ConstBytes> lent) {
      std::byte* to = out.data();
      for (size_t i = 0; i < lent.size(); ++i) {
        std::vector<int64_t> sizes(lent.size());
        std::memcpy(sizes.data(), lent[i].data(), sizes.size() * sizeof(int64_t));
        size_t at = sizes.size() * sizeof(int64_t);
        for (int before = 0; before < rank_; ++before)
          at += static_cast<size_t>(sizes[static_cast<size_t>(before)]);
        const auto bytes = static_cast<size_t>(receive_bytes[i]);
        fits = fits && sizes[static_cast<size_t>(rank_)] == receive_bytes[i];
        if (fits && bytes > 0) std::memcpy(to, lent[i].data() + at, bytes);
        to += bytes;
      }
    });
    return fits ? Status() : Internal("a part has another size than was said");
  }

  Result<Bytes> Scratch(size_t slot, size_t bytes) override {
    scratch_[slot].assign(bytes, std::byte{0x5a});
    return Bytes(scratch_[slot]);
  }

 private:
  LocalHub& hub_;
  const int rank_;
  std::array<std::vector<std::byte>, kScratchSlots> scratch_;
};

// Calls `body` on one thread for each rank.
inline void RunExchange(int size, const std::function<void(Exchange&)>& body) {
  LocalHub hub(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      LocalExchange exchange(hub, rank);
      body(exchange);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace rabit::testing
