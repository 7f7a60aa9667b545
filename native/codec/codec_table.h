// The table of codecs: name -> maker.  A new codec is one row; the suites and the bench run each.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "base/result.h"
#include "codec/codec.h"
#include "codec/codec_spec.h"

namespace rabit {

struct CodecRow {
  std::string_view name;     // what a user writes before the colon: "levels"
  std::string_view summary;  // one line for help texts
  Result<std::unique_ptr<Codec>> (*make)(CodecSpec& spec);
  std::string_view example;  // a specification with small blocks, for the suites
};

std::span<const CodecRow> CodecTable();

// kInvalidArgument for an unknown name, whose text lists the known ones, or a wrong parameter.
Result<std::unique_ptr<Codec>> MakeCodec(std::string_view spec);

// Makes each codec when it is first asked for, and keeps those that were asked for last.
std::unique_ptr<CodecSet> MakeCodecSet();

}  // namespace rabit
