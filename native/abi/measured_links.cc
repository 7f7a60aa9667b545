#include "abi/measured_links.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <system_error>
#include <utility>

#include "transport/operation_slots.h"

namespace rabit {
namespace {

// Larger than what TCP copies: the send is over when the peer has it.
constexpr size_t kMessageBytes = 128 << 10;
constexpr int kInFlight = 4;
constexpr Tag kRoundTag = 0xf000, kDataTag = 0xf001;  // of no stream's pushes
constexpr int kStepsMost = 4 * 40;
// Of numbers that every processor and library has alike.
constexpr double kRoots[] = {1.0, 1.189207115002721, 1.4142135623730951, 1.681792830507429};

using RoundBytes = std::array<std::byte, 4>;

// The process of each host that sends and receives for it.
std::vector<int> SpeakersOf(const Places& places) {
  std::vector<int> speakers(places.bandwidth_of.size(), -1);
  for (size_t process = 0; process < places.host_of.size(); ++process) {
    int& speaker = speakers[static_cast<size_t>(places.host_of[process])];
    if (speaker < 0) speaker = static_cast<int>(process);
  }
  return speakers;
}

class Probing {
 public:
  Probing(Transport& endpoints, std::vector<int> peers, const RateProbe& probe, Deadline deadline)
      : endpoints_(endpoints), peers_(std::move(peers)), probe_(probe), deadline_(deadline) {}

  // Bytes per second to all peers together.  A busy machine makes a link seem slower and never
  // faster, so the better of two rounds counts.
  Result<double> Send() {
    data_.resize(kMessageBytes);
    int messages = 1;
    RABIT_ASSIGN_OR_RETURN(double seconds, TimeRound(messages));
    const double least = std::chrono::duration<double>(probe_.least).count();
    // Short rounds measure the clock and the wake of the receiver rather than the link.
    while (seconds < least && messages < probe_.messages_most) {
      messages *= 2;
      RABIT_ASSIGN_OR_RETURN(seconds, TimeRound(messages));
    }
    RABIT_ASSIGN_OR_RETURN(const double again, TimeRound(messages));
    // Receivers do not know how many rounds come; zero messages end the last one.
    RABIT_RETURN_IF_ERROR(Announce(0));
    const double bytes = static_cast<double>(kMessageBytes) * messages;
    return bytes * static_cast<double>(peers_.size()) / std::max(std::min(seconds, again), 1e-9);
  }

  // What `peer` sends.
  Status Receive(int peer) {
    data_.resize(kMessageBytes * kInFlight);
    for (;;) {
      RoundBytes bytes{};
      Operation round = endpoints_.Recv(peer, kRoundTag, bytes);
      RABIT_RETURN_IF_ERROR(round.Wait(deadline_));
      const int messages = std::to_integer<int>(bytes[0]) | std::to_integer<int>(bytes[1]) << 8 |
                           std::to_integer<int>(bytes[2]) << 16;
      if (messages == 0) return Status();
      OperationSlots arriving(kInFlight);
      for (int i = 0; i < messages; ++i) {
        const auto slot = static_cast<size_t>(i % kInFlight);
        RABIT_RETURN_IF_ERROR(arriving.Wait(slot, deadline_));
        arriving.Start(slot,
                       endpoints_.Recv(peer, kDataTag,
                                       Bytes(data_).subspan(slot * kMessageBytes, kMessageBytes)));
      }
      RABIT_RETURN_IF_ERROR(arriving.WaitAll(deadline_));
    }
  }

 private:
  Status Announce(int messages) {
    const RoundBytes bytes = {static_cast<std::byte>(messages),
                              static_cast<std::byte>(messages >> 8),
                              static_cast<std::byte>(messages >> 16), std::byte{0}};
    OperationSlots telling(peers_.size());
    for (size_t i = 0; i < peers_.size(); ++i) {
      telling.Start(i, endpoints_.Send(peers_[i], kRoundTag, bytes));
    }
    return telling.WaitAll(deadline_);
  }

