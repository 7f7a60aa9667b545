// Both halves of a lane, driven by hand: what is rare, or never done by an honest peer.
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "testing/test.h"
#include "transport/shm/inbound_lane.h"
#include "transport/shm/inbox.h"
#include "transport/shm/outbound_lane.h"

namespace rabit {
namespace {

using Buffer = std::vector<std::byte>;

// The number of a process that has ended, so that nothing can be read from it.
pid_t EndedProcess() {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  waitpid(child, nullptr, 0);
  return child;
}

struct Lane {
  explicit Lane(pid_t pid = getpid(), bool is_checked = false)
      : inbox(std::move(Inbox::Create({.senders = 1, .streams = 1, .ring_bytes = 16384}).value())) {
    int sockets[2];
    (void)socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets);
    ours = std::make_unique<PeerProcess>(1, pid, UniqueFd(sockets[0]));
    theirs = UniqueFd(sockets[1]);
    memory = inbox.lane(0, 0);
    const LaneOptions options{.chunk_bytes = 4096,
                              .single_copy_min_bytes = is_checked ? ~uint64_t{0} : 8192,
                              .is_checked = is_checked};
    outbound = std::make_unique<OutboundLane>(memory, inbox.doorbell(0), options);
    inbound = std::make_unique<InboundLane>(memory, inbox.doorbell(0), *ours, is_checked);
  }
  // Until nothing moves any more.
  Status Progress() {
    uint64_t finished = 0;
    for (bool has_moved = true; has_moved;) {
      has_moved = outbound->Progress(finished);
      RABIT_RETURN_IF_ERROR(inbound->Progress(has_moved, finished));
    }
    return Status();
  }

