#include "control/tensor_record.h"

#include <algorithm>

#include "base/numbered_name.h"
#include "control/agreement_wire.h"

namespace rabit {

TensorRecord* RecordTable::Find(const TensorKey& key) const {
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? nullptr : found->second.get();
}

TensorRecord& RecordTable::Add(TensorKey key, std::shared_ptr<const TensorMembers> members) {
  auto record = std::make_unique<TensorRecord>();
  record->key = std::move(key);
  record->members = std::move(members);
  record->is_numbered = IsNumbered(record->key.name);
  NameUse& use = by_name_[record->key.name];
  use.records.push_back(record.get());
  record->rounds_of_name = &use.open_rounds;
  TensorRecord& added = *record;
  by_key_.emplace(added.key, std::move(record));
  return added;
}

void RecordTable::Remove(TensorRecord& record) {
  if (record.id >= 0) TakeBack(record);
  const auto use = by_name_.find(record.key.name);
  std::erase(use->second.records, &record);
  if (use->second.records.empty()) by_name_.erase(use);
  const TensorKey key = record.key;  // the record dies inside erase
  by_key_.erase(key);
}

bool RecordTable::GiveId(TensorRecord& record, uint64_t cycle, std::vector<TensorId>& evicted) {
  ForgetNumbered(cycle, evicted);
  auto oldest = recency_.begin();
  while (recency_.size() + numbered_.size() >= capacity_ && oldest != recency_.end()) {
    TensorRecord& candidate = **oldest++;
    if (IsInUse(candidate, cycle)) continue;
    evicted.push_back(candidate.id);
    Remove(candidate);
  }
  if (free_ids_.empty()) {
    if (by_id_.size() >= static_cast<size_t>(kTensorIdLimit)) return false;
    record.id = static_cast<TensorId>(by_id_.size());
    by_id_.push_back(&record);
  } else {
    record.id = free_ids_.back();
    free_ids_.pop_back();
    by_id_[static_cast<size_t>(record.id)] = &record;
  }
  record.named_cycle = cycle;
  record.told_cycle = cycle;
  std::list<TensorRecord*>& list = ListOf(record);
  record.recency = list.insert(list.end(), &record);
  return true;
}

// A few are kept, so that ids are not used again while messages that mention them are under way.
// Two at a time, so that their number falls after many were open at once.
void RecordTable::ForgetNumbered(uint64_t cycle, std::vector<TensorId>& evicted) {
  for (int i = 0; i < 2 && numbered_.size() >= std::min(kNumberedMax, capacity_); ++i) {
    TensorRecord& candidate = *numbered_.front();
    if (IsInUse(candidate, cycle)) return;
    evicted.push_back(candidate.id);
    Remove(candidate);
  }
}

void RecordTable::TakeBack(TensorRecord& record) {
  by_id_[static_cast<size_t>(record.id)] = nullptr;
  free_ids_.push_back(record.id);
  ListOf(record).erase(record.recency);
  record.id = -1;
}

std::vector<TensorRecord*> RecordTable::WithName(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  return found == by_name_.end() ? std::vector<TensorRecord*>() : found->second.records;
}

}  // namespace rabit
