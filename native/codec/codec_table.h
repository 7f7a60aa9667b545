// The table of codecs: name -> factory.  A new codec is one row.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "base/result.h"
#include "codec/codec.h"

namespace rabit {

struct CodecRow {
  std::string_view name;     // what a user writes: "fp16"
  std::string_view summary;  // one line for help texts
  std::unique_ptr<Codec> (*make)();
};

std::span<const CodecRow> CodecTable();

// kInvalidArgument for an unknown name; the text lists the known ones.
Result<std::unique_ptr<Codec>> MakeCodec(std::string_view spec);

}  // namespace rabit
