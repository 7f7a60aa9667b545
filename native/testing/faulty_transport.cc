#include "testing/faulty_transport.h"

#include <thread>

namespace rabit {

Operation FaultyTransport::Send(int peer, Tag tag, ConstBytes buffer) {
  const uint64_t message = messages_.fetch_add(1);
  if (plan_.send_delay.count() > 0) std::this_thread::sleep_for(plan_.send_delay);
  if (message >= plan_.break_at_message) inner().Abort(plan_.failure);
  if (message == plan_.drop_message) return Operation(Status());
  return inner().Send(peer, tag, buffer);
}

}  // namespace rabit
