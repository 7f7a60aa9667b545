#include "control/agreement_wire.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>
#include <string>

#include "base/wire.h"
#include "control/announcer.h"
#include "control/coordinator.h"
#include "testing/sanitizer.h"
#include "testing/test.h"
#include "testing/testdata.h"

namespace rabit {
namespace {

Signature FullSignature() {
  Signature s;
  s.kind = Kind::kReduce;
  s.dtype = DType::kBfloat16;
  s.op = ReduceOp::kMax;
  s.shape = {64, 0, 300};
  s.axis_order = 0x120;
  s.root = 2;
  s.prescale = 0.5;
  s.postscale = -0.25;
  s.priority = -7;
  s.group = 3;
  s.codec = "fp16";
  s.backend = 4;
  s.device_kind = DeviceKind::kCuda;
  s.splits = {1, 2};
  s.even_parts = 300;
  return s;
}

std::vector<std::byte> Data(std::string_view text) {
  const ConstBytes bytes = AsBytes(text);
  return {bytes.begin(), bytes.end()};
}

AnnounceMessage FullAnnounce() {
  AnnounceMessage message;
  message.seen_cycle = 300;
  message.buckets_done = 7;
  message.wants_stop = true;
  message.joins = true;
  message.cached = {0, 1, 2, 9, 500};
  message.variable = {{4, 1000, {600, 400}}, {5, 0, {}, Data("four")}};
  message.full = {{.name = "conv1.weight", .signature = FullSignature(), .data = Data("five")}};
  return message;
}

AgreeMessage FullAgree() {
  AgreeMessage message;
  message.cycle = 301;
  message.buckets_done = 6;
  message.buckets_done[1] = 9;
  message.last_joined = 3;
  message.stop = true;
  message.evicted = {8};
  for (TensorId id = 0; id < 40; id += 2) message.plain.push_back(id);
  message.references = {{3, {1, 2, 3}, {1}}, {5, {}, {}, Data("sums")}};
  message.definitions = {{{8, {4}, {}}, {"x", 0, 1, 2}, FullSignature()}};
  message.rejected = {{{"bad", 0, -1, -1}, Mismatch("differs").WithCulprit(2), true}};
  return message;
}

AgreeMessage TuningAgree() {
  AgreeMessage message;
  message.cycle = 302;
  message.tunables = Tunables{1 << 20, 0, -1, 3};
  return message;
}

AgreeMessage FailingAgree() {
  AgreeMessage message;
  message.cycle = 303;
  message.failed_backend = BackendFailure{2, PeerLost(5, "backend 'ps' has failed")};
  return message;
}

std::vector<std::vector<std::byte>> AllMessages() {
  std::vector<std::vector<std::byte>> all(9);
  Encode(FullAnnounce(), all[0]);
  EncodeStatus(ControlType::kAbandon, PeerLost(4, "rank 4 died"), all[1]);
  Encode(FullAgree(), all[2]);
  EncodeStatus(ControlType::kAbort, TimedOut("stalled"), all[3]);
  EncodeStall({"'a' waits", ""}, all[4]);
  Encode(TuningAgree(), all[5]);
  Encode(RefusalMessage{300, {"w", 2, -1, -1}, InvalidArgument("no").WithCulprit(4)}, all[6]);
  Encode(FailingAgree(), all[7]);
  Encode(*FailingAgree().failed_backend, all[8]);
  return all;
}

std::string Hex(const std::vector<std::byte>& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (std::byte byte : bytes) {
    text += kDigits[static_cast<unsigned>(byte) >> 4];
    text += kDigits[static_cast<unsigned>(byte) & 15];
  }
  return text;
}

// Whatever arrives, a decoder answers with a message or an error.
void DecodeAnything(ConstBytes bytes) {
  (void)TypeOf(bytes);
  (void)DecodeAnnounce(bytes);
  (void)DecodeAgree(bytes);
  (void)DecodeStatus(bytes);
  (void)DecodeStall(bytes);
  (void)DecodeRefusal(bytes);
  (void)DecodeBackendFailure(bytes);
}

TEST(AgreementWire, the_bytes_of_version_11_are_frozen) {
  const auto path = testing::Testdata("control/testdata/messages_v11.txt");
  std::ifstream file(path);
  ASSERT_TRUE(file.is_open()) << path.string();
  std::string line;
  for (const auto& message : AllMessages()) {
    ASSERT_TRUE(static_cast<bool>(std::getline(file, line)));
    EXPECT_EQ(Hex(message), line);
  }
  EXPECT_EQ(static_cast<int>(kControlVersion), 11);
}

TEST(AgreementWire, an_announcement_survives_the_wire) {
  std::vector<std::byte> bytes;
  Encode(FullAnnounce(), bytes);

  EXPECT_EQ(*TypeOf(bytes), ControlType::kAnnounce);
  auto read = DecodeAnnounce(bytes);
  ASSERT_OK(read);
  EXPECT_EQ(read->seen_cycle, 300u);
  EXPECT_EQ(read->buckets_done, 7u);
  EXPECT_TRUE(read->wants_stop && read->joins);
  EXPECT_TRUE(read->cached == FullAnnounce().cached);
  ASSERT_EQ(read->variable.size(), 2u);
  EXPECT_EQ(read->variable[0].rows, 1000);
  EXPECT_TRUE((read->variable[0].splits == std::vector<int64_t>{600, 400}));
  EXPECT_TRUE(read->variable[1].data == Data("four"));
  ASSERT_EQ(read->full.size(), 1u);
  EXPECT_EQ(read->full[0].name, "conv1.weight");
  EXPECT_TRUE(read->full[0].signature == FullSignature());
  EXPECT_TRUE(read->full[0].data == Data("five"));
}

TEST(AgreementWire, tunables_survive_the_wire_and_keep_their_bounds) {
  std::vector<std::byte> bytes;
  Encode(TuningAgree(), bytes);
  auto read = DecodeAgree(bytes);
  ASSERT_OK(read);
  EXPECT_TRUE(read->tunables == TuningAgree().tunables);

  AgreeMessage wrong = TuningAgree();
  wrong.tunables->lanes = kLanesMax + 1;
  Encode(wrong, bytes);
  EXPECT_FALSE(DecodeAgree(bytes).ok());
  wrong.tunables->lanes = 1;
  wrong.tunables->credit_bytes = -2;
  Encode(wrong, bytes);
  EXPECT_FALSE(DecodeAgree(bytes).ok());
}

TEST(AgreementWire, the_failure_of_a_backend_survives_the_wire_and_has_a_reason) {
  std::vector<std::byte> bytes;
  Encode(FailingAgree(), bytes);
  const auto read = DecodeAgree(bytes);
  ASSERT_OK(read);
  ASSERT_TRUE(read->failed_backend.has_value());
  EXPECT_EQ(read->failed_backend->backend, 2);
  EXPECT_EQ(read->failed_backend->why.culprit(), 5);

  Encode(BackendFailure{2, PeerLost(5, "gone")}, bytes);
  EXPECT_EQ(*TypeOf(bytes), ControlType::kBackendFailed);
  EXPECT_OK(DecodeBackendFailure(bytes));
  Encode(BackendFailure{2, Status()}, bytes);
  EXPECT_FALSE(DecodeBackendFailure(bytes).ok());
}

TEST(AgreementWire, an_agreement_survives_the_wire) {
  std::vector<std::byte> bytes;
  Encode(FullAgree(), bytes);

  auto read = DecodeAgree(bytes);
  ASSERT_OK(read);
  EXPECT_EQ(read->cycle, 301u);
  EXPECT_EQ(read->last_joined, 3);
  EXPECT_TRUE(read->stop);
  EXPECT_TRUE(read->evicted == std::vector<TensorId>{8});
  EXPECT_TRUE(read->plain == FullAgree().plain);
  ASSERT_EQ(read->references.size(), 2u);
  EXPECT_TRUE(read->references[0].joined == std::vector<int>{1});
  EXPECT_TRUE(read->references[1].data == Data("sums"));
  ASSERT_EQ(read->definitions.size(), 1u);
  EXPECT_TRUE(read->definitions[0].key == (TensorKey{"x", 0, 1, 2}));
  EXPECT_TRUE(read->definitions[0].signature == FullSignature());
  ASSERT_EQ(read->rejected.size(), 1u);
  EXPECT_EQ(read->rejected[0].why.ToString(), "Mismatch: differs");
  EXPECT_EQ(read->rejected[0].why.culprit(), 2);
  EXPECT_TRUE(read->rejected[0].fails_late_members);
}

TEST(AgreementWire, any_set_of_ids_survives_in_the_smaller_form) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    AnnounceMessage message;
    const auto density = random() % 100 + 1;
    for (TensorId id = static_cast<TensorId>(random() % 50); id < 2000; ++id)
      if (random() % 100 < density) message.cached.push_back(id);
    std::vector<std::byte> bytes;
    Encode(message, bytes);
    auto read = DecodeAnnounce(bytes);
    ASSERT_OK(read);
    EXPECT_TRUE(read->cached == message.cached);
    EXPECT_LE(bytes.size(), 270u);  // 250 bytes of bits
  }
}

