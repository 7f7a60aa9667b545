// The floor of an allreduce over loopback TCP: processes with one thread and one plain socket for
// each partner, no protocol.  What any implementation on ordinary sockets can hope for.
// Usage: bench_tcp_floor [size in MiB 16] [rounds 61] [ranks 2, a power of two]
//        bench_tcp_floor small [rounds 2001] [ranks 2]    1 KiB to 1 MiB; waits sleep, or spin
//        bench_tcp_floor zerocopy [MiB 1024]    one way, plain sends and MSG_ZEROCOPY
//
// Recursive halving and doubling in blocks of 2 MiB: ranks send half of what they hold and add what
// arrives to the other half, then give the sums back.  Columns: congestion control (the host's, and
// Reno), bytes per system call, with or without a CRC-32C on both sides.
// clang-format off: errqueue.h uses timespec and does not include it.
#include <time.h>
#include <linux/errqueue.h>
// clang-format on
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "arithmetic/reduce.h"
#include "base/crc32c.h"
#include "base/socket.h"

namespace rabit {
namespace {

constexpr size_t kBlockBytes = 2 << 20;
constexpr std::chrono::seconds kPatience{10};

void Require(bool is_true, const char* what) {
  if (is_true) return;
  std::fprintf(stderr, "bench_tcp_floor: %s: %s\n", what, ErrnoText(errno).c_str());
  std::exit(1);
}

struct Manner {
  const char* congestion_control;  // "": the host's
  size_t piece_bytes;
  bool has_crc;
  bool spins = false;  // looks for data again and again instead of sleeping in poll()
};

class Rank {
 public:
  // `fds`: of the partners by step, the nearest first.
  Rank(int rank, const std::vector<int>& fds, const Manner& manner, size_t bytes)
      : rank_(rank), fds_(fds), manner_(manner), buffer_(bytes), scratch_(manner.piece_bytes) {
    for (const int fd : fds) Tune(fd);
  }

  void Allreduce() {
    for (size_t at = 0; at < buffer_.size(); at += kBlockBytes) {
      Block(Bytes(buffer_).subspan(at, std::min(kBlockBytes, buffer_.size() - at)));
    }
  }

 private:
  void Tune(int fd) {
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    const std::string control = manner_.congestion_control;
    if (!control.empty()) {
      Require(::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, control.data(),
                           static_cast<socklen_t>(control.size())) == 0,
              "TCP_CONGESTION");
    }
  }

  void Block(Bytes held) {
    struct Step {
      int fd;
      Bytes kept, given;
    };
    std::vector<Step> steps;
    for (size_t i = fds_.size(); i-- > 0;) {
      const Bytes low = held.first(held.size() / 2), high = held.subspan(held.size() / 2);
      const bool keeps_low = (rank_ >> i & 1) == 0;
      steps.push_back({fds_[i], keeps_low ? low : high, keeps_low ? high : low});
      Exchange(fds_[i], steps.back().given, steps.back().kept, true);
      held = steps.back().kept;
    }
    for (size_t i = steps.size(); i-- > 0;) {
      Exchange(steps[i].fd, steps[i].kept, steps[i].given, false);
    }
  }

  void Exchange(int fd, ConstBytes out, Bytes in, bool is_reduced) {
    size_t sent = 0, received = 0;
    while (sent < out.size() || received < in.size()) {
      const ssize_t took = sent < out.size() ? SendSome(fd, out.subspan(sent)) : 0;
      const ssize_t got =
          received < in.size() ? ReceiveSome(fd, in.subspan(received), is_reduced) : 0;
      sent += static_cast<size_t>(std::max<ssize_t>(took, 0));
      received += static_cast<size_t>(std::max<ssize_t>(got, 0));
      if (took > 0 || got > 0) continue;
      if (manner_.spins) {
        std::this_thread::yield();
        continue;
      }
      pollfd entry{fd, 0, 0};
      if (received < in.size()) entry.events |= POLLIN;
      if (sent < out.size()) entry.events |= POLLOUT;
      ::poll(&entry, 1, -1);
    }
  }

