// CodecStates: what codecs remember per partition of a tensor, such as error-feedback residuals.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/ids.h"
#include "base/mutex.h"
#include "codec/codec.h"
#include "schedule/scheduler.h"

namespace rabit {

// Thread-safe.  A state is used by one lane at a time, because a tensor is in flight only once.
class CodecStates {
 public:
  // Lives until the partition changes its size or codec; null if the codec remembers nothing.
  // `key` names the tensor.
  PartitionState* Get(const Codec& codec, CodecId id, const std::string& key,
                      const Partition& partition, DType dtype);

 private:
  struct Entry {
    CodecId codec = kIdentityCodec;
    int64_t count = 0;
    DType dtype = DType::kFloat32;
    std::unique_ptr<PartitionState> state;
  };
  Mutex mutex_;
  std::map<std::pair<std::string, int64_t>, Entry> entries_ RABIT_GUARDED_BY(mutex_);
};

}  // namespace rabit
