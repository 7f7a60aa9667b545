#include "transport/group_transport.h"

#include <string>

#include "base/check.h"

namespace rabit {

GroupTransport::GroupTransport(Transport& transport, const Group& group)
    : transport_(transport), group_(group) {
  // Both are defects of ours: what a user can get wrong was refused at submission.
  RABIT_CHECK(group.is_member(), "rank " + std::to_string(transport.rank()) + " is not in group " +
                                     std::to_string(group.id));
  RABIT_CHECK(group.ranks[static_cast<size_t>(group.my_index)] == transport.rank(),
              "my_index of group " + std::to_string(group.id) + " is " +
                  std::to_string(group.my_index) + " on rank " + std::to_string(transport.rank()));
}

std::string_view GroupTransport::name_for(int peer) const {
  return HasPeer(peer) ? transport_.name_for(group_.ranks[static_cast<size_t>(peer)]) : name();
}

int64_t GroupTransport::cached_message_bytes(int peer) const {
  if (!HasPeer(peer)) return 0;
  return transport_.cached_message_bytes(group_.ranks[static_cast<size_t>(peer)]);
}

Operation GroupTransport::Send(int peer, Tag tag, ConstBytes buffer) {
  if (!HasPeer(peer)) return Operation(NoPeer(peer));
  return transport_.Send(group_.ranks[static_cast<size_t>(peer)], tag, buffer);
}

Operation GroupTransport::SendAnswered(int peer, Tag tag, ConstBytes buffer) {
  if (!HasPeer(peer)) return Operation(NoPeer(peer));
  return transport_.SendAnswered(group_.ranks[static_cast<size_t>(peer)], tag, buffer);
}

Operation GroupTransport::Recv(int peer, Tag tag, Bytes buffer) {
  if (!HasPeer(peer)) return Operation(NoPeer(peer));
  return transport_.Recv(group_.ranks[static_cast<size_t>(peer)], tag, buffer);
}

Operation GroupTransport::RecvReduce(int peer, Tag tag, Bytes buffer, Bytes scratch,
                                     PieceReducer reducer) {
  if (!HasPeer(peer)) return Operation(NoPeer(peer));
  // The tag is passed on as it is: a tag is of one bucket, and a bucket of one group, so groups
  // need no part of it.
  return transport_.RecvReduce(group_.ranks[static_cast<size_t>(peer)], tag, buffer, scratch,
                               reducer);
}

Status GroupTransport::NoPeer(int peer) const {
  return InvalidArgument("rank " + std::to_string(transport_.rank()) + ": group " +
                         std::to_string(group_.id) + " has no peer " + std::to_string(peer) +
                         ": this is member " + std::to_string(rank()) + " of " +
                         std::to_string(size()));
}

}  // namespace rabit
