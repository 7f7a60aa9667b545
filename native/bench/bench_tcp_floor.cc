// The floor of an allreduce over loopback TCP: two processes, one socket, one thread each, no
// protocol.  What any implementation on ordinary sockets can hope for.
// Usage: bench_tcp_floor [size in MiB 16] [rounds 61]
//
// Each rank sends half of its buffer and adds what arrives to the other half, then sends the sum
// and receives the other one.  Columns: congestion control (the host's, and Reno), bytes per system
// call, with or without a CRC-32C on both sides.
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
#include <vector>

#include "arithmetic/reduce.h"
#include "base/crc32c.h"
#include "base/socket.h"

namespace rabit {
namespace {

void Require(bool is_true, const char* what) {
  if (is_true) return;
  std::fprintf(stderr, "bench_tcp_floor: %s: %s\n", what, ErrnoText(errno).c_str());
  std::exit(1);
}

struct Manner {
  const char* congestion_control;  // "": the host's
  size_t piece_bytes;
  bool has_crc;
};

class Rank {
 public:
  Rank(int fd, const Manner& manner, size_t bytes)
      : fd_(fd), manner_(manner), buffer_(bytes), scratch_(manner.piece_bytes) {
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    const std::string control = manner.congestion_control;
    if (!control.empty()) {
      Require(::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, control.data(),
                           static_cast<socklen_t>(control.size())) == 0,
              "TCP_CONGESTION");
    }
  }

  void Allreduce(bool is_first) {
    const size_t half = buffer_.size() / 2;
    const Bytes low = Bytes(buffer_).first(half), high = Bytes(buffer_).subspan(half);
    const Bytes mine = is_first ? low : high, theirs = is_first ? high : low;
    Exchange(theirs, mine, true);
    Exchange(mine, theirs, false);
  }

 private:
  void Exchange(ConstBytes out, Bytes in, bool is_reduced) {
    size_t sent = 0, received = 0;
    while (sent < out.size() || received < in.size()) {
      const ssize_t took = sent < out.size() ? SendSome(out.subspan(sent)) : 0;
      const ssize_t got = received < in.size() ? ReceiveSome(in.subspan(received), is_reduced) : 0;
      sent += static_cast<size_t>(std::max<ssize_t>(took, 0));
      received += static_cast<size_t>(std::max<ssize_t>(got, 0));
      if (took > 0 || got > 0) continue;
      pollfd entry{fd_, 0, 0};
      if (received < in.size()) entry.events |= POLLIN;
      if (sent < out.size()) entry.events |= POLLOUT;
      ::poll(&entry, 1, -1);
    }
  }

  ssize_t SendSome(ConstBytes out) {
    const ConstBytes piece = out.first(std::min(out.size(), manner_.piece_bytes));
    if (manner_.has_crc) sum_ += Crc32c(piece);
    return ::send(fd_, piece.data(), piece.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }

  // A sum needs whole elements: the few bytes of an odd end are simply left out of it.
  ssize_t ReceiveSome(Bytes in, bool is_reduced) {
    const size_t most = std::min(in.size(), manner_.piece_bytes);
    std::byte* const into = is_reduced ? scratch_.data() : in.data();
    const ssize_t got = ::recv(fd_, into, most, MSG_DONTWAIT);
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

  const int fd_;
  const Manner manner_;
  std::vector<std::byte> buffer_;
  std::vector<std::byte> scratch_;
  uint32_t sum_ = 0;
};

double MedianMs(const Manner& manner, size_t bytes, int rounds) {
  Result<std::vector<SocketAddress>> any = Resolve("127.0.0.1:0");
  Require(any.ok(), "resolve");
  Result<UniqueFd> listener = Listen(any->front(), 1);
  Require(listener.ok(), "listen");
  const Result<SocketAddress> address = LocalAddress(listener->get());
  Require(address.ok(), "getsockname");
  const pid_t child = ::fork();
  Require(child >= 0, "fork");
  if (child == 0) {
    const Result<UniqueFd> fd = Connect(*address, After(std::chrono::seconds(10)));
    Require(fd.ok(), "connect");
    Rank rank(fd->get(), manner, bytes);
    for (int i = 0; i < rounds; ++i) rank.Allreduce(false);
    ::_exit(0);
  }
  Require(WaitReadable(listener->get(), After(std::chrono::seconds(10))).ok(), "accept");
  const UniqueFd fd(::accept4(listener->get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  Rank rank(fd.get(), manner, bytes);
  std::vector<double> milliseconds;
  for (int i = 0; i < rounds; ++i) {
    const auto start = std::chrono::steady_clock::now();
    rank.Allreduce(true);
    const auto taken = std::chrono::steady_clock::now() - start;
    milliseconds.push_back(std::chrono::duration<double, std::milli>(taken).count());
  }
  ::waitpid(child, nullptr, 0);
  std::sort(milliseconds.begin(), milliseconds.end());
  return milliseconds[milliseconds.size() / 2];
}

void Main(size_t bytes, int rounds) {
  std::printf("# 2 ranks, %zu MiB, medians of %d\n", bytes >> 20, rounds);
  for (const char* control : {"", "reno"}) {
    for (const size_t piece : {size_t{64} << 10, size_t{256} << 10, size_t{1} << 20}) {
      for (const bool has_crc : {false, true}) {
        const double ms = MedianMs({control, piece, has_crc}, bytes, rounds);
        std::printf("%-10s %5zu KiB a call  %-7s %8.2f ms\n", *control ? control : "default",
                    piece >> 10, has_crc ? "CRC-32C" : "no sum", ms);
        std::fflush(stdout);
      }
    }
  }
}

}  // namespace
}  // namespace rabit

int main(int argc, char** argv) {
  const long mib = argc > 1 ? std::strtol(argv[1], nullptr, 10) : 16;
  const long rounds = argc > 2 ? std::strtol(argv[2], nullptr, 10) : 61;
  rabit::Main(static_cast<size_t>(std::clamp(mib, 1L, 1024L)) << 20,
              static_cast<int>(std::clamp(rounds, 1L, 10000L)));
  return 0;
}
