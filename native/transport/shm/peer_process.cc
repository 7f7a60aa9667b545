#include "transport/shm/peer_process.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>

namespace rabit {

bool PeerProcess::IsAlive() const {
  std::byte unused;
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
  return IsAlive();
}

}  // namespace rabit