  Inbox inbox;
  std::unique_ptr<PeerProcess> ours;
  UniqueFd theirs;
  LaneMemory memory;
  std::unique_ptr<OutboundLane> outbound;
  std::unique_ptr<InboundLane> inbound;
};

SendState SendOf(Tag tag, const Buffer& buffer) {
  SendState send;
  send.tag = tag;
  send.buffer = buffer;
  return send;
}

RecvState RecvOf(Tag tag, Buffer& buffer) {
  RecvState recv;
  recv.tag = tag;
  recv.buffer = buffer;
  return recv;
}

TEST(ShmLane, an_offer_that_cannot_be_read_is_sent_through_the_ring) {
  Lane lane(EndedProcess());
  const Buffer message(100000, std::byte{5});
  Buffer received(message.size());
  SendState send = SendOf(1, message);
  RecvState recv = RecvOf(1, received);
  lane.outbound->Queue(send);
  lane.inbound->Post(recv);

  EXPECT_OK(lane.Progress());

  EXPECT_TRUE(send.is_done && send.status.ok());
  EXPECT_TRUE(recv.is_done && recv.status.ok());
  EXPECT_TRUE(received == message);
}

TEST(ShmLane, a_cancelled_offer_fails_its_receive_and_the_next_message_arrives) {
  Lane lane;
  const Buffer first(50000, std::byte{1}), second(50000, std::byte{2});
  Buffer received(first.size());
  SendState send = SendOf(1, first);
  RecvState recv = RecvOf(1, received);
  lane.outbound->Queue(send);
  lane.inbound->Post(recv);

  lane.outbound->Cancel(send);
  EXPECT_OK(lane.Progress());

  EXPECT_TRUE(recv.is_done);
  EXPECT_EQ(recv.status.code(), Code::kAborted);
  EXPECT_EQ(recv.status.culprit(), 1);
  SendState next_send = SendOf(1, second);
  RecvState next_recv = RecvOf(1, received);
  lane.outbound->Queue(next_send);
  lane.inbound->Post(next_recv);
  EXPECT_OK(lane.Progress());
  EXPECT_TRUE(next_send.is_done && next_recv.is_done && received == second);
}

TEST(ShmLane, a_ring_takes_the_memory_that_it_uses) {
  constexpr uint32_t kRingBytes = 1 << 20;
  const Inbox inbox = *Inbox::Create({.senders = 1, .streams = 3, .ring_bytes = kRingBytes},
                                     Rings::kReservedByUse);
  const auto reserved_bytes = [&] {
    struct stat status{};
    EXPECT_EQ(fstat(inbox.fd(), &status), 0);
    return static_cast<uint32_t>(status.st_blocks) * 512;
  };
  const uint32_t heads = reserved_bytes();
  const LaneOptions options{.chunk_bytes = 65536, .single_copy_min_bytes = ~uint64_t{0}};
  OutboundLane outbound(inbox.lane(0, 1), inbox.doorbell(1), options);
  const Buffer tiny(kInlineBytes), small(100), large(300'000);
  SendState sends[] = {SendOf(1, tiny), SendOf(2, small), SendOf(3, large)};
  EXPECT_LT(heads, kRingBytes);

  outbound.Queue(sends[0]);
  EXPECT_EQ(reserved_bytes(), heads);
  outbound.Queue(sends[1]);
  EXPECT_EQ(reserved_bytes(), heads + 4096);
  outbound.Queue(sends[2]);
  EXPECT_EQ(reserved_bytes(), heads + 74 * 4096);

  for (const SendState& send : sends) EXPECT_TRUE(send.is_done && send.status.ok());
}

TEST(ShmLane, a_send_fails_when_no_memory_is_left_for_it) {
  Lane lane;
  const UniqueFd file(memfd_create("short", MFD_CLOEXEC));
  ASSERT_TRUE(ftruncate(file.get(), 8192) == 0);
  void* const short_memory =
      mmap(nullptr, 16384, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  LaneMemory memory = lane.memory;
  memory.data = static_cast<std::byte*>(short_memory);
  OutboundLane outbound(memory, lane.inbox.doorbell(0),
                        {.chunk_bytes = 4096, .single_copy_min_bytes = ~uint64_t{0}});
  const Buffer small(8), large(12'000);
  SendState send = SendOf(1, large);

  outbound.Queue(send);

  EXPECT_TRUE(send.is_done);
  EXPECT_EQ(send.status.code(), Code::kResourceExhausted);
  EXPECT_NE(send.status.message().find("reserving 4096 bytes of shared memory"), std::string::npos)
      << send.status;
  EXPECT_EQ(lane.memory.slots[2].kind, SlotKind::kBroken);
  EXPECT_TRUE(outbound.TrySendNow(2, small));
  munmap(short_memory, 16384);
}

TEST(ShmLane, messages_nobody_receives_are_set_aside_up_to_a_limit) {
  Lane lane;
  const Buffer message(4096, std::byte{1});
  Buffer received(message.size());
  RecvState recv = RecvOf(~Tag{0}, received);
  lane.inbound->Post(recv);

  Status status;
  for (Tag tag = 0; tag < 5000 && status.ok(); ++tag) {
    lane.outbound->TrySendNow(tag, message);
    status = lane.Progress();
  }

  EXPECT_EQ(status.code(), Code::kResourceExhausted);
}

void Flip(void* memory, size_t bit) {
  static_cast<std::byte*>(memory)[bit / 8] ^= std::byte{1} << (bit % 8);
}

// Of a message of `length` bytes whose memory `damage` changes on its way, with all parts of it in
// the ring already.
Status Received(const Buffer& message, Buffer& received,
                const std::function<void(const LaneMemory&)>& damage) {
  Lane lane(getpid(), true);
  SendState send = SendOf(1, message);
  RecvState recv = RecvOf(1, received);
  lane.outbound->Queue(send);
  lane.inbound->Post(recv);
  damage(lane.memory);
  const Status status = lane.Progress();
  EXPECT_EQ(recv.is_done, status.ok());
  lane.inbound->FailAll(Aborted("end of the test"));
  return status;
}

TEST(ShmLane, a_checked_lane_finds_every_flipped_bit) {
  for (const size_t length : {size_t{0}, size_t{24}, size_t{25}, size_t{5000}}) {
    Buffer message(length);
    for (size_t i = 0; i < length; ++i) message[i] = static_cast<std::byte>(i * 7);
    Buffer received(length);
    EXPECT_OK(Received(message, received, [](const LaneMemory&) {}));
    EXPECT_TRUE(received == message);

    const size_t chunks = length <= kInlineBytes ? 0 : (length + 4095) / 4096;
    for (size_t chunk = 0; chunk < std::max<size_t>(chunks, 1); ++chunk) {
      const size_t in_slot = length < kInlineBytes ? length : chunks > 0 ? 4 : kInlineBytes;
      const size_t slot_bits = (offsetof(Slot, inline_data) + in_slot) * 8;
      for (size_t bit = sizeof(Slot::stamp) * 8; bit < slot_bits; ++bit) {
        // Of an argument that carries the checksum of an inline message, the half that does.
        const size_t argument = offsetof(Slot, argument) * 8;
        if (chunks == 0 && bit >= argument + 32 && bit < argument + 64) continue;
        const Status status = Received(message, received, [&](const LaneMemory& memory) {
          Flip(&memory.slots[chunk], bit);
        });
        EXPECT_EQ(status.code(), Code::kInternal) << length << chunk << bit;
        EXPECT_EQ(status.culprit(), 1);
      }
    }
    for (size_t bit = 0; chunks > 0 && bit < length * 8; bit += 61) {
      const Status status = Received(
          message, received, [&](const LaneMemory& memory) { Flip(memory.data, bit); });
      EXPECT_EQ(status.code(), Code::kInternal) << length << bit;
    }
  }
}

TEST(ShmLane, a_checked_lane_uses_nothing_of_a_chunk_that_has_changed) {
  const Buffer message(5000, std::byte{1});
  Buffer received(message.size());

  const Status status = Received(message, received, [](const LaneMemory& memory) {
    memory.data[4999] = std::byte{2};
  });

  EXPECT_NE(status.message().find("904 bytes of rank 1 have changed in shared memory"),
            std::string::npos)
      << status;
  EXPECT_EQ(received[4095], std::byte{1});
  EXPECT_EQ(received[4096], std::byte{0});
}

// Whatever another process writes into the ring: an error at worst.
TEST(ShmLane, random_slots_are_refused_without_touching_other_memory) {
  std::mt19937_64 random(42);
  const uint64_t numbers[] = {0, 1, 24, 25, 63, 64, 4096, 16384, 16385, 1u << 31, kNoOffer};
  const auto any = [&] { return numbers[random() % std::size(numbers)]; };
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    Lane lane(-1);
    std::vector<std::unique_ptr<Buffer>> buffers;
    std::vector<std::unique_ptr<RecvState>> receives;
    for (uint64_t i = 0; i < 6; ++i) {
      buffers.push_back(std::make_unique<Buffer>(std::min<uint64_t>(any(), 16385)));
      receives.push_back(std::make_unique<RecvState>(RecvOf(i % 3, *buffers.back())));
      lane.inbound->Post(*receives.back());
    }
    for (uint64_t i = 0; i < 12; ++i) {
      Slot& slot = lane.memory.slots[i];
      slot.tag = random() % 4;
      slot.message_bytes = any();
      slot.argument = random() % 2 == 0 ? random() % 3 : any();
      slot.chunk_bytes = static_cast<uint32_t>(any());
      slot.kind = static_cast<SlotKind>(random() % 7);
      slot.stamp.store(i + 1);
    }
    bool has_moved = false;
    uint64_t finished = 0;
    Status status;
    for (int i = 0; i < 4 && status.ok(); ++i) status = lane.inbound->Progress(has_moved, finished);
    if (status.code() == Code::kInternal || status.code() == Code::kResourceExhausted) ++refused;
    lane.inbound->FailAll(Aborted("end of the test"));
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace rabit
