"""Bugs of connections: of checksums, acknowledgements, repetitions, epochs and secrets."""

from __future__ import annotations

from faults.mutants.mutant import Mutant

READ = "native/transport/tcp/tcp_link_read.cc"
WRITE = "native/transport/tcp/tcp_link_write.cc"
LINK = "native/transport/tcp/tcp_link.cc"
KEEP = "native/transport/tcp/tcp_link_keep.cc"
FAULTS = "native:TcpFaults:TcpChannel"
KEPT = "native:KeptLinks"

MUTANTS = [
    Mutant(
        "checksums of payloads are not compared",
        READ,
        "if (header_.is_checked() && payload_crc_ != header_.payload_crc) return OnCorruptFrame();",
        "if (header_.payload_bytes > kFramePayloadBytesMax) return OnCorruptFrame();",
        (FAULTS, "native:Flips"),
    ),
    Mutant(
        "checksums of frames' headers are not compared",
        "native/transport/tcp/frame.cc",
        "if (LoadLittle<uint32_t>(at + kCrcAt) != Crc32c(bytes.first(kCrcAt))) {",
        "if (bytes.empty()) {",
        ("native:Frame.",),
    ),
    Mutant(
        "frames are taken whatever their number is",
        READ,
        "    if (header_.sequence != expected) {\n",
        "    if (header_.sequence == ~expected) {\n",
        (FAULTS,),
    ),
    Mutant(
        "what follows a corrupt frame is taken before it comes again",
        READ,
        "  awaits_resend_ = true;\n",
        "",
        (FAULTS,),
    ),
    Mutant(
        "a corrupt frame is not asked for again",
        READ,
        "  owes_nack_ = true;\n",
        "",
        (FAULTS,),
    ),
    Mutant(
        "frames are never acknowledged for their number",
        READ,
        "      bytes_since_ack_ >= kBytesPerAck) {\n    owes_ack_ = true;\n",
        "      bytes_since_ack_ >= kBytesPerAck) {\n",
        (FAULTS, "native:TcpTransport"),
    ),
    Mutant(
        "acknowledgements of frames that were not sent are believed",
        "native/transport/tcp/send_queue.cc",
        "  if (ack > written_end_) return false;\n",
        "  ack = std::min(ack, written_end_);\n",
        ("native:SendQueue",),
    ),
    Mutant(
        "a new connection continues where the old one stopped writing",
        READ,
        "  queue_.Rewind(queue_.first());\n",
        "",
        (FAULTS,),
    ),
    Mutant(
        "a link that was used before does not answer a peer for which it is new",
        READ,
        "  owes_hello_ = !has_greeted_;\n",
        "",
        ("native:KeptLinks",),
    ),
    Mutant(
        "borrowed memory is given back before its frames are acknowledged",
        "native/transport/tcp/send_queue.cc",
        "frame.finishes_when_written = is_copied;",
        "frame.finishes_when_written = true;",
        (FAULTS,),
    ),
    Mutant(
        "a peer that is silent is waited for",
        "native/transport/tcp/tcp_link_health.cc",
        "  const Deadline end = last_heard_.load() + limit;\n",
        "  const Deadline end = last_heard_.load() + limit * 1000;\n",
        ("native:TcpChannel",),
    ),
    Mutant(
        "a peer that is silent is looked at with the next beat",
        "native/transport/tcp/heartbeat.h",
        "look_ = std::min(look_, end); }",
        "if (end == Deadline{}) look_ = end; }",
        ("native:TcpSilence",),
    ),
    Mutant(
        "frames of an earlier epoch are taken",
        READ,
        "  if (header_.epoch != id_.epoch) return IsOfAnotherEpoch();\n",
        "",
        (KEPT,),
    ),
    Mutant(
        "the listener lets in processes of an earlier epoch",
        "native/rendezvous/listener.cc",
        "const bool is_refused = stranger.claimed.epoch < epoch ||\n                          (stranger",
        "const bool is_refused = (stranger",
        (KEPT, "native:Listener"),
    ),
    Mutant(
        "half a frame is left on a connection that is kept",
        KEEP,
        "  kept.unsent = RestOfFrame();\n",
        "",
        (KEPT, "native:Pool.survivors"),
    ),
    Mutant(
        "what was read too far is dropped with the engine",
        KEEP,
        "  staged_end_ = socket.unread.size();\n",
        "",
        (KEPT, "native:Pool.survivors"),
    ),
    Mutant(
        "the rest of a payload that nobody reads is taken for a header",
        KEEP,
        "  if (socket.to_discard == 0) return;\n",
        "  if (socket.to_discard < kFramePayloadBytesMax) return;\n",
        (KEPT, "native:Pool.survivors"),
    ),
    Mutant(
        "proofs of strangers are not compared",
        "native/rendezvous/listener.cc",
        "    if (!EqualInConstantTime(ConstBytes(stranger.input).subspan(kHelloBytes),\n"
        "                             stranger.expected_proof)) {",
        "    if (stranger.input.empty()) {",
        ("native:Listener",),
    ),
    Mutant(
        "whoever answers is believed to hold the secret",
        "native/rendezvous/handshake.cc",
        "  if (!EqualInConstantTime(ReplyMac(secret, hello, reply),\n"
        "                           ConstBytes(reply).subspan(kSignedReplyBytes))) {",
        "  if (secret.key.empty()) {",
        ("native:Handshake",),
    ),
]
