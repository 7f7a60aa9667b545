// Which frames a link keeps, and what it believes about those that have arrived.
#include "transport/tcp/send_queue.h"

#include <algorithm>

#include "testing/test.h"

namespace rabit {
namespace {

constexpr size_t kCopiedBytesMax = 100;

struct Sending {
  // One message of so many bytes more, in one frame.
  std::shared_ptr<Transfer> Push(size_t bytes, bool is_answered = false) {
    auto message = std::make_shared<Transfer>(true, MakeTag(0, 1), bytes, Stripe{});
    message->is_answered = is_answered;
    queue.Push(message, ConstBytes(data).first(bytes), 0);
    return message;
  }

  std::vector<std::byte> data = std::vector<std::byte>(1000);
  SendQueue queue{kCopiedBytesMax, 1 << 20};
  std::vector<std::shared_ptr<Transfer>> finished;
};

TEST(SendQueue, an_acknowledgement_of_what_was_never_written_is_refused) {
  Sending sending;
  EXPECT_FALSE(sending.queue.Acknowledge(1, sending.finished));

  const auto first = sending.Push(1000);
  const auto second = sending.Push(1000);
  EXPECT_FALSE(sending.queue.Acknowledge(1, sending.finished));
  (void)sending.queue.Written();
  EXPECT_FALSE(sending.queue.Acknowledge(2, sending.finished));
  EXPECT_FALSE(sending.queue.Acknowledge(3, sending.finished));

  // What was refused has changed nothing: the peer may be asked again for all of it.
  EXPECT_TRUE(sending.finished.empty());
  EXPECT_EQ(sending.queue.first(), 0u);
  EXPECT_EQ(sending.queue.end(), 2u);
  EXPECT_TRUE(sending.queue.Acknowledge(1, sending.finished));
  ASSERT_EQ(sending.finished.size(), size_t{1});
  EXPECT_TRUE(sending.finished[0] == first);
}

TEST(SendQueue, what_is_written_again_counts_as_written) {
  Sending sending;
  const auto first = sending.Push(1000);
  const auto second = sending.Push(1000);
  (void)sending.queue.Written();
  (void)sending.queue.Written();
  sending.queue.Rewind(0);

  EXPECT_TRUE(sending.queue.Acknowledge(2, sending.finished));
  EXPECT_EQ(sending.finished.size(), size_t{2});
  EXPECT_TRUE(sending.queue.Next() == nullptr);
}

TEST(SendQueue, a_copy_is_finished_when_it_is_written_and_borrowed_memory_when_it_has_arrived) {
  Sending sending;
  const auto small = sending.Push(kCopiedBytesMax);
  const auto large = sending.Push(kCopiedBytesMax + 1);

  EXPECT_TRUE(sending.queue.Written() == small);
  EXPECT_TRUE(sending.queue.Written() == nullptr);
  EXPECT_TRUE(sending.queue.Acknowledge(2, sending.finished));
  EXPECT_TRUE(std::find(sending.finished.begin(), sending.finished.end(), large) !=
              sending.finished.end());
}

bool AsksAt(SendQueue& queue, uint64_t sequence) {
  return (queue.At(sequence).header.flags & kFrameAckNow) != 0;
}

TEST(SendQueue, a_message_that_is_answered_asks_only_when_somebody_waits) {
  Sending sending;
  const auto plain = sending.Push(1000);
  const auto answered = sending.Push(1000, true);
  EXPECT_TRUE(AsksAt(sending.queue, 0));
  EXPECT_FALSE(AsksAt(sending.queue, 1));

  EXPECT_FALSE(sending.queue.AskFor(*plain));
  EXPECT_TRUE(sending.queue.AskFor(*answered));
  EXPECT_TRUE(AsksAt(sending.queue, 1));
  EXPECT_FALSE(sending.queue.AskFor(*answered));
}

TEST(SendQueue, nobody_asks_for_what_is_acknowledged) {
  Sending sending;
  const auto answered = sending.Push(1000, true);
  (void)sending.queue.Written();
  EXPECT_TRUE(sending.queue.Acknowledge(1, sending.finished));

  EXPECT_FALSE(sending.queue.AskFor(*answered));
}

}  // namespace
}  // namespace rabit