TEST(AgreementWire, every_truncation_is_an_error) {
  const auto all = AllMessages();
  for (const auto& message : all) {
    for (size_t size = 0; size < message.size(); ++size) {
      const std::vector<std::byte> part(message.begin(),
                                        message.begin() + static_cast<std::ptrdiff_t>(size));
      DecodeAnything(part);
      if (&message == &all[0]) {
        EXPECT_FALSE(DecodeAnnounce(part).ok()) << size;
      }
      if (&message == &all[3]) {
        EXPECT_FALSE(DecodeAgree(part).ok()) << size;
      }
    }
  }
}

TEST(AgreementWire, random_and_damaged_bytes_never_crash_a_decoder) {
  std::mt19937 random(2);
  const auto all = AllMessages();
  for (int round = 0; round < testing::SimulatedRounds(30'000); ++round) {
    std::vector<std::byte> bytes = all[random() % all.size()];
    if (round % 3 == 0) bytes.resize(random() % 200);
    const size_t changes = round % 3 == 0 ? bytes.size() : random() % 4 + 1;
    for (size_t i = 0; i < changes && !bytes.empty(); ++i)
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    DecodeAnything(bytes);
  }
}

// The same, one layer up: a coordinator and an announcer that are fed damage end in an error.
TEST(AgreementWire, damaged_messages_never_crash_their_receivers) {
  std::mt19937 random(3);
  const auto all = AllMessages();
  for (int round = 0; round < testing::SimulatedRounds(3000); ++round) {
    Coordinator coordinator({.size = 4});
    Announcer announcer(1, 4);
    for (int i = 0; i < 6; ++i) {
      std::vector<std::byte> bytes = all[random() % all.size()];
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
      coordinator.OnMessage(static_cast<int>(random() % 4), bytes, i);
      (void)coordinator.TakeAgreement();
      if (auto agree = DecodeAgree(bytes); agree.ok()) {
        agree->cycle = static_cast<uint64_t>(i) + 1;
        if (!announcer.Apply(std::move(*agree)).ok()) break;
      }
    }
  }
}

TEST(AgreementWire, names_another_version) {
  const std::byte message[] = {std::byte{1}, std::byte{1}};

  EXPECT_EQ(TypeOf(message).status().message(),
            "it speaks version 1 of the control format, this rank version 11. Install the same "
            "version of rabit on every host.");
}

TEST(AgreementWire, refuses_more_data_than_a_tensor_may_carry) {
  AnnounceMessage message;
  message.variable = {{0, 0, {}, std::vector<std::byte>(kCarriedBytesMax)}};
  std::vector<std::byte> bytes;
  Encode(message, bytes);
  EXPECT_OK(DecodeAnnounce(bytes));

  message.variable[0].data.emplace_back();
  Encode(message, bytes);
  EXPECT_EQ(DecodeAnnounce(bytes).status().code(), Code::kInternal);
}

TEST(AgreementWire, refuses_a_shape_that_overflows) {
  AnnounceMessage message;
  message.full = {{"big", {}}};
  message.full[0].signature.shape = {int64_t{1} << 40, int64_t{1} << 40};
  std::vector<std::byte> bytes;
  Encode(message, bytes);

  EXPECT_EQ(DecodeAnnounce(bytes).status().code(), Code::kInternal);
}

}  // namespace
}  // namespace rabit
