// The steady step: every rank announces the same known tensors with one message.
#include <algorithm>
#include <utility>

#include "control/coordinator.h"

namespace rabit {

bool Coordinator::JoinsBatch(const AnnounceMessage& message, const Arrival& arrival) {
  const bool says_nothing = message.cached.empty() && message.variable.empty() &&
                            message.full.empty() && !message.joins && !message.wants_stop;
  // A message with credit alone changes no tensor and must not split the batch.
  if (says_nothing) return true;
  const bool is_plain = !message.cached.empty() && message.variable.empty() &&
                        message.full.empty() && !message.joins && !message.wants_stop;
  if (is_plain && !batch_) return BeginBatch(message, arrival);
  if (!batch_) return false;
  // The ids mean the same to this rank only if it had read the last agreement that named one of
  // them.
  const bool fits = is_plain && arrival.ids_cycle >= batch_->named_cycle &&
                    batch_->arrived.CountCommon(arrival.ranks) == 0 &&
                    message.cached == batch_->ids;
  if (!fits) {
    SplitBatch();
    return false;
  }
  batch_->arrived.Add(arrival.ranks);
  batch_->before_last_us = batch_->last_us;
  batch_->last_us = arrival.now_us;
  batch_->last_rank = arrival.last_rank;
  if (batch_->arrived.count() == options_.size) CompleteBatch();
  return true;
}

bool Coordinator::BeginBatch(const AnnounceMessage& message, const Arrival& arrival) {
  // A batch has no room for exceptions: while a single tensor is open, a member is late, or a rank
  // has joined or stopped, records decide.
  if (!open_.empty() || !with_late_.empty() || joined_count_ > 0 || stopped_count_ > 0)
    return false;
  uint64_t named_cycle = 0;
  TensorId before = -1;
  for (TensorId id : message.cached) {
    const TensorRecord* const record = records_.Find(id);
    // A tensor of a group or with a part of its own would need other members or other data than the
    // rest of the batch.
    const bool is_common = record != nullptr && record->named_cycle <= arrival.ids_cycle &&
                           record->key.group == kWorld && !record->key.is_pair() &&
                           IsSaidById(record->agreed) && id > before;
    if (!is_common) return false;
    named_cycle = std::max(named_cycle, record->named_cycle);
    before = id;
  }
  batch_ = Batch{.ids = message.cached,
                 .named_cycle = named_cycle,
                 .arrived = arrival.ranks,
                 .first_us = arrival.now_us,
                 .before_last_us = arrival.now_us,
                 .last_us = arrival.now_us,
                 .last_rank = arrival.last_rank};
  // The batch counts as open work, or a rank that never sends its message would not be reported.
  SetTick(arrival.now_us);
  if (batch_->arrived.count() == options_.size) CompleteBatch();
  return true;
}

void Coordinator::CompleteBatch() {
  const Batch batch = *std::exchange(batch_, std::nullopt);
  has_news_ = is_root_busy_ = true;
  for (TensorId id : batch.ids) {
    TensorRecord& record = *records_.Find(id);
    record.first_us = batch.first_us;
    // The times are those of the batch, so that late ranks are named alike with and without it.
    record.before_last_us = batch.before_last_us;
    record.last_us = batch.last_us;
    record.last_rank = batch.last_rank;
    skew_.Add(record);
    // A use keeps the id from being evicted, as it would without a batch.
    records_.Touch(record, next_cycle());
    next_.plain.push_back(id);
  }
}

void Coordinator::SplitBatch() {
  if (!batch_) return;
  const Batch batch = *std::exchange(batch_, std::nullopt);
  for (TensorId id : batch.ids) {
    TensorRecord& record = *records_.Find(id);
    // The tensors come as if each rank had sent them one by one; nothing of the batch is left.
    Arrive(record, {batch.arrived, batch.named_cycle, batch.last_rank, batch.first_us}, nullptr);
    record.before_last_us = batch.before_last_us;
    record.last_us = batch.last_us;
  }
}

}  // namespace rabit
