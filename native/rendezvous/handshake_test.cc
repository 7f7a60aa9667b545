#include "rendezvous/handshake.h"

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "base/wire.h"
#include "testing/test.h"
#include "testing/testdata.h"

namespace rabit {
namespace {

std::string Hex(ConstBytes bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (std::byte byte : bytes) {
    text += kDigits[std::to_integer<unsigned>(byte) >> 4];
    text += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

Secret TestSecret(uint8_t first = 1) {
  Secret secret;
  for (size_t i = 0; i < secret.key.size(); ++i) secret.key[i] = static_cast<uint8_t>(first + i);
  return secret;
}

Nonce TestNonce(uint8_t value) {
  Nonce nonce;
  nonce.fill(static_cast<std::byte>(value));
  return nonce;
}

const Greeting kGreeting = {"channel", 7, 3, 2};

// The bytes on the wire may only change together with the version.  The fixture comes from
// Python's hmac module: secret 01 02 .. 20, nonces aa.. and bb..
TEST(Handshake, bytes_are_those_of_the_frozen_fixture) {
  const auto path = testing::Testdata("rendezvous/testdata/handshake_v1.txt");
  std::ifstream file(path);
  ASSERT_TRUE(file.is_open()) << path.string();
  std::string name, hello_hex, reply_hex, proof_hex;
  file >> name >> hello_hex >> name >> reply_hex >> name >> proof_hex;

  const Hello hello = EncodeHello(kGreeting, TestNonce(0xaa));
  const Reply reply = EncodeReply(TestSecret(), hello, {7, 0, false}, TestNonce(0xbb));
  EXPECT_EQ(Hex(hello), hello_hex);
  EXPECT_EQ(Hex(reply), reply_hex);
  EXPECT_EQ(Hex(MakeProof(TestSecret(), hello, reply)), proof_hex);
}

TEST(Handshake, greeting_and_answer_come_through) {
  const Hello hello = EncodeHello(kGreeting, TestNonce(1));
  auto greeting = DecodeHello(hello);
  ASSERT_OK(greeting);
  EXPECT_EQ(greeting->purpose, "channel");
  EXPECT_EQ(greeting->epoch, 7u);
  EXPECT_EQ(greeting->rank, 3);
  EXPECT_EQ(greeting->stream, 2);

  auto answer = DecodeReply(TestSecret(), hello,
                            EncodeReply(TestSecret(), hello, {9, 5, true}, TestNonce(2)));
  ASSERT_OK(answer);
  EXPECT_EQ(answer->epoch, 9u);
  EXPECT_EQ(answer->rank, 5);
  EXPECT_TRUE(answer->is_refused);
}

TEST(Handshake, every_changed_bit_of_the_reply_is_found) {
  const Hello hello = EncodeHello(kGreeting, TestNonce(1));
  const Reply reply = EncodeReply(TestSecret(), hello, {7, 0, false}, TestNonce(2));
  for (size_t i = 0; i < reply.size() * 8; ++i) {
    Reply changed = reply;
    changed[i / 8] ^= static_cast<std::byte>(1 << (i % 8));
    EXPECT_FALSE(DecodeReply(TestSecret(), hello, changed).ok()) << i;
  }
}

TEST(Handshake, every_changed_bit_of_the_hello_changes_reply_and_proof) {
  const Hello hello = EncodeHello(kGreeting, TestNonce(1));
  const Reply reply = EncodeReply(TestSecret(), hello, {7, 0, false}, TestNonce(2));
  const Digest proof = MakeProof(TestSecret(), hello, reply);
  for (size_t i = 0; i < hello.size() * 8; ++i) {
    Hello changed = hello;
    changed[i / 8] ^= static_cast<std::byte>(1 << (i % 8));
    EXPECT_FALSE(DecodeReply(TestSecret(), changed, reply).ok()) << i;
    EXPECT_FALSE(MakeProof(TestSecret(), changed, reply) == proof) << i;
  }
}

TEST(Handshake, a_wrong_secret_is_told_in_words) {
  const Hello hello = EncodeHello(kGreeting, TestNonce(1));
  const Reply reply = EncodeReply(TestSecret(1), hello, {7, 0, false}, TestNonce(2));

  const Status status = DecodeReply(TestSecret(2), hello, reply).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("holds another secret"), std::string::npos) << status;
}

TEST(Handshake, another_version_is_told_with_both_numbers) {
  Hello hello = EncodeHello(kGreeting, TestNonce(1));
  StoreLittle<uint16_t>(hello.data() + 4, 9);

  const Status status = DecodeHello(hello).status();
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_NE(status.message().find("version 9, this process version 1"), std::string::npos)
      << status;
}

TEST(Handshake, random_hellos_are_refused) {
  std::mt19937 random(11);
  for (int round = 0; round < 10'000; ++round) {
    Hello hello;
    for (std::byte& byte : hello) byte = static_cast<std::byte>(random());
    if (round % 2 == 0) {  // past the first check
      const Hello valid = EncodeHello(kGreeting, TestNonce(1));
      std::copy_n(valid.begin(), 8, hello.begin());
    }
    auto greeting = DecodeHello(hello);
    EXPECT_TRUE(!greeting.ok() || greeting->purpose.size() <= kPurposeBytesMax);
    EXPECT_FALSE(round % 2 == 1 && greeting.ok());
  }
}

TEST(Secret, hex_round_trips_and_errors_do_not_show_it) {
  auto secret = Secret::FromHex("000102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F");
  ASSERT_OK(secret);
  EXPECT_EQ(secret->key[31], 31);

  const std::string wrong = "zz" + std::string(62, 'a');
  EXPECT_EQ(Secret::FromHex(wrong).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Secret::FromHex(wrong).status().message().find("zz"), std::string::npos);
  EXPECT_NE(Secret::FromHex("abc").status().message().find("64"), std::string::npos);
}

}  // namespace
}  // namespace rabit
