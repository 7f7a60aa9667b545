#include "codec/codec_block.h"

#include <algorithm>

namespace rabit {

std::vector<CodecBlock> BlocksOf(std::span<const CodecPart> parts, int64_t block) {
  std::vector<CodecBlock> blocks;
  for (const CodecPart& part : parts) {
    for (int64_t first = 0; first < part.in.count; first += block) {
      blocks.push_back({&part, first, std::min(block, part.in.count - first),
                        static_cast<uint64_t>((part.offset + first) / block)});
    }
  }
  return blocks;
}

}  // namespace rabit
