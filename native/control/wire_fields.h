// FieldWriter and FieldReader: a message of the negotiation as the list of its fields.
//
// A format is one function that names the fields of a message in their order; with a writer it
// encodes the message, with a reader it decodes it.  Small numbers are varints, and -1 where it may
// come is added out.
#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bucket_counts.h"
#include "base/dtype.h"
#include "base/status.h"
#include "base/wire.h"
#include "control/agreement_wire.h"
#include "control/rank_set.h"

namespace rabit {

// Groups and backends.
inline constexpr int64_t kIdSpace = int64_t{1} << 31;

// Takes what the reader gives.
class FieldWriter {
 public:
  explicit FieldWriter(WireWriter& to) : to_(to) {}

  void Number(uint64_t value) { to_.Varint(value); }
  void Below(int64_t value, int64_t) { Number(static_cast<uint64_t>(value)); }
  void Optional(int64_t value, int64_t) { Number(static_cast<uint64_t>(value + 1)); }
  void Rows(int64_t value) { Number(static_cast<uint64_t>(value)); }
  void Signed(int64_t value, int64_t = 0) {
    Number((static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63));
  }
  void Real(double value) { to_.F64(value); }
  template <class... Bits>
  void Flags(Bits... bits) {
    unsigned all = 0, place = 0;
    ((all |= (bits ? 1u : 0u) << place++), ...);
    to_.U8(static_cast<uint8_t>(all));
  }
  template <class T, class From>
  void Named(T value, From) {
    to_.U8(static_cast<uint8_t>(value));
  }
  void Text(std::string_view text, size_t bytes_max) {
    text = text.substr(0, bytes_max);
    Number(text.size());
    to_.Raw(AsBytes(text));
  }
  void Data(const std::vector<std::byte>& data, size_t) {
    Number(data.size());
    to_.Raw(data);
  }
  void Extents(const std::vector<int64_t>& extents) {
    Number(extents.size());
    for (const int64_t extent : extents) Rows(extent);
  }
  void Shape(const std::vector<int64_t>& shape) { Extents(shape); }
  void Ranks(const std::vector<int>& ranks) {
    Number(ranks.size());
    for (const int rank : ranks) Below(rank, kControlRanksMax);
  }
  void Ranks(const RankSet& ranks);
  void Ids(const std::vector<TensorId>& ids);
  void Counts(const BucketCounts& counts);
  void Cause(const Status& why) {
    to_.U8(static_cast<uint8_t>(why.code()));
    Optional(why.culprit(), kControlRanksMax);
    Text(why.message(), kStatusBytesMax);
  }
  // Fields of each element.
  template <class T, class Visit>
  void Each(const std::vector<T>& elements, Visit visit) {
    Number(elements.size());
    for (const T& each : elements) visit(*this, each);
  }
  template <class T, class Visit>
  void If(bool, const std::optional<T>& value, Visit visit) {
    if (value) visit(*this, *value);
  }
  void Require(bool) {}

 private:
  WireWriter& to_;
};

// Failures stick, as those of a WireReader.
class FieldReader {
 public:
  explicit FieldReader(WireReader& from) : from_(from) {}

  void Number(uint64_t& value) { value = from_.Varint(); }
  // From 0 to limit - 1.
  void Below(int32_t& value, int64_t limit) {
    const uint64_t read = from_.Varint();
    Require(read < static_cast<uint64_t>(limit));
    value = from_.ok() ? static_cast<int32_t>(read) : 0;
  }
  // From -1 to limit - 1.
  void Optional(int32_t& value, int64_t limit) {
    Below(value, limit + 1);
    --value;
  }
  void Rows(int64_t& value) {
    value = static_cast<int64_t>(from_.Varint());
    Require(value >= 0);
  }
  template <class T>
  void Signed(T& value, int64_t least = std::numeric_limits<T>::min()) {
    const uint64_t read = from_.Varint();
    const int64_t number = static_cast<int64_t>(read >> 1) ^ -static_cast<int64_t>(read & 1);
    Require(number >= least && number <= std::numeric_limits<T>::max());
    value = from_.ok() ? static_cast<T>(number) : T{};
  }
  void Real(double& value) { value = from_.F64(); }
  template <class... Bits>
  void Flags(Bits&... bits) {
    unsigned all = from_.U8();
    ((bits = (all & 1) != 0, all >>= 1), ...);
  }
  // `from` knows the numbers of a type.
  template <class T, class From>
  void Named(T& value, From from) {
    const std::optional<T> found = from(from_.U8());
    Require(found.has_value());
    if (found) value = *found;
  }
  void Text(std::string& text, size_t bytes_max) { text = AsText(Bytes(bytes_max)); }
  void Data(std::vector<std::byte>& data, size_t bytes_max) {
    const ConstBytes bytes = Bytes(bytes_max);
    data.assign(bytes.begin(), bytes.end());
  }
  // Not negative, with a sum that fits.
  void Extents(std::vector<int64_t>& extents);
  // The same; the product fits, too.
  void Shape(std::vector<int64_t>& shape);
  void Ranks(std::vector<int>& ranks) {
    ranks.resize(Count());
    for (int& rank : ranks) Below(rank, kControlRanksMax);
  }
  void Ranks(RankSet& ranks);
  void Ids(std::vector<TensorId>& ids);
  void Counts(BucketCounts& counts);
  void Cause(Status& why);
  // One by one, so that a short message costs no more memory than it has bytes.
  template <class T, class Visit>
  void Each(std::vector<T>& elements, Visit visit) {
    for (size_t left = Count(); left > 0 && from_.ok(); --left)
      visit(*this, elements.emplace_back());
  }
  template <class T, class Visit>
  void If(bool is_there, std::optional<T>& value, Visit visit) {
    if (is_there) visit(*this, value.emplace());
  }
  void Require(bool holds) {
    if (!holds) from_.Fail();
  }

 private:
  ConstBytes Bytes(size_t bytes_max) {
    const uint64_t bytes = from_.Varint();
    Require(bytes <= bytes_max);
    return from_.Raw(from_.ok() ? static_cast<size_t>(bytes) : 0);
  }
  // Of elements of at least one byte each.
  size_t Count() {
    const uint64_t count = from_.Varint();
    Require(count <= from_.left());
    return from_.ok() ? static_cast<size_t>(count) : 0;
  }
  void ReadBits(std::vector<TensorId>& ids, size_t count);

  WireReader& from_;
};

// A whole message.  Fields: visit(writer or reader, message).
template <class Message, class Visit>
void EncodeFields(ControlType type, const Message& message, Visit visit,
                  std::vector<std::byte>& out) {
  out.clear();
  WireWriter to(out);
  to.U8(kControlVersion);
  to.U8(static_cast<uint8_t>(type));
  FieldWriter writer(to);
  visit(writer, message);
}

// `what` names the message where it is none.
template <class Message, class Visit>
Result<Message> DecodeFields(ConstBytes bytes, Visit visit, std::string_view what) {
  constexpr size_t kHeaderBytes = 2;
  WireReader from(bytes.subspan(std::min(kHeaderBytes, bytes.size())));
  FieldReader reader(from);
  Message message;
  visit(reader, message);
  RABIT_RETURN_IF_ERROR(from.Finish(what));
  return message;
}

}  // namespace rabit
