#include "rendezvous/store_wire.h"

#include "base/wire.h"

namespace rabit {
namespace {

constexpr size_t kFrameStart = kStoreLengthBytes;

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
    case StoreOp::kSetOnce:
    case StoreOp::kWill:
      writer.Text(request.value);
      break;
    case StoreOp::kGet:
      writer.U32(request.wait_ms);
      break;
    case StoreOp::kAdd:
      writer.I64(request.amount);
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
  writer.Text(std::string_view(response.text).substr(0, kStoreFrameBytesMax - 6));
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
    case static_cast<uint8_t>(StoreOp::kSetOnce):
    case static_cast<uint8_t>(StoreOp::kWill):
      request.value = reader.Text(kStoreValueBytesMax);
      break;
    case static_cast<uint8_t>(StoreOp::kGet):
      request.wait_ms = reader.U32();
      break;
    case static_cast<uint8_t>(StoreOp::kAdd):
      request.amount = reader.I64();
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
  StoreResponse response;
  response.text = reader.Text(kStoreFrameBytesMax);
  if (version != kStoreWireVersion || code > static_cast<uint8_t>(Code::kInternal)) reader.Fail();
  RABIT_RETURN_IF_ERROR(reader.Finish("a store response"));
  response.code = static_cast<Code>(code);
  return response;
}

}  // namespace rabit
