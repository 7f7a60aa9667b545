#include "testing/bad_wire.h"

#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <list>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/poller.h"
#include "base/socket.h"
#include "testing/test.h"

namespace rabit::testing {
namespace {

constexpr uint64_t kListener = 0;

// Two sockets, each with what waits to be written to it.
struct Connection {
  int number = 0;
  std::array<UniqueFd, 2> fd;  // dialler, target
  std::array<std::vector<std::byte>, 2> output;
  std::array<uint64_t, 2> bytes_read{};
};

}  // namespace

class BadWire::Pump {
 public:
  Pump(const std::string& target, Harm harm)
      : target_(Resolve(target)->front()),
        harm_(std::move(harm)),
        listener_(*Listen(Resolve("127.0.0.1:0")->front(), 64)),
        poller_(*Poller::Open()) {
    EXPECT_OK(poller_.Add(listener_.get(), kListener, true, false));
    thread_ = std::thread([this] { Run(); });
  }
  ~Pump() {
    is_stopping_.store(true);
    poller_.Wake();
    thread_.join();
  }
  std::string address() const { return LocalAddress(listener_.get())->ToString(); }

 private:
  void Run() {
    while (!is_stopping_.load()) {
      for (const Poller::Event& event : poller_.Wait(After(std::chrono::seconds(1)))) {
        if (event.key == kListener) {
          Accept();
        } else {
          Serve(static_cast<int>((event.key - 1) / 2), (event.key - 1) % 2);
        }
      }
    }
  }

  void Accept() {
    UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.is_open()) return;
    Result<UniqueFd> onward = rabit::Connect(target_, After(std::chrono::seconds(5)));
    if (!onward.ok()) return;
    Connection& made = connections_.emplace_back();
    made.number = static_cast<int>(connections_.size()) - 1;
    made.fd = {std::move(fd), *std::move(onward)};
    for (size_t side = 0; side < 2; ++side) {
      (void)SetNoDelay(made.fd[side].get());
      EXPECT_OK(poller_.Add(made.fd[side].get(), KeyOf(made, side), true, false));
    }
  }

  static uint64_t KeyOf(const Connection& connection, size_t side) {
    return 1 + 2 * static_cast<uint64_t>(connection.number) + side;
  }

  void Serve(int number, size_t side) {
    auto found = connections_.begin();
    std::advance(found, number);
    if (found->fd[side].is_open() && !(Write(*found, side) && Read(*found, side))) Drop(*found);
  }

  bool Read(Connection& connection, size_t side) {
    std::array<std::byte, 4096> buffer;
    const ssize_t got = ::recv(connection.fd[side].get(), buffer.data(), buffer.size(), 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    Bytes bytes(buffer.data(), static_cast<size_t>(got));
    const Fate fate = harm_({connection.number, side == 1, connection.bytes_read[side], bytes});
    connection.bytes_read[side] += static_cast<uint64_t>(got);
    if (fate == Fate::kReset) return false;
    if (fate == Fate::kResetTarget) Close(connection.fd[1]);
    if (!connection.fd[1 - side].is_open()) return true;
    if (fate == Fate::kSwallow) return true;
    if (fate == Fate::kSwallowOneByte) bytes = bytes.subspan(1);
    std::vector<std::byte>& output = connection.output[1 - side];
    output.insert(output.end(), bytes.begin(), bytes.end());
    return Write(connection, 1 - side);
  }

  bool Write(Connection& connection, size_t side) {
    std::vector<std::byte>& output = connection.output[side];
    while (!output.empty()) {
      const ssize_t put =
          ::send(connection.fd[side].get(), output.data(), output.size(), MSG_NOSIGNAL);
      if (put < 0 && errno != EAGAIN && errno != EINTR) return false;
      if (put < 0) break;
      output.erase(output.begin(), output.begin() + put);
    }
    return poller_
        .Change(connection.fd[side].get(), KeyOf(connection, side), true, !output.empty())
        .ok();
  }

  void Drop(Connection& connection) {
    for (UniqueFd& fd : connection.fd) Close(fd);
  }

  void Close(UniqueFd& fd) {
    if (!fd.is_open()) return;
    const linger at_once = {1, 0};  // a reset
    ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    poller_.Remove(fd.get());
    fd.reset();
  }

  const SocketAddress target_;
  const Harm harm_;
  const UniqueFd listener_;
  Poller poller_;
  std::list<Connection> connections_;  // the thread's own
  std::atomic<bool> is_stopping_{false};
  std::thread thread_;
};

BadWire::BadWire(const std::string& target, Harm harm)
    : pump_(std::make_unique<Pump>(target, std::move(harm))) {}
BadWire::~BadWire() = default;
std::string BadWire::address() const { return pump_->address(); }

}  // namespace rabit::testing