  ssize_t SendSome(int fd, ConstBytes out) {
    const ConstBytes piece = out.first(std::min(out.size(), manner_.piece_bytes));
    if (manner_.has_crc) sum_ += Crc32c(piece);
    return ::send(fd, piece.data(), piece.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }

  // A sum needs whole elements: the few bytes of an odd end are simply left out of it.
  ssize_t ReceiveSome(int fd, Bytes in, bool is_reduced) {
    const size_t most = std::min(in.size(), manner_.piece_bytes);
    std::byte* const into = is_reduced ? scratch_.data() : in.data();
    const ssize_t got = ::recv(fd, into, most, MSG_DONTWAIT);
    Require(got != 0, "the other rank has gone");
    if (got < 0) return got;
    const auto bytes = static_cast<size_t>(got);
    if (manner_.has_crc) sum_ += Crc32c({into, bytes});
    if (is_reduced) {
      const std::array<const std::byte*, 2> inputs{in.data(), into};
      Reduce(ReduceOp::kMax, DType::kFloat32, inputs, in.data(), static_cast<int64_t>(bytes / 4));
    }
    return got;
  }

  const int rank_;
  const std::vector<int> fds_;
  const Manner manner_;
  std::vector<std::byte> buffer_;
  std::vector<std::byte> scratch_;
  uint32_t sum_ = 0;
};

// Both ends of a connection over loopback.
std::array<UniqueFd, 2> Connected() {
  Result<std::vector<SocketAddress>> any = Resolve("127.0.0.1:0");
  Require(any.ok(), "resolve");
  Result<UniqueFd> listener = Listen(any->front(), 1);
  Require(listener.ok(), "listen");
  const Result<SocketAddress> address = LocalAddress(listener->get());
  Require(address.ok(), "getsockname");
  Result<UniqueFd> dialled = Connect(*address, After(kPatience));
  Require(dialled.ok(), "connect");
  Require(WaitReadable(listener->get(), After(kPatience)).ok(), "accept");
  const int accepted = ::accept4(listener->get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  return {std::move(*dialled), UniqueFd(accepted)};
}

double MedianUs(const Manner& manner, int ranks, size_t bytes, int rounds) {
  const auto size = static_cast<size_t>(ranks);
  std::vector<std::vector<UniqueFd>> ends(size);  // by rank and step
  for (size_t distance = 1; distance < size; distance *= 2) {
    for (size_t rank = 0; rank < size; ++rank) {
      if ((rank & distance) != 0) continue;
      auto [here, there] = Connected();
      ends[rank].push_back(std::move(here));
      ends[rank ^ distance].push_back(std::move(there));
    }
  }
  std::vector<pid_t> children;
  std::vector<double> micros;
  for (size_t i = size; i-- > 0;) {
    const pid_t child = i == 0 ? 0 : ::fork();
    Require(child >= 0, "fork");
    if (child > 0) {
      children.push_back(child);
      continue;
    }
    std::vector<int> fds;
    for (const UniqueFd& fd : ends[i]) fds.push_back(fd.get());
    Rank rank(static_cast<int>(i), fds, manner, bytes);
    for (int k = 0; k < rounds; ++k) {
      const auto start = std::chrono::steady_clock::now();
      rank.Allreduce();
      const auto taken = std::chrono::steady_clock::now() - start;
      micros.push_back(std::chrono::duration<double, std::micro>(taken).count());
    }
    if (i > 0) ::_exit(0);
  }
  for (const pid_t child : children) ::waitpid(child, nullptr, 0);
  std::sort(micros.begin(), micros.end());
  return micros[micros.size() / 2];
}

void Main(size_t bytes, int rounds, int ranks) {
  std::printf("# %d ranks, %zu MiB, medians of %d\n", ranks, bytes >> 20, rounds);
  for (const char* control : {"", "reno"}) {
    for (const size_t piece : {size_t{64} << 10, size_t{256} << 10, size_t{1} << 20}) {
      for (const bool has_crc : {false, true}) {
        const double ms = MedianUs({control, piece, has_crc}, ranks, bytes, rounds) / 1000;
        std::printf("%-10s %5zu KiB a call  %-7s %8.2f ms\n", *control ? control : "default",
                    piece >> 10, has_crc ? "CRC-32C" : "no sum", ms);
        std::fflush(stdout);
      }
    }
  }
}

// What the kernel says of zero-copy sends, which it numbers from 0.
struct Notes {
  size_t done = 0, copied = 0;

  // Takes what is there.
  void Take(int fd) {
    char control[128];
    msghdr message{};
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    while (::recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) >= 0) {
      for (cmsghdr* each = CMSG_FIRSTHDR(&message); each; each = CMSG_NXTHDR(&message, each)) {
        const auto& note = *reinterpret_cast<const sock_extended_err*>(CMSG_DATA(each));
        if (note.ee_origin != SO_EE_ORIGIN_ZEROCOPY) continue;
        const size_t sends = note.ee_data - note.ee_info + 1;
        done += sends;
        if ((note.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) != 0) copied += sends;
      }
      message.msg_controllen = sizeof control;
    }
  }
};

void OneWay(size_t bytes, size_t piece, bool is_zero_copy) {
  auto [here, there] = Connected();
  std::vector<std::byte> buffer(8 << 20, std::byte{1});
  const pid_t child = ::fork();
  Require(child >= 0, "fork");
  if (child == 0) {
    for (size_t got = 0; got < bytes;) {
      const ssize_t more = ::recv(there.get(), buffer.data(), size_t{256} << 10, 0);
      Require(more != 0, "the sender has gone");
      if (more < 0) Require(WaitReadable(there.get(), After(kPatience)).ok(), "recv");
      got += static_cast<size_t>(std::max<ssize_t>(more, 0));
    }
    ::_exit(0);
  }
  const int on = 1;
  Require(::setsockopt(here.get(), IPPROTO_TCP, TCP_CONGESTION, "reno", 4) == 0, "TCP_CONGESTION");
  Require(!is_zero_copy || ::setsockopt(here.get(), SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) == 0,
          "SO_ZEROCOPY");
  const auto start = std::chrono::steady_clock::now();
  Notes notes;
  size_t sends = 0;
  for (size_t sent = 0; sent < bytes;) {
    const size_t at = sent % buffer.size();
    const ssize_t took =
        ::send(here.get(), buffer.data() + at, std::min({piece, bytes - sent, buffer.size() - at}),
               MSG_DONTWAIT | MSG_NOSIGNAL | (is_zero_copy ? MSG_ZEROCOPY : 0));
    if (took > 0) {
      sent += static_cast<size_t>(took);
      sends += 1;
    } else {
      pollfd entry{here.get(), POLLOUT, 0};  // notes end this wait as well
      ::poll(&entry, 1, 1000);
    }
    if (is_zero_copy && (took < 0 || sends % 8 == 0)) notes.Take(here.get());
  }
  ::waitpid(child, nullptr, 0);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  if (is_zero_copy) notes.Take(here.get());
  std::printf("%5zu KiB a call  %-9s %6.2f GB/s", piece >> 10, is_zero_copy ? "zero-copy" : "plain",
              static_cast<double>(bytes) / 1e9 / taken.count());
  if (is_zero_copy) std::printf(", %zu of %zu sends copied all the same", notes.copied, sends);
  std::printf("\n");
  std::fflush(stdout);
}

void MainZeroCopy(size_t bytes) {
  for (const size_t piece : {size_t{64} << 10, size_t{256} << 10, size_t{1} << 20}) {
    for (const bool is_zero_copy : {false, true, false, true}) OneWay(bytes, piece, is_zero_copy);
  }
}

void MainSmall(int rounds, int ranks) {
  std::printf("# %d ranks, Reno, no sum, medians of %d\n", ranks, rounds);
  for (size_t bytes = 1 << 10; bytes <= 1 << 20; bytes *= 4) {
    std::printf("%5zu KiB", bytes >> 10);
    for (const bool spins : {false, true}) {
      const double us = MedianUs({"reno", size_t{256} << 10, false, spins}, ranks, bytes, rounds);
      std::printf("   %s %8.1f us", spins ? "spins" : "sleeps", us);
      std::fflush(stdout);
    }
    std::printf("\n");
  }
}

}  // namespace
}  // namespace rabit

int main(int argc, char** argv) {
  const auto argument = [&](int i, long otherwise, long most) {
    return std::clamp(argc > i ? std::strtol(argv[i], nullptr, 10) : otherwise, 1L, most);
  };
  int ranks = 2;
  while (2 * ranks <= argument(3, 2, 64)) ranks *= 2;
  if (argc > 1 && std::string(argv[1]) == "zerocopy") {
    rabit::MainZeroCopy(static_cast<size_t>(argument(2, 1024, 65536)) << 20);
    return 0;
  }
  if (argc > 1 && std::string(argv[1]) == "small") {
    rabit::MainSmall(static_cast<int>(argument(2, 2001, 100000)), ranks);
    return 0;
  }
  rabit::Main(static_cast<size_t>(argument(1, 16, 1024)) << 20,
              static_cast<int>(argument(2, 61, 10000)), ranks);
  return 0;
}
