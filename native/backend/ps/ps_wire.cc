#include "backend/ps/ps_wire.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <string>

#include "base/wire.h"

namespace rabit {
namespace {

Status Malformed(const std::string& what) {
  return Internal("a worker has sent " + what +
                  "; run the same version of rabit on every worker and server");
}

// What is kept is one worker's to update, a clock is two numbers, encodings are bytes of several
// workers, and so many have a group that ends.
bool IsPossible(const PushHeader& header, int members) {
  if (header.mode == PushMode::kSum) return true;
  if (header.op != ReduceOp::kSum || !header.epilogue.is_nothing()) return false;
  if (header.mode == PushMode::kCoded) return members > 1 && header.dtype == DType::kUint8;
  if (header.mode == PushMode::kEnd) return members > 1 && header.count == 1;
  const bool is_clock = header.mode == PushMode::kClock;
  return members == 1 && (!is_clock || (header.dtype == DType::kInt64 && header.count == 2));
}

}  // namespace

PushHeaderBytes Encode(const PushHeader& header) {
  PushHeaderBytes bytes{};
  StoreLittle<uint32_t>(bytes.data(), kPsWireVersion);
  StoreLittle<int32_t>(bytes.data() + 4, static_cast<int32_t>(header.dtype));
  StoreLittle<int32_t>(bytes.data() + 8, static_cast<int32_t>(header.op));
  StoreLittle<int32_t>(bytes.data() + 12, static_cast<int32_t>(header.mode));
  StoreLittle<uint64_t>(bytes.data() + 16, header.tag);
  StoreLittle<int64_t>(bytes.data() + 24, header.count);
  StoreLittle<int64_t>(bytes.data() + 32, header.chunk_count);
  StoreLittle<uint64_t>(bytes.data() + 40, header.key);
  StoreLittle<int32_t>(bytes.data() + 48, header.epilogue.divisor);
  StoreLittle<uint64_t>(bytes.data() + 52, std::bit_cast<uint64_t>(header.epilogue.factor));
  return bytes;
}

Result<PushHeader> DecodePushHeader(const PushHeaderBytes& bytes, int members) {
  const auto version = LoadLittle<uint32_t>(bytes.data());
  if (version != kPsWireVersion) {
    return Malformed("a push of wire version " + std::to_string(version) + ", this is " +
                     std::to_string(kPsWireVersion));
  }
  const auto dtype = DTypeFrom(LoadLittle<int32_t>(bytes.data() + 4));
  const auto op = ReduceOpFrom(LoadLittle<int32_t>(bytes.data() + 8));
  PushHeader header;
  header.tag = LoadLittle<uint64_t>(bytes.data() + 16);
  header.count = LoadLittle<int64_t>(bytes.data() + 24);
  header.chunk_count = LoadLittle<int64_t>(bytes.data() + 32);
  header.key = LoadLittle<uint64_t>(bytes.data() + 40);
  header.epilogue.divisor = LoadLittle<int32_t>(bytes.data() + 48);
  header.epilogue.factor = std::bit_cast<double>(LoadLittle<uint64_t>(bytes.data() + 52));
  if (!dtype.has_value() || !op.has_value() || !Supports(*dtype, *op)) {
    return Malformed("a push of a type or an operation that does not exist");
  }
  if (header.epilogue.divisor < 1) {
    return Malformed("a push whose sum is divided by " + std::to_string(header.epilogue.divisor));
  }
  header.dtype = *dtype;
  header.op = *op;
  const auto mode = LoadLittle<int32_t>(bytes.data() + 12);
  header.mode = static_cast<PushMode>(mode);
  if (mode < 0 || mode > static_cast<int32_t>(PushMode::kEnd) || !IsPossible(header, members)) {
    return Malformed("a push of mode " + std::to_string(mode) + " by " + std::to_string(members) +
                     " workers, which cannot be");
  }
  const int64_t most = PsChunkBytesMax(members) / static_cast<int64_t>(SizeOf(*dtype));
  if (header.count < 1 || header.chunk_count < 1 || header.chunk_count > most) {
    return Malformed("a push of " + std::to_string(header.count) + " elements in chunks of " +
                     std::to_string(header.chunk_count) + ", of which at most " +
                     std::to_string(most) + " are possible");
  }
  return header;
}

PushPositionBytes Encode(const PushPosition& at) {
  PushPositionBytes bytes{};
  StoreLittle<uint64_t>(bytes.data(), at.push);
  StoreLittle<uint64_t>(bytes.data() + 8, at.chunk);
  return bytes;
}

PushPosition DecodePushPosition(const PushPositionBytes& bytes) {
  return {LoadLittle<uint64_t>(bytes.data()), LoadLittle<uint64_t>(bytes.data() + 8)};
}

PlacedPushBytes Encode(const PlacedPush& placed) {
  PlacedPushBytes bytes{};
  const PushHeaderBytes header = Encode(placed.header);
  const PushPositionBytes at = Encode(placed.at);
  std::copy(header.begin(), header.end(), bytes.begin());
  std::copy(at.begin(), at.end(), bytes.begin() + header.size());
  return bytes;
}

Result<PlacedPush> DecodePlacedPush(const PlacedPushBytes& bytes, int members) {
  PushHeaderBytes header;
  PushPositionBytes at;
  std::copy_n(bytes.begin(), header.size(), header.begin());
  std::copy_n(bytes.begin() + header.size(), at.size(), at.begin());
  PlacedPush placed;
  RABIT_ASSIGN_OR_RETURN(placed.header, DecodePushHeader(header, members));
  placed.at = DecodePushPosition(at);
  if (placed.at.chunk >= placed.header.chunks()) {
    return Malformed("chunk " + std::to_string(placed.at.chunk) + " of a push of " +
                     std::to_string(placed.header.chunks()));
  }
  return placed;
}

GroupHeaderBytes Encode(const GroupHeader& header) {
  GroupHeaderBytes bytes{};
  StoreLittle<uint32_t>(bytes.data(), kPsWireVersion);
  StoreLittle<int32_t>(bytes.data() + 4, header.id);
  StoreLittle<int32_t>(bytes.data() + 8, header.members);
  return bytes;
}

Result<GroupHeader> DecodeGroupHeader(const GroupHeaderBytes& bytes, int workers) {
  const auto version = LoadLittle<uint32_t>(bytes.data());
  if (version != kPsWireVersion) {
    return Malformed("a group of wire version " + std::to_string(version) + ", this is " +
                     std::to_string(kPsWireVersion));
  }
  GroupHeader header;
  header.id = LoadLittle<int32_t>(bytes.data() + 4);
  header.members = LoadLittle<int32_t>(bytes.data() + 8);
  if (header.id <= kWorld || header.members < 1 || header.members > workers) {
    return Malformed("group " + std::to_string(header.id) + " of " +
                     std::to_string(header.members) + " members in a job of " +
                     std::to_string(workers) + " workers");
  }
  return header;
}

}  // namespace rabit
