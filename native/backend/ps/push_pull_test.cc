#include "backend/ps/push_pull.h"

#include <chrono>
#include <string_view>
#include <vector>

#include "testing/test.h"

namespace rabit {
namespace {

// Notes what is sent, and receives at once.
class RecordingTransport final : public Transport {
 public:
  struct Message {
    int peer;
    size_t bytes;
  };

  std::string_view name() const override { return "recording"; }
  int rank() const override { return 0; }
  int size() const override { return 8; }
  Operation Send(int peer, Tag, ConstBytes buffer) override {
    sent_.push_back({peer, buffer.size()});
    return Status();
  }
  Operation Recv(int, Tag, Bytes) override { return Status(); }
  void Abort(Status) override {}
  TransportCounters counters() const override { return {}; }

  const std::vector<Message>& sent() const { return sent_; }

 private:
  std::vector<Message> sent_;
};

// What worker `my_index` of four pushes to three servers, which are ranks 4 to 6.
std::vector<RecordingTransport::Message> PushesOf(int my_index, int64_t count) {
  RecordingTransport transport;
  std::vector<float> values(static_cast<size_t>(count));
  const std::vector<int> members = {0, 1, 2, 3};
  const std::vector<int> numbers = {0, 1, 2};
  Scratch scratch;
  const int64_t third = count / 3;
  const std::vector<Slice> slices = {{4, 0, third}, {5, third, third}, {6, 2 * third, third}};
  Holders holders(3, 1);
  std::vector<PlaceRoute> routes = {{0, 0}, {1, 0}, {2, 0}};
  const PushPullArgs args{.endpoints = transport,
                          .first_server = 4,
                          .server_numbers = numbers,
                          .members = members,
                          .my_index = my_index,
                          .group = kWorld,
                          .tag = MakeTag(0, 1),
                          .deadline = After(std::chrono::seconds(20)),
                          .in_out = {values.data(), count, DType::kFloat32, {}},
                          .op = ReduceOp::kSum,
                          .scratch = scratch,
                          .chunk_bytes_most = PsChunkBytesMax(4),
                          .holders = holders,
                          .routes = routes};
  PushPull run(args, slices, [](int, const Status& status) { return status; });
  EXPECT_OK(run.Run());
  return transport.sent();
}

TEST(PushPull, every_worker_begins_with_another_server) {
  for (int worker = 1; worker < 4; ++worker) {
    const auto sent = PushesOf(worker, 3 << 18);
    for (int turn = 0; turn < 6; ++turn) {
      EXPECT_EQ(sent[static_cast<size_t>(turn)].peer, 4 + (worker + turn) % 3);
    }
  }
}

TEST(PushPull, the_first_worker_says_before_what_comes) {
  const auto sent = PushesOf(0, 3 << 18);

  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(sent[i].bytes, sizeof(PushHeaderBytes));
  EXPECT_EQ(sent[3].peer, 4);
}

TEST(PushPull, a_slice_is_pushed_in_chunks_that_servers_have_room_for) {
  int64_t bytes = 0;
  const auto sent = PushesOf(2, 3 << 18);

  for (const auto& message : sent) {
    EXPECT_TRUE(static_cast<int64_t>(message.bytes) <= PsChunkBytesMax(4));
    bytes += static_cast<int64_t>(message.bytes);
  }
  EXPECT_EQ(bytes, int64_t{3} << 20);
  EXPECT_EQ(sent.size(), size_t{33});  // 1 MiB for each server, in chunks of 96 KiB
}

}  // namespace
}  // namespace rabit
