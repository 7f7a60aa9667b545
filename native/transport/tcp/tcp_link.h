// TcpLink: one reliable, ordered connection with one peer, over sockets that may break.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/operation.h"
#include "base/unique_fd.h"
#include "transport/link_keeper.h"
#include "transport/tcp/heartbeat.h"
#include "transport/tcp/send_queue.h"
#include "transport/tcp/tcp_inbox.h"
#include "transport/tcp/tcp_options.h"
#include "transport/tcp/tcp_stream.h"
#include "transport/transport.h"

namespace rabit {

struct TcpCounters {
  std::atomic<uint64_t> bytes_sent{0}, bytes_received{0}, messages_sent{0}, messages_received{0};
  std::atomic<uint64_t> frames_corrupt{0}, frames_resent{0}, connections_restored{0};
  std::atomic<uint64_t> frames_late{0};
};

// What a link tells its transport.  Called with the link's locks held, by any thread: an
// implementation must return at once and never call the link.
class TcpLinkHost {
 public:
  virtual ~TcpLinkHost() = default;
  virtual void OnBroken(int peer, int link) = 0;
  virtual void OnFailed(int peer, const Status& why) = 0;
  virtual void OnConnected() = 0;
  // A message is whole that no receive was posted for; only where options say keeps_messages.
  virtual void OnMessage() {}
};

// A sender writes from the calling thread while the socket takes it, and leaves the rest to whoever
// serves the stream: a thread that waits, or the I/O thread.  Payload is read straight into the
// posted buffer.  Thread-safe.
//
// Locks, in this order: receive, send, the stream's.  `socket_` and `failure_` change under both
// receive and send, and are read under either.
class TcpLink final : public TcpStream::Member {
 public:
  struct Id {
    int rank;
    int peer;
    int index;  // among the links with this peer
    Stripe stripe;
    uint32_t epoch = 0;       // the low bits of the engine's
    bool is_kept = false;     // the connection outlives the link
  };
  TcpLink(Id id, const TcpOptions& options, TcpCounters& counters, TcpStream& stream,
          TcpLinkHost& host);
  ~TcpLink() override;

  // Goes on over this connection, in place of the one before.
  void Attach(KeptSocket socket);
  void Attach(UniqueFd fd) { Attach(KeptSocket{.fd = std::move(fd)}); }
  // Tells the peer that nothing follows, and gives the connection back for a link of a later epoch;
  // empty if there is none.  The link fails with `why`, unless it has.
  std::optional<KeptSocket> Retire(const Status& why);
  // `is_answered`: the peer is not asked to acknowledge the message before somebody waits for that.
  std::shared_ptr<Transfer> Send(Tag tag, ConstBytes buffer, bool is_answered = false);
  std::shared_ptr<Transfer> Recv(Tag tag, Bytes buffer);
  Status Wait(const Transfer& transfer, Deadline deadline);
  void Cancel(const Transfer& transfer);
  // Sends a copy that nobody waits for.  kResourceExhausted: more than `queued_bytes_max` wait for
  // the peer.
  Status Post(Tag tag, ConstBytes message, size_t queued_bytes_max);
  // The oldest message with this tag that has arrived whole without a receive (keeps_messages).
  std::optional<std::vector<std::byte>> Take(Tag tag);
  // Fails every operation, now and later.  The first reason is kept.
  void Fail(const Status& why);
  // The same, but the peer is not to blame: its connection can be kept.
  void Abort(const Status& why);
  // Says goodbye; the transfer is done when the peer has confirmed all that was sent.
  std::shared_ptr<Transfer> StartClose();
  // Whether the kernel has sent everything, the goodbye too, or there is no connection.
  bool HasSentAll();

  bool is_ready() const { return is_ready_.load(); }  // connected, and the peer has answered
  bool is_connected() const { return is_connected_.load(); }  // the peer may not have answered
  int peer() const { return id_.peer; }
  int index() const { return id_.index; }
  const Stripe& stripe() const { return id_.stripe; }
  // When a broken link gives its peer up; none while it is whole.
  std::optional<Deadline> outage_deadline();
  // Loses the peer if its outage is over at `now`.
  void CheckOutage(Deadline now);
  // Breaks a connection on which what was sent makes no way (TcpOptions::progress_timeout).
  void CheckProgress(Deadline now);
  // Breaks a connection on which nothing was heard for half of the time that a living peer may be
  // silent; after all of it the peer is lost.  Says when that will be, if nothing is heard until then.
  Deadline CheckSilence(Deadline now, const Heartbeat& heartbeat);
  // Why no other connection could be made so far; for the message, should it stay so.
  void NoteBrokenBy(const std::string& reason);
  // The peer has found the connection broken and asks for another.
  void Renew(Deadline now);
  // Shows the peer that this process is alive, and acknowledges what has come.
  void Beat();
  // The peer shows no sign of life any more: why, to be continued with what is known of the outage.
  void Lose(const std::string& why);
  void set_last_heard(Deadline when) { last_heard_.store(when); }
  bool has_left() const { return has_left_.load(); }  // the peer has said goodbye
  bool has_message() const { return messages_.load() > 0; }  // for Take
  bool has_failed() const { return has_failed_.load(); }
  Status failure();

  void Serve(uint32_t events) override;
  bool ReadNow() override;

 private:
  enum class ReadState { kHeader, kBegin, kPayload };
  // The frame that is being written.
  struct Writing {
    bool is_active = false;
    bool is_control = false;
    uint64_t sequence = 0;
    FrameHeaderBytes header{};
    size_t payload_bytes = 0;
    size_t done = 0;  // bytes of header and payload
    FrameFault fault = FrameFault::kNone;
    std::vector<std::byte> altered;  // payload with a flipped bit
  };

