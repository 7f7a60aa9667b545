#include "codec/encoded_chunk.h"

#include <algorithm>

#include "base/wire.h"

namespace rabit {
namespace {

// Longer ones than any codec has.
constexpr size_t kSpecBytesMax = 4096;

}  // namespace

void EncodedChunk::WriteHead(Bytes to) const {
  std::vector<std::byte> head;
  head.reserve(head_bytes());
  WireWriter writer(head);
  writer.Text(spec);
  writer.Count(runs.size());
  for (const EncodedRun& run : runs) {
    writer.U64(run.key);
    writer.U64(run.first_block);
    writer.U32(run.count);
  }
  std::copy(head.begin(), head.end(), to.begin());
}

Result<EncodedChunk> EncodedChunk::ReadHead(ConstBytes bytes) {
  WireReader reader(bytes);
  EncodedChunk chunk;
  chunk.spec = reader.Text(kSpecBytesMax);
  const size_t runs = reader.Count(kRunBytes);
  chunk.runs.reserve(runs);
  for (size_t i = 0; i < runs; ++i) {
    const uint64_t key = reader.U64(), first_block = reader.U64();
    chunk.runs.push_back({key, first_block, reader.U32()});
  }
  if (reader.ok()) return chunk;
  return Internal("a chunk of encodings of " + std::to_string(bytes.size()) +
                  " bytes is shorter than it says; run the same version of rabit on every worker "
                  "and server");
}

}  // namespace rabit
