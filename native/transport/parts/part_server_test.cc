#include "transport/parts/part_server.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "testing/soon.h"
#include "testing/test.h"
#include "transport/parts/part_reader.h"
#include "transport/parts/part_wire.h"

namespace rabit {
namespace {

using testing::Soon;

constexpr uint64_t kPart = 7;

Secret PartSecret() {
  Secret secret;
  secret.key.fill(17);
  return secret;
}

std::vector<std::byte> Filled(size_t bytes, int value) {
  return std::vector<std::byte>(bytes, static_cast<std::byte>(value));
}

// Rank 0 serves a part, rank 1 reads it.
struct Owner {
  explicit Owner(size_t bytes, int value = 1) : memory(Filled(bytes, value)) {
    auto started = PartServer::Start("127.0.0.1:0", PartSecret(), 0);
    EXPECT_OK(started);
    if (started.ok()) server = std::move(*started);
    server->Add(kPart, memory);
  }
  PartReader Reader(std::chrono::milliseconds silence = std::chrono::seconds(60)) const {
    return PartReader({server->address()}, PartSecret(), 1, silence);
  }
  std::vector<std::byte> memory;
  std::unique_ptr<PartServer> server;
};

Status ReadInto(PartReader& reader, std::vector<std::byte>& into, uint64_t version,
                Deadline deadline = Soon()) {
  const PartRead read{0, kPart, version, into};
  return reader.Read({&read, 1}, deadline);
}

TEST(PartServer, a_part_is_read_whole_again_and_again) {
  for (const size_t bytes : {size_t{1}, size_t{1024 * 1024}, size_t{3 * 1024 * 1024 + 5}}) {
    Owner owner(bytes, 9);
    EXPECT_OK(owner.server->Open(kPart, 3));
    PartReader reader = owner.Reader();
    for (int i = 0; i < 3; ++i) {
      std::vector<std::byte> into = Filled(bytes, 0);
      EXPECT_OK(ReadInto(reader, into, 3));
      EXPECT_TRUE(into == owner.memory);
    }
  }
}

TEST(PartServer, a_reader_waits_for_a_later_version) {
  Owner owner(1000);
  EXPECT_OK(owner.server->Open(kPart, 1));
  PartReader reader = owner.Reader();
  std::vector<std::byte> into = Filled(1000, 0);
  std::atomic<bool> has_read{false};
  Status read;
  std::thread thread([&] {
    read = ReadInto(reader, into, 2);
    has_read.store(true);
  });
  std::vector<std::byte> other = Filled(1000, 0);
  EXPECT_OK(ReadInto(reader, other, 1));
  EXPECT_FALSE(has_read.load());
  EXPECT_OK(owner.server->Close(kPart));
  std::fill(owner.memory.begin(), owner.memory.end(), std::byte{2});
  EXPECT_OK(owner.server->Open(kPart, 2));
  thread.join();

  EXPECT_OK(read);
  EXPECT_TRUE(into == owner.memory);
}

TEST(PartServer, an_earlier_version_is_refused_with_both) {
  Owner owner(10);
  EXPECT_OK(owner.server->Open(kPart, 5));
  PartReader reader = owner.Reader();
  std::vector<std::byte> into = Filled(10, 0);
  const Status status = ReadInto(reader, into, 4);

  EXPECT_EQ(status.code(), Code::kMismatch);
  EXPECT_EQ(status.culprit(), 0);
  EXPECT_NE(status.message().find("version 5, and version 4 is wanted"), std::string::npos) << status;
}

TEST(PartServer, no_read_mixes_two_versions) {
  constexpr size_t kBytes = 4 * 1024 * 1024;
  Owner owner(kBytes, 0);
  EXPECT_OK(owner.server->Open(kPart, 0));
  std::atomic<bool> is_over{false};
  std::thread writer([&] {
    for (int version = 1; version <= 40; ++version) {
      EXPECT_OK(owner.server->Close(kPart));
      std::fill(owner.memory.begin(), owner.memory.end(), static_cast<std::byte>(version));
      EXPECT_OK(owner.server->Open(kPart, static_cast<uint64_t>(version)));
    }
    is_over.store(true);
  });
  PartReader reader = owner.Reader();
  std::vector<std::byte> into = Filled(kBytes, 255);
  for (uint64_t version = 0; version <= 40;) {
    const Status status = ReadInto(reader, into, version);
    if (status.ok()) {
      EXPECT_TRUE(into == Filled(kBytes, static_cast<int>(version)));
      ++version;
      continue;
    }
    EXPECT_EQ(status.code(), Code::kMismatch) << status;
    version = is_over.load() ? std::max<uint64_t>(version + 1, 40) : version + 1;
  }
  writer.join();
}

TEST(PartServer, an_owner_that_has_died_is_named) {
  Owner owner(10);
  EXPECT_OK(owner.server->Open(kPart, 1));
  PartReader reader = owner.Reader();
  std::vector<std::byte> into = Filled(10, 0);
  EXPECT_OK(ReadInto(reader, into, 1));
  owner.server.reset();
  const Status status = ReadInto(reader, into, 1);

  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_EQ(status.culprit(), 0);
  EXPECT_NE(status.message().find("rank 0 at 127.0.0.1"), std::string::npos) << status;
}

TEST(PartServer, an_owner_that_dies_while_a_reader_waits_is_named) {
  Owner owner(10);
  PartReader reader = owner.Reader();
  std::vector<std::byte> into = Filled(10, 0);
  Status status;
  std::thread thread([&] { status = ReadInto(reader, into, 1); });
  owner.server.reset();
  thread.join();

  EXPECT_EQ(status.code(), Code::kPeerLost) << status;
  EXPECT_EQ(status.culprit(), 0);
}

TEST(PartServer, an_owner_that_hangs_is_given_up) {
  auto listener = Listener::Open("127.0.0.1:0", PartSecret(), 0, 0);
  ASSERT_OK(listener);
  std::vector<UniqueFd> kept;
  (*listener)->SetHandler("parts", [&](AuthenticatedPeer peer) { kept.push_back(std::move(peer.fd)); });
  PartReader reader({(*listener)->address()}, PartSecret(), 1, std::chrono::milliseconds(100));
  std::vector<std::byte> into = Filled(10, 0);
  const Status status = ReadInto(reader, into, 1);
  (*listener)->RemoveHandler("parts");

  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_NE(status.message().find("silent for 100 ms"), std::string::npos) << status;
}

TEST(PartServer, a_version_that_does_not_come_is_a_timeout_of_its_owner) {
  Owner owner(10);
  EXPECT_OK(owner.server->Open(kPart, 1));
  PartReader reader = owner.Reader();
  std::vector<std::byte> into = Filled(10, 0);
  const Status status = ReadInto(reader, into, 2, After(std::chrono::milliseconds(300)));

  EXPECT_EQ(status.code(), Code::kTimedOut) << status;
  EXPECT_EQ(status.culprit(), 0);
}

TEST(PartServer, what_is_not_served_is_refused) {
  Owner owner(10);
  EXPECT_OK(owner.server->Open(kPart, 1));
  PartReader reader = owner.Reader();
  std::vector<std::byte> into = Filled(11, 0);
  EXPECT_EQ(ReadInto(reader, into, 1).code(), Code::kMismatch);
  const PartRead unknown{0, 99, 1, into};
  EXPECT_EQ(reader.Read({&unknown, 1}, Soon()).code(), Code::kMismatch);
  const PartRead nobody{1, kPart, 1, into};
  EXPECT_EQ(reader.Read({&nobody, 1}, Soon()).code(), Code::kInvalidArgument);
  EXPECT_EQ(owner.server->Open(99, 1).code(), Code::kInvalidArgument);

  PartReader stranger({owner.server->address()}, Secret{}, 1, std::chrono::seconds(60));
  EXPECT_EQ(ReadInto(stranger, into, 1).code(), Code::kInvalidArgument);
}

TEST(PartServer, messages_have_these_bytes) {
  const std::vector<std::byte> question = [] {
    const auto bytes = Encode(PartQuestion{1, 2, 3});
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  }();
  std::vector<std::byte> expected = Filled(kPartQuestionBytes, 0);
  expected[0] = std::byte{1};
  expected[8] = std::byte{2};
  expected[16] = std::byte{3};
  EXPECT_TRUE(question == expected);
  std::array<std::byte, kPartAnswerBytes> strange{};
  strange[0] = std::byte{9};
  EXPECT_EQ(DecodePartAnswer(strange).status().code(), Code::kInternal);
  const auto end = DecodePartEnd(Encode(PartEnd{PartKind::kGone, 77}));
  ASSERT_OK(end);
  EXPECT_EQ(end->checksum, 77u);
  EXPECT_TRUE(end->kind == PartKind::kGone);
}

}  // namespace
}  // namespace rabit