  // tcp_link.cc
  void Resume();                          // reads again after a pause
  void Break(const std::string& reason);  // both locks are taken inside; receive is held
  void FailLocked(const Status& why, bool keep_arrived);  // receive and send are held
  void DropSocket();                                      // receive and send are held
  void ResetConnection();                                 // receive and send are held
  Status Lost(const std::string& reason) const;
  std::string PeerText() const;
  Status NotFinished(const Transfer& transfer);

  // tcp_link_keep.cc
  void SetAside();               // receive and send are held
  void SendAside();              // send is held
  std::vector<std::byte> RestOfFrame();  // send is held
  void GoOnFrom(KeptSocket& socket);     // receive and send are held
  bool WriteLeftover();                  // send is held; whether nothing is left
  bool IsOfAnotherEpoch();               // receive is held

  bool HasUnconfirmed() const;            // send is held
  uint64_t BytesTaken() const;            // by the peer's kernel, at least; send is held
  bool IsStalled(Deadline now);           // asks the peer first; send is held

  // tcp_link_read.cc; receive is held
  bool ReadAvailable();               // whether anything came
  bool ReadSocket(bool& is_drained);  // false: nothing more to do
  bool ConsumeStaged();               // false: paused or broken
  bool TakeHeader();
  bool BeginFrame();
  bool HandleControl();
  void OnHello();   // send is held too
  void OnAnswer();  // the same: frames can go out now
  bool FinishFrame();
  bool OnCorruptFrame();
  bool OnGoodbye();
  void OnLeave(const std::string& why);
  bool ApplyAck();
  void AddPayload(ConstBytes piece);
  void AnswerPeer();
  bool MustPause();
  bool IsWaitedFor();
  void CountReceived(const Transfer& transfer);
  size_t staged() const { return staged_end_ - staged_begin_; }
  std::byte* PayloadEnd();

  // tcp_link_write.cc; send is held
  void Flush();
  void AskFor(const Transfer& transfer);
  bool StartFrame();
  bool StartControl();
  void StartNumbered(OutFrame& frame);
  bool WriteSome();  // false: blocked or failed
  void EndWriting();
  void FinishWriting();
  void FinishSend(Transfer& transfer, Status status);
  void ApplyFault(const OutFrame& frame);

  const Id id_;
  const TcpOptions& options_;
  TcpCounters& counters_;
  TcpStream& stream_;
  TcpLinkHost& host_;

  Mutex receive_mutex_;
  Mutex send_mutex_;
  std::shared_ptr<UniqueFd> socket_;
  Status failure_;
  std::atomic<bool> is_connected_{false};
  std::atomic<bool> is_ready_{false};
  bool was_ready_ = false;  // some connection was
  bool is_closing_ = false;
  int connections_without_progress_ = 0;
  Deadline attached_{};  // when the connection was made
  std::optional<Deadline> outage_deadline_;
  std::string break_reason_;

  // Receive lock.
  TcpInbox inbox_;
  ReadState read_state_ = ReadState::kHeader;
  FrameHeader header_;
  bool is_discarding_ = false;  // the frame that arrives is a copy of one that arrived before
  bool awaits_resend_ = false;
  int corrupt_copies_ = 0;  // of the frame that is expected
  uint64_t corrupt_total_ = 0;
  size_t payload_done_ = 0;
  uint32_t payload_crc_ = 0;
  uint64_t last_ack_ = 0;
  size_t frames_since_ack_ = 0;
  size_t bytes_since_ack_ = 0;
  bool owes_ack_ = false;
  bool owes_nack_ = false;
  bool has_hung_up_ = false;  // the end of the stream is near: a short read may precede it
  std::vector<std::byte> staging_;
  size_t staged_begin_ = 0;
  size_t staged_end_ = 0;
  std::vector<std::byte> scrap_;  // where discarded payload goes

  std::atomic<uint64_t> expected_{0};  // sequence of the next frame; written under receive
  std::atomic<bool> is_paused_{false};
  std::atomic<Deadline> last_heard_{};
  std::atomic<bool> has_left_{false};
  std::atomic<bool> has_failed_{false};
  std::atomic<size_t> messages_{0};

  Mutex waits_mutex_;  // taken after all others
  std::vector<const Transfer*> waits_ RABIT_GUARDED_BY(waits_mutex_);

  std::atomic<bool> has_write_error_{false};
  std::atomic<size_t> sends_in_flight_{0};

  // Send lock.
  SendQueue queue_;
  Writing writing_;
  bool owes_hello_ = false;
  bool has_greeted_ = false;    // the peer, on this connection
  bool was_greeted_ = false;    // by the peer
  bool peer_answered_ = false;  // or need not, on a connection that both have used before
  bool must_write_ack_ = false;
  bool wants_answer_ = false;  // to the next acknowledgement that is written
  std::optional<uint64_t> must_write_nack_;
  std::optional<uint64_t> must_rewind_;
  LinkTuning tuning_;           // of this connection
  bool checks_payload_ = true;  // on this connection
  uint64_t bytes_written_ = 0;  // of numbered frames, on this connection

  // Send lock; what CheckProgress saw last.
  struct Progress {
    uint64_t first = 0;  // frame that is not acknowledged
    uint64_t bytes_taken = 0;
    Deadline since{};
    bool has_asked = false;
    int stalls = 0;         // in a row
    int deaf_stalls = 0;    // of these, those on which nothing but the hello arrived
  };
  Progress progress_;

  std::vector<std::byte> leftover_;  // send lock; of the link before, precedes the hello
  size_t leftover_done_ = 0;
  std::optional<KeptSocket> kept_;  // both locks
};

}  // namespace rabit
