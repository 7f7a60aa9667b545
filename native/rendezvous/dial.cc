#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <vector>

#include "base/random.h"
#include "base/socket.h"
#include "rendezvous/handshake.h"
#include "rendezvous/listener.h"

namespace rabit {
namespace {

// A bit that flips on the way looks like another secret or another version; so often in a row, it
// is one.
constexpr int kStrangeAnswersMax = 3;
// A listener that drops the oldest of too many strangers may drop an honest one: try again.
constexpr std::chrono::seconds kHandshakeTime{5};
// Of one of several, before the next one's turn: a lost packet is sent again in it.
constexpr std::chrono::seconds kGreetingTime{2};

std::string TargetText(std::string_view address, const Greeting& mine, int32_t expected_rank) {
  std::string text = "cannot reach ";
  if (expected_rank >= 0) text += "rank " + std::to_string(expected_rank) + " at ";
  text.append(address).append(" (purpose '").append(mine.purpose).append("'");
  if (mine.rank >= 0) text += ", from rank " + std::to_string(mine.rank);
  return text + ")";
}

// A connection whose greeting is on its way.
struct Begun {
  UniqueFd fd;
  Hello hello;
  Deadline deadline;
};

// kPeerLost and kTimedOut are worth another try, here and in Finish.
Result<Begun> Begin(const SocketAddress& address, const Greeting& mine, Deadline deadline,
                    bool* is_refused = nullptr) {
  RABIT_ASSIGN_OR_RETURN(UniqueFd fd, Connect(address, deadline, is_refused));
  RABIT_RETURN_IF_ERROR(SetNoDelay(fd.get()));
  Nonce nonce;
  RABIT_RETURN_IF_ERROR(FillRandom(nonce));
  Begun begun{std::move(fd), EncodeHello(mine, nonce), std::min(deadline, After(kHandshakeTime))};
  RABIT_RETURN_IF_ERROR(WriteFull(begun.fd.get(), begun.hello, begun.deadline));
  return begun;
}

Result<UniqueFd> Finish(Begun begun, const Secret& secret, const Greeting& mine,
                        int32_t expected_rank) {
  const int fd = begun.fd.get();
  Reply reply;
  // Another version's reply may be shorter, but its first eight bytes mean the same.
  RABIT_RETURN_IF_ERROR(ReadFull(fd, Bytes(reply).first(8), begun.deadline));
  // Nothing of the peer is believed yet; these bytes only tell a wrong version from a wrong secret.
  RABIT_RETURN_IF_ERROR(CheckPreamble(reply, 2));
  RABIT_RETURN_IF_ERROR(ReadFull(fd, Bytes(reply).subspan(8), begun.deadline));
  RABIT_ASSIGN_OR_RETURN(const Answer answer, DecodeReply(secret, begun.hello, reply));
  // The reply is authenticated by now: DecodeReply has compared its MAC.
  if (answer.is_refused && answer.epoch > mine.epoch) {
    return Aborted("it has gone on to epoch " + std::to_string(answer.epoch) +
                   " without this process, which is of epoch " + std::to_string(mine.epoch) +
                   " and was given up by the others; or else that process was called to init " +
                   "more often: every rank must call it the same number of times");
  }
  if (answer.is_refused) {
    return Mismatch("it belongs to epoch " + std::to_string(answer.epoch) +
                    " and this process to epoch " + std::to_string(mine.epoch) +
                    "; every rank must call init the same number of times");
  }
  if (expected_rank >= 0 && answer.rank != expected_rank) {
    return Mismatch("rank " + std::to_string(answer.rank) +
                    " answered there; the address is stale, " +
                    "or two ranks published the same one");
  }
  // The listener hands the connection over only after this proof, so it is written last.
  const Digest proof = MakeProof(secret, begun.hello, reply);
  RABIT_RETURN_IF_ERROR(WriteFull(fd, proof, begun.deadline));
  return std::move(begun.fd);
}

Result<UniqueFd> TryOnce(const SocketAddress& address, const Secret& secret, const Greeting& mine,
                         int32_t expected_rank, Deadline deadline, bool* is_refused = nullptr) {
  RABIT_ASSIGN_OR_RETURN(Begun begun, Begin(address, mine, deadline, is_refused));
  return Finish(std::move(begun), secret, mine, expected_rank);
}

bool IsWorthAnotherTry(const Status& status) {
  return status.code() == Code::kPeerLost || status.code() == Code::kTimedOut;
}

}  // namespace

Result<UniqueFd> Dial(std::string_view address, const Secret& secret, const Greeting& mine,
                      int32_t expected_rank, Deadline deadline,
                      const std::function<Status()>& look) {
  const auto start = std::chrono::steady_clock::now();
  Result<std::vector<SocketAddress>> resolved = Resolve(address);
  if (!resolved.ok()) {
    return Status(resolved.status().code(),
                  TargetText(address, mine, expected_rank) + ": " + resolved.status().message());
  }
  std::chrono::nanoseconds pause = std::chrono::milliseconds(1);
  int strange_answers = 0;
  for (;;) {
    Status last;
    for (size_t i = 0; i < resolved->size(); ++i) {
      // An address that swallows packets must not use up the time of those after it.
      const auto now = std::chrono::steady_clock::now();
      const Deadline share = now + (deadline - now) / static_cast<int64_t>(resolved->size() - i);
      Result<UniqueFd> fd = TryOnce((*resolved)[i], secret, mine, expected_rank, share);
      if (fd.ok()) return fd;
      last = fd.status();
      if (!IsWorthAnotherTry(last) && ++strange_answers >= kStrangeAnswersMax) {
        return Status(last.code(),
                      TargetText(address, mine, expected_rank) + ": " + last.message());
      }
    }
    // Another rank may have failed while this one dials; its cause is better than a timeout here.
    if (look) RABIT_RETURN_IF_ERROR(look());
    const auto now = std::chrono::steady_clock::now();
    if (now + pause >= deadline) {
      return TimedOut(TargetText(address, mine, expected_rank) + " within " + InSeconds(now - start) +
                      "; last try: " + last.message());
    }
    // A peer that has not begun to listen refuses at once: without a pause this loop would use up a
    // core that the peer needs.
    std::this_thread::sleep_for(pause);
    pause = std::min<std::chrono::nanoseconds>(pause * 2, std::chrono::milliseconds(50));
  }
}

std::vector<Result<UniqueFd>> DialAll(std::span<const DialTarget> targets, const Secret& secret,
                                      Deadline deadline, const std::function<Status()>& look) {
  std::vector<Result<Begun>> begun;
  std::vector<Result<UniqueFd>> made;
  std::vector<pollfd> answers;
  for (const DialTarget& target : targets) {
    const Result<std::vector<SocketAddress>> resolved = Resolve(target.address);
    const Deadline soon = std::min(deadline, After(kGreetingTime));
    begun.push_back(resolved.ok() ? Begin(resolved->front(), target.mine, soon)
                                  : Result<Begun>(resolved.status()));
    made.push_back(TimedOut("no answer"));
    // poll() passes over a negative descriptor, so the entries keep the places of their targets.
    answers.push_back({begun.back().ok() ? begun.back()->fd.get() : -1, POLLIN, 0});
  }
  // Whoever answers first is through first: none waits behind a peer that hangs.
  const Deadline end = std::min(deadline, After(kHandshakeTime));
  const auto is_waited_for = [](const pollfd& answer) { return answer.fd >= 0; };
  while (std::ranges::any_of(answers, is_waited_for)) {
    const int ready = ::poll(answers.data(), answers.size(), PollTimeoutMs(end));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) break;
    for (size_t i = 0; i < targets.size(); ++i) {
      if (answers[i].revents == 0) continue;
      answers[i] = {-1, 0, 0};
      made[i] = Finish(*std::move(begun[i]), secret, targets[i].mine, targets[i].expected_rank);
    }
  }
  for (size_t i = 0; i < targets.size(); ++i) {
    if (made[i].ok()) continue;
    const DialTarget& each = targets[i];
    // What was quick for all has failed for this one; it gets the whole patience of a single dial.
    made[i] = Dial(each.address, secret, each.mine, each.expected_rank, deadline, look);
  }
  return made;
}

