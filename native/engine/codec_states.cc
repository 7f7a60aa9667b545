#include "engine/codec_states.h"

namespace rabit {

PartitionState* CodecStates::Get(const Codec& codec, CodecId id, const std::string& key,
                                 const Partition& partition, DType dtype) {
  MutexLock lock(mutex_);
  Entry& entry = entries_[{key, partition.offset}];
  if (entry.codec != id || entry.count != partition.count || entry.dtype != dtype) {
    entry = Entry{id, partition.count, dtype, codec.NewState(partition.count, dtype)};
  }
  return entry.state.get();
}

}  // namespace rabit
