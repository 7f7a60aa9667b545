#include "transport/shm/peer_process.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>

namespace rabit {

bool PeerProcess::IsAlive() const {
  std::byte unused;
  // The kernel closes the socket with the process, however that ends; a number of a process could
  // belong to a new one by now.
  const ssize_t n = recv(connection_.get(), &unused, 1, MSG_PEEK | MSG_DONTWAIT);
  return n > 0 || (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR));
}

bool PeerProcess::Read(uint64_t address, Bytes to) const {
  size_t done = 0;
  while (done < to.size()) {
    const iovec local{to.data() + done, to.size() - done};
    const iovec remote{reinterpret_cast<void*>(address + done), to.size() - done};
    const ssize_t n = process_vm_readv(pid_, &local, 1, &remote, 1, 0);
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  // Only a peer that lives now has had the number until now: the bytes are not those of another
  // process.
  return IsAlive();
}

}  // namespace rabit