Result<UniqueFd> DialOnce(std::string_view address, const Secret& secret, const Greeting& mine,
                          int32_t expected_rank, Deadline deadline) {
  Status last;
  bool is_refused_by_all = true;
  RABIT_ASSIGN_OR_RETURN(const std::vector<SocketAddress> resolved, Resolve(address));
  for (const SocketAddress& each : resolved) {
    bool is_refused = false;
    Result<UniqueFd> fd = TryOnce(each, secret, mine, expected_rank, deadline, &is_refused);
    if (fd.ok()) return fd;
    is_refused_by_all = is_refused_by_all && is_refused;
    last = fd.status();
    if (!IsWorthAnotherTry(last)) break;
  }
  const Code code = !IsWorthAnotherTry(last) ? last.code()
                    : is_refused_by_all      ? Code::kPeerLost
                                             : Code::kTimedOut;
  return Status(code, TargetText(address, mine, expected_rank) + ": " + last.message());
}

bool IsRefused(std::string_view address, Deadline deadline) {
  const Result<std::vector<SocketAddress>> resolved = Resolve(address);
  if (!resolved.ok() || resolved->empty()) return false;
  for (const SocketAddress& each : *resolved) {
    bool is_refused = false;
    // Only a refusal says that nobody listens: packets that are lost say nothing of the process.
    if (Connect(each, deadline, &is_refused).ok() || !is_refused) return false;
  }
  return true;
}

}  // namespace rabit
