// run_ranks: n ranks as threads of one process.
#pragma once

#include <functional>
#include <thread>
#include <vector>

namespace rabit::testing {

// Calls body(rank) on `size` threads and waits for all of them.  Failures are reported by EXPECT_*
// inside the body; a body that would hang must pass deadlines to what it waits for.
inline void RunRanks(int size, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(size));
  for (int rank = 0; rank < size; ++rank) threads.emplace_back([&body, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace rabit::testing
