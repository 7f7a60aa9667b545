#include "codec/codec_adder.h"

#include <string>
#include <vector>

#include "codec/block_coder.h"
#include "codec/codec_table.h"
#include "codec/encoded_chunk.h"
#include "codec/random.h"
#include "testing/test.h"

namespace rabit {
namespace {

using Chunk = std::vector<std::byte>;

constexpr const char* kSummableSpec = "minmax8:block=64";

// A tensor of ones of codec `kSummableSpec`, which encodes them without loss.
Chunk OnesAs(std::string_view spec, std::vector<EncodedRun> runs) {
  const auto codec = MakeCodec(kSummableSpec);
  const BlockCoder& coder = *(*codec)->summable();
  const EncodedChunk described{spec, std::move(runs)};
  Chunk chunk(described.head_bytes());
  described.WriteHead(chunk);
  for (const EncodedRun& run : described.runs) {
    const std::vector<float> ones(run.count, 1.0f);
    for (int64_t first = 0; first < run.count; first += coder.block()) {
      const int64_t count = std::min(coder.block(), run.count - first);
      const size_t at = chunk.size();
      chunk.resize(at + coder.EncodedBytesMax(count));
      coder.Encode(&ones[static_cast<size_t>(first)], count, 1, &chunk[at]);
    }
  }
  return chunk;
}

Status Added(const std::vector<Chunk>& chunks, Chunk& sum) {
  std::vector<const std::byte*> inputs;
  for (const Chunk& each : chunks) inputs.push_back(each.data());
  return MakeCodecAdder()->Add(inputs, sum);
}

TEST(CodecAdder, adds_runs_of_several_tensors) {
  const std::string spec((*MakeCodec(kSummableSpec))->spec());
  const std::vector<EncodedRun> runs = {{7, 0, 100}, {8, 3, 5}};
  const Chunk ones = OnesAs(spec, runs);
  Chunk sum = ones;

  ASSERT_OK(Added({ones, ones, ones}, sum));

  const auto codec = MakeCodec(spec);
  const BlockCoder& coder = *(*codec)->summable();
  ConstBytes rest = ConstBytes(sum).subspan(EncodedChunk::HeadBytes(spec, 2));
  for (const int64_t count : {64, 36, 5}) {
    std::vector<float> values(static_cast<size_t>(count));
    const auto read = coder.DecodeAdd(rest, count, 1.0f, values.data());
    ASSERT_OK(read);
    EXPECT_TRUE(values == std::vector<float>(values.size(), 3.0f));
    rest = rest.subspan(*read);
  }
  EXPECT_TRUE(rest.empty());
}

TEST(CodecAdder, refuses_what_cannot_be_one_sum) {
  const std::string spec((*MakeCodec(kSummableSpec))->spec());
  const Chunk ones = OnesAs(spec, {{7, 0, 100}});
  const auto message = [&](const Chunk& first, const Chunk& second) {
    Chunk sum = first;
    const Status status = Added({first, second}, sum);
    EXPECT_FALSE(status.ok());
    return status.message();
  };

  EXPECT_OK([&] {  // a rank that has joined knows no seed
    Chunk sum = ones;
    return Added({ones, OnesAs(spec, {{9, 0, 100}})}, sum);
  }());
  const std::string other_runs = message(ones, OnesAs(spec, {{7, 1, 100}}));
  EXPECT_TRUE(testing::Has(other_runs, "member 1 has 1 runs of 'minmax8")) << other_runs;
  const Chunk unknown = OnesAs("minmax9:block=64", {{7, 0, 100}});
  EXPECT_TRUE(testing::Has(message(unknown, unknown), "no codec is called 'minmax9'"));
  for (const char* const one : {"sign:block=64,phases=2", "sign:block=64,phases=1",
                                "topk:ratio=0.01,block=512,count=exact"}) {
    const Chunk kept = OnesAs(one, {{7, 0, 100}});
    EXPECT_TRUE(testing::Has(message(kept, kept), "are added up by ranks alone")) << one;
  }
  const EncodedChunk too_many{spec, {{7, 0, 0xffffffff}}};
  Chunk lying(200);
  too_many.WriteHead(lying);
  EXPECT_TRUE(testing::Has(message(lying, lying), "does not fit into 200 bytes"));
  for (size_t bytes = 0; bytes < EncodedChunk::HeadBytes(spec, 1); ++bytes) {
    const Chunk cut(ones.begin(), ones.begin() + static_cast<ptrdiff_t>(bytes));
    EXPECT_TRUE(testing::Has(message(cut, cut), "is shorter than it says")) << bytes;
  }
}

}  // namespace
}  // namespace rabit
