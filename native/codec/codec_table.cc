#include "codec/codec_table.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "codec/by_chance.h"
#include "codec/cast.h"
#include "codec/float8.h"
#include "codec/levels.h"
#include "codec/min_max.h"
#include "codec/natural.h"
#include "codec/sign.h"
#include "codec/top_k.h"
#include "codec/two_means.h"

namespace rabit {
namespace {

constexpr CodecRow kRows[] = {
    {"fp16", "float32 and float64 travel as float16", &MakeFloat16Codec, "fp16"},
    {"bf16", "float32 and float64 travel as bfloat16", &MakeBfloat16Codec, "bf16"},
    {"levels", "stochastic levels of 2 to 8 bits with a scale for each block", &MakeLevelsCodec,
     "levels:bits=4,block=64"},
    {"fp8", "8-bit floats with a scale for each block, rounded at random", &MakeFloat8Codec,
     "fp8:block=64"},
    {"natural", "powers of two, rounded at random", &MakeNaturalCodec, "natural"},
    {"sign", "one bit and a scale for each block", &MakeSignCodec, "sign:block=64"},
    {"means", "one bit and two means for each block", &MakeTwoMeansCodec, "means:block=64"},
    {"topk", "the largest elements of each block", &MakeTopKCodec, "topk:ratio=0.1,block=64"},
    {"chance", "elements of each block at random, large ones more surely", &MakeByChanceCodec,
     "chance:ratio=0.1,block=64"},
    {"minmax8", "8 bits between the least and the largest of each block", &MakeMinMaxCodec,
     "minmax8:block=64"},
};

// Levels that are fitted to a tensor are part of a spec, so that specs come and go for as long as a
// job runs.  More than a job has at one time are not kept.
constexpr size_t kKeptMax = 4096;

class Codecs final : public CodecSet {
 public:
  Result<CodecHold> Find(std::string_view spec) override {
    MutexLock lock(mutex_);
    auto found = made_.find(spec);
    if (found == made_.end()) {
      RABIT_ASSIGN_OR_RETURN(std::unique_ptr<Codec> codec, MakeCodec(spec));
      if (made_.size() >= kKeptMax) DropOldest();
      found = made_.emplace(std::string(spec), Made{std::move(codec)}).first;
    }
    found->second.last_use = ++uses_;
    return found->second.codec;
  }

 private:
  struct Made {
    CodecHold codec;
    uint64_t last_use = 0;
  };

  // One in four, so that it is seldom done.
  void DropOldest() RABIT_REQUIRES(mutex_) {
    std::vector<uint64_t> uses;
    for (const auto& [spec, made] : made_) uses.push_back(made.last_use);
    const auto limit = uses.begin() + static_cast<std::ptrdiff_t>(kKeptMax / 4);
    std::nth_element(uses.begin(), limit, uses.end());
    std::erase_if(made_, [&](const auto& entry) { return entry.second.last_use < *limit; });
  }

  Mutex mutex_;
  uint64_t uses_ RABIT_GUARDED_BY(mutex_) = 0;
  std::map<std::string, Made, std::less<>> made_ RABIT_GUARDED_BY(mutex_);
};

}  // namespace

std::span<const CodecRow> CodecTable() { return kRows; }

Result<std::unique_ptr<Codec>> MakeCodec(std::string_view text) {
  RABIT_ASSIGN_OR_RETURN(CodecSpec spec, CodecSpec::Parse(text));
  std::string known;
  for (const CodecRow& row : kRows) {
    if (row.name == spec.name()) return row.make(spec);
    known += (known.empty() ? "'" : ", '") + std::string(row.name) + "'";
  }
  return InvalidArgument("no codec is called '" + spec.name() + "'. Choose one of " + known + ".");
}

std::unique_ptr<CodecSet> MakeCodecSet() { return std::make_unique<Codecs>(); }

}  // namespace rabit