  Result<double> TimeRound(int messages) {
    const auto begin = std::chrono::steady_clock::now();
    RABIT_RETURN_IF_ERROR(SendRound(messages));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  Status SendRound(int messages) {
    RABIT_RETURN_IF_ERROR(Announce(messages));
    OperationSlots leaving(peers_.size() * kInFlight);
    for (int k = 0; k < messages; ++k) {
      for (size_t i = 0; i < peers_.size(); ++i) {
        const size_t slot = static_cast<size_t>(k % kInFlight) * peers_.size() + i;
        // The slot's last message must be over, because all slots send the same memory and none may
        // be dropped.
        RABIT_RETURN_IF_ERROR(leaving.Wait(slot, deadline_));
        leaving.Start(slot, endpoints_.Send(peers_[i], kDataTag, data_));
      }
    }
    return leaving.WaitAll(deadline_);
  }

  Transport& endpoints_;
  const std::vector<int> peers_;
  const RateProbe probe_;
  const Deadline deadline_;
  std::vector<std::byte> data_;
};

}  // namespace

std::string RecordOfRates(std::span<const double> rates) {
  const double least = *std::min_element(rates.begin(), rates.end());
  const auto steps_above = [](double rate, double unit) {
    return std::min(static_cast<int>(std::lround(4 * std::log2(rate / unit))), kStepsMost);
  };
  std::string record = std::to_string(steps_above(least, 1));
  for (const double rate : rates) record += " " + std::to_string(steps_above(rate, least));
  return record;
}

Result<std::vector<double>> RatesFromRecord(std::string_view record, size_t hosts) {
  std::vector<int> told;
  const char* at = record.data();
  const char* const end = at + record.size();
  while (at < end) {
    int steps = 0;
    const auto [next, error] = std::from_chars(at, end, steps);
    if (error != std::errc() || steps < 0 || steps > kStepsMost) break;
    told.push_back(steps);
    at = next < end && *next == ' ' ? next + 1 : next;
  }
  if (told.size() == hosts + 1) {
    std::vector<double> rates;
    for (size_t host = 0; host < hosts; ++host) {
      const int steps = told[0] + told[1 + host];
      rates.push_back(std::ldexp(kRoots[steps % 4], steps / 4));
    }
    return rates;
  }
  return Internal("rank 0 tells '" + std::string(record) + "' of the links of " +
                  std::to_string(hosts) + " hosts; install one version on all hosts");
}

Result<std::vector<double>> MeasureLinks(Transport& endpoints, const Places& places,
                                         bool servers_meet, Store& store, std::string_view prefix,
                                         Deadline deadline, const RateProbe& probe) {
  const std::vector<int> speakers = SpeakersOf(places);
  const int me = endpoints.rank();
  const auto key_of = [&](const std::string& what) { return std::string(prefix) + what; };
  const auto meet = [&](int a, int b) {
    return a != b && (servers_meet || a < places.workers || b < places.workers);
  };
  for (size_t host = 0; host < speakers.size() && speakers.size() > 1; ++host) {
    const int speaker = speakers[host];
    std::vector<int> peers;
    for (const int each : speakers) {
      if (meet(speaker, each)) peers.push_back(each);
    }
    Probing probing(endpoints, peers, probe, deadline);
    if (me == speaker) {
      if (host > 0) {
        // One host sends at a time: two at once would share the link of a receiver, and each would
        // find it half as fast.
        RABIT_RETURN_IF_ERROR(store.Get(key_of(std::to_string(host - 1)), deadline).status());
      }
      RABIT_ASSIGN_OR_RETURN(const double rate, probing.Send());
      RABIT_RETURN_IF_ERROR(
          store.Set(key_of(std::to_string(host)), std::to_string(std::llround(rate))));
    } else if (std::find(peers.begin(), peers.end(), me) != peers.end()) {
      RABIT_RETURN_IF_ERROR(probing.Receive(speaker));
    }
  }
  if (me == 0) {
    std::vector<double> rates;
    for (size_t host = 0; host < speakers.size() && speakers.size() > 1; ++host) {
      RABIT_ASSIGN_OR_RETURN(const std::string text,
                             store.Get(key_of(std::to_string(host)), deadline));
      int64_t rate = 0;
      (void)std::from_chars(text.data(), text.data() + text.size(), rate);
      rates.push_back(static_cast<double>(std::max<int64_t>(rate, 1)));
    }
    if (rates.empty()) rates.push_back(1);
    // All processes read the rounded numbers from this record: shares that differ in the last bit
    // would cut tensors differently.
    RABIT_RETURN_IF_ERROR(store.Set(key_of("all"), RecordOfRates(rates)));
  }
  RABIT_ASSIGN_OR_RETURN(const std::string record, store.Get(key_of("all"), deadline));
  return RatesFromRecord(record, speakers.size());
}

}  // namespace rabit
