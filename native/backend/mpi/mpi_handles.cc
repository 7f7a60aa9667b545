#include "backend/mpi/mpi_handles.h"

#include <charconv>

namespace rabit {
namespace {

Status Malformed(std::string_view part, std::string_view why) {
  return InvalidArgument("option mpi: '" + std::string(part.substr(0, 80)) + "' " +
                         std::string(why) + "; let the rabit package fill in this option");
}

template <class Number>
bool ParseNumber(std::string_view text, Number* value) {
  // from_chars knows no locale, and refuses what follows upon the number.
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && stop == text.data() + text.size();
}

MpiHandle* FindHandle(MpiHandles& handles, std::string_view key) {
  if (key == "in_place") return &handles.in_place;
  if (key == "comm") return &handles.comm;
  if (key == "errors_return") return &handles.errors_return;
  if (key == "byte") return &handles.byte;
  for (int32_t value = 0; value < kDTypeCount; ++value) {
    if (key == Name(static_cast<DType>(value))) return &handles.dtypes[static_cast<size_t>(value)];
  }
  for (int32_t value = 0; value < kReduceOpSlots; ++value) {
    const std::optional<ReduceOp> op = ReduceOpFrom(value);
    if (op.has_value() && key == Name(*op)) return &handles.ops[static_cast<size_t>(value)];
  }
  return nullptr;
}

Status ParsePart(std::string_view part, MpiHandles& handles) {
  const size_t equals = part.find('=');
  if (equals == std::string_view::npos) return Malformed(part, "has no '='");
  const std::string_view key = part.substr(0, equals);
  const std::string_view value = part.substr(equals + 1);
  // The handles are numbers and pointers of the process's own MPI, written by mpi4py: they hold in
  // this process only.
  std::string* text = key == "library"     ? &handles.library
                      : key == "version"   ? &handles.version
                      : key == "transport" ? &handles.transport
                                           : nullptr;
  if (text != nullptr) {
    *text = value;
    return Status();
  }
  int64_t serialized = 0;
  int64_t* number = key == "width"           ? &handles.width
                    : key == "tag_max"       ? &handles.tag_max
                    : key == "message_bytes" ? &handles.message_bytes
                    : key == "serialized"    ? &serialized
                                             : nullptr;
  if (number != nullptr) {
    if (!ParseNumber(value, number)) return Malformed(part, "is not a number");
    handles.is_serialized = handles.is_serialized || serialized != 0;
    return Status();
  }
  MpiHandle* handle = FindHandle(handles, key);
  if (handle == nullptr) return Malformed(part, "is unknown");
  return ParseNumber(value, handle) ? Status() : Malformed(part, "is not a number");
}

}  // namespace

Result<MpiHandles> MpiHandles::Parse(std::string_view text) {
  MpiHandles handles;
  while (!text.empty()) {
    const size_t end = std::min(text.find(';'), text.size());
    RABIT_RETURN_IF_ERROR(ParsePart(text.substr(0, end), handles));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  // MPICH has handles of 32 bits, Open MPI pointers: a wrong width would call functions with the
  // wrong types.
  if (handles.width != 4 && handles.width != 8) return Malformed("width", "must be 4 or 8");
  if (handles.library.empty()) return Malformed("library", "is missing");
  if (handles.comm == 0 || handles.byte == 0 || handles.in_place == 0 ||
      handles.errors_return == 0) {
    return Malformed("comm, byte, in_place, errors_return", "must all be given");
  }
  constexpr int64_t kMaxMessageBytes = (int64_t{1} << 31) - 1;  // a count is an int
  if (handles.message_bytes < 64 || handles.message_bytes > kMaxMessageBytes) {
    return Malformed("message_bytes", "must be 64 to 2147483647");
  }
  if (handles.tag_max < 32'767) return Malformed("tag_max", "is below what MPI promises");
  return handles;
}

}  // namespace rabit
