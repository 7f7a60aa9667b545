#include "control/schedule_digest.h"

#include <algorithm>
#include <string_view>

#include "base/wire.h"
#include "control/agreement_wire.h"

namespace rabit {
namespace {

constexpr size_t kDigestHeaderBytes = 2;
constexpr size_t kRunningMax = 256;  // lanes and ordered calls of one rank
constexpr size_t kWhatBytesMax = 400;
constexpr std::string_view kAdvice =
    " Give every rank the same scheduler, partition, fusion and credit sizes, lanes, backend, "
    "algorithm and deterministic setting.";

using Running = ScheduleDigest::Running;

std::string RankWord(int rank) { return "rank " + std::to_string(rank); }

const Running* Find(const ScheduleDigest& digest, const Running& like) {
  for (const Running& each : digest.running) {
    if (each.scope == like.scope && each.number == like.number) return &each;
  }
  return nullptr;
}

std::string ListOf(const ScheduleDigest& digest) {
  std::string text;
  for (const Running& each : digest.running) text += (text.empty() ? "" : ", ") + each.what;
  return text.empty() ? "nothing" : text;
}

// Of what both run under one number.
Status CompareRunning(int a, const ScheduleDigest& left, int b, const ScheduleDigest& right) {
  for (const Running& mine : left.running) {
    const Running* const theirs = Find(right, mine);
    if (theirs == nullptr || theirs->hash == mine.hash) continue;
    const std::string both =
        mine.what + " on " + RankWord(a) + " and " + theirs->what + " on " + RankWord(b) + ".";
    if (mine.scope >= 0) {
      return Mismatch("ordered call " + std::to_string(mine.number) + " of group " +
                      std::to_string(mine.scope) + " is " + both +
                      " Make the same ordered calls in the same order on every rank.");
    }
    return Mismatch("bucket " + std::to_string(mine.number) + " holds " + both +
                    std::string(kAdvice));
  }
  return {};
}

Status CompareIssued(int a, const ScheduleDigest& left, int b, const ScheduleDigest& right) {
  if (left.issued == right.issued && left.chain == right.chain) return {};
  return Mismatch("the ranks have cut and joined the same tensors differently: " + RankWord(a) +
                  " has issued " + std::to_string(left.issued) + " buckets and exchanges " +
                  ListOf(left) + ", " + RankWord(b) + " " + std::to_string(right.issued) +
                  " and exchanges " + ListOf(right) + "." + std::string(kAdvice));
}

}  // namespace

void Encode(const ScheduleDigest& digest, std::vector<std::byte>& out) {
  out.clear();
  WireWriter to(out);
  to.U8(kControlVersion);
  to.U8(static_cast<uint8_t>(ControlType::kDigest));
  to.Varint(digest.cycle);
  to.Varint(digest.issued);
  to.U64(digest.chain);
  // The reader refuses more, so the writer must not send more, however many lanes there are.
  const size_t count = std::min(digest.running.size(), kRunningMax);
  to.Varint(count);
  for (size_t i = 0; i < count; ++i) {
    const Running& each = digest.running[i];
    to.I32(each.scope);
    to.U64(each.number);
    to.U64(each.hash);
    to.Text(std::string_view(each.what).substr(0, kWhatBytesMax));
  }
  to.Varint(digest.submissions);
  to.U8(digest.are_callers_stuck ? 1 : 0);
}

Result<ScheduleDigest> DecodeDigest(ConstBytes message) {
  WireReader from(message.subspan(std::min(kDigestHeaderBytes, message.size())));
  ScheduleDigest digest;
  digest.cycle = from.Varint();
  digest.issued = from.Varint();
  digest.chain = from.U64();
  const uint64_t count = from.Varint();
  if (count > kRunningMax) from.Fail();
  for (uint64_t i = 0; i < count && from.ok(); ++i) {
    Running each;
    each.scope = from.I32();
    each.number = from.U64();
    each.hash = from.U64();
    each.what = std::string(from.Text(kWhatBytesMax));
    digest.running.push_back(std::move(each));
  }
  digest.submissions = from.Varint();
  digest.are_callers_stuck = from.U8() != 0;
  RABIT_RETURN_IF_ERROR(from.Finish("a schedule digest"));
  return digest;
}

Status DigestRound::Add(int rank, ScheduleDigest digest) {
  // Answers to an earlier question come late from a slow rank; the newer question replaces it.
  if (digest.cycle < cycle_) return {};
  if (digest.cycle > cycle_) {
    for (auto& each : digests_) each.reset();
    cycle_ = digest.cycle;
    count_ = 0;
  }
  std::optional<ScheduleDigest>& mine = digests_[static_cast<size_t>(rank)];
  count_ += mine ? 0 : 1;
  mine = std::move(digest);
  // A rank that never answers is found by its link and not here.
  return count_ == digests_.size() ? Compare() : Status();
}

// What most ranks have is taken for right; of two equal parts, what the lower rank has.
Status DigestRound::Compare() const {
  const auto agrees = [](const ScheduleDigest& a, const ScheduleDigest& b) {
    return CompareIssued(0, a, 0, b).ok() && CompareRunning(0, a, 0, b).ok();
  };
  size_t usual = 0;
  std::ptrdiff_t most = 0;
  for (size_t rank = 0; rank < digests_.size() && 2 * most <= std::ssize(digests_); ++rank) {
    const auto alike = std::count_if(digests_.begin(), digests_.end(), [&](const auto& each) {
      return agrees(*digests_[rank], *each);
    });
    if (alike <= most) continue;
    most = alike;
    usual = rank;
  }
  for (size_t rank = 0; rank < digests_.size(); ++rank) {
    const auto a = static_cast<int>(usual);
    const auto b = static_cast<int>(rank);
    Status same = CompareRunning(a, *digests_[usual], b, *digests_[rank]);
    if (same.ok()) same = CompareIssued(a, *digests_[usual], b, *digests_[rank]);
    if (!same.ok()) return same.WithCulprit(b);
  }
  return {};
}

}  // namespace rabit
