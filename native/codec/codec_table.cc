#include "codec/codec_table.h"

#include <string>

#include "codec/cast.h"
#include "codec/identity.h"

namespace rabit {
namespace {

constexpr CodecRow kRows[] = {
    {"none", "no compression", &MakeIdentityCodec},
    {"fp16", "float32 and float64 travel as float16", &MakeFloat16Codec},
    {"bf16", "float32 and float64 travel as bfloat16", &MakeBfloat16Codec},
};

}  // namespace

std::span<const CodecRow> CodecTable() { return kRows; }

Result<std::unique_ptr<Codec>> MakeCodec(std::string_view spec) {
  std::string known;
  for (const CodecRow& row : kRows) {
    if (row.name == spec) return row.make();
    known += (known.empty() ? "'" : ", '") + std::string(row.name) + "'";
  }
  return InvalidArgument("no codec is called '" + std::string(spec) + "'. Choose one of " + known +
                         ".");
}

}  // namespace rabit
