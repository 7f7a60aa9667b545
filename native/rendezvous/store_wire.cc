#include "rendezvous/store_wire.h"

#include "base/wire.h"

namespace rabit {
namespace {

constexpr size_t kFrameStart = kStoreLengthBytes;
// Version of the wire, code, is_mine, version of the key, length of the text.
constexpr size_t kResponseHeadBytes = 1 + 1 + 1 + 8 + 4;

void StoreLength(std::vector<std::byte>& frame) {
  StoreLittle(frame.data(), static_cast<uint32_t>(frame.size() - kFrameStart));
}

}  // namespace

std::vector<std::byte> EncodeStoreRequest(const StoreRequest& request) {
  std::vector<std::byte> frame;
  WireWriter writer(frame);
  writer.U32(0);
  writer.U8(kStoreWireVersion);
  writer.U8(static_cast<uint8_t>(request.op));
  writer.Text(request.key);
  switch (request.op) {
    case StoreOp::kSet:
    case StoreOp::kWill:
      writer.Text(request.value);
      break;
    case StoreOp::kWatch:
      writer.U64(request.version);
      writer.U32(request.wait_ms);
      writer.Text(request.unless);
      break;
    case StoreOp::kCompareAndSet:
      writer.U64(request.version);
      writer.Text(request.value);
      break;
  }
  StoreLength(frame);
  return frame;
}

std::vector<std::byte> EncodeStoreResponse(const StoreResponse& response) {
  std::vector<std::byte> frame;
  WireWriter writer(frame);
  writer.U32(0);
  writer.U8(kStoreWireVersion);
  writer.U8(static_cast<uint8_t>(response.code));
  writer.U8(response.is_mine ? 1 : 0);
  writer.U64(response.version);
  writer.Text(std::string_view(response.text).substr(0, kStoreFrameBytesMax - kResponseHeadBytes));
  StoreLength(frame);
  return frame;
}

Result<StoreRequest> DecodeStoreRequest(ConstBytes frame) {
  WireReader reader(frame);
  const uint8_t version = reader.U8();
  const uint8_t op = reader.U8();
  StoreRequest request;
  request.key = reader.Text(kStoreKeyBytesMax);
  switch (op) {
    case static_cast<uint8_t>(StoreOp::kSet):
    case static_cast<uint8_t>(StoreOp::kWill):
      request.value = reader.Text(kStoreValueBytesMax);
      break;
    case static_cast<uint8_t>(StoreOp::kWatch):
      request.version = reader.U64();
      request.wait_ms = reader.U32();
      request.unless = reader.Text(kStoreKeyBytesMax);
      break;
    case static_cast<uint8_t>(StoreOp::kCompareAndSet):
      request.version = reader.U64();
      request.value = reader.Text(kStoreValueBytesMax);
      break;
    default:
      reader.Fail();
      break;
  }
  request.op = static_cast<StoreOp>(op);
  if (version != kStoreWireVersion) reader.Fail();
  RABIT_RETURN_IF_ERROR(reader.Finish("a store request"));
  return request;
}

Result<StoreResponse> DecodeStoreResponse(ConstBytes frame) {
  WireReader reader(frame);
  const uint8_t version = reader.U8();
  const uint8_t code = reader.U8();
  const uint8_t is_mine = reader.U8();
  StoreResponse response;
  response.version = reader.U64();
  response.text = reader.Text(kStoreFrameBytesMax);
  if (version != kStoreWireVersion || code > static_cast<uint8_t>(Code::kInternal) || is_mine > 1) {
    reader.Fail();
  }
  RABIT_RETURN_IF_ERROR(reader.Finish("a store response"));
  response.is_mine = is_mine == 1;
  response.code = static_cast<Code>(code);
  return response;
}

}  // namespace rabit
