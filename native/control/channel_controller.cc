#include "control/channel_controller.h"

#include <utility>

#include "control/lone_channel.h"
#include "control/root_controller.h"
#include "control/worker_controller.h"

namespace rabit {

std::unique_ptr<Controller> MakeController(std::unique_ptr<Channel> channel, const RankTree& tree,
                                           const ControllerOptions& options, const Clock& clock) {
  if (channel->rank() == 0)
    return std::make_unique<RootController>(std::move(channel), tree, options, clock);
  return std::make_unique<WorkerController>(std::move(channel), tree, options, clock);
}

std::unique_ptr<Controller> MakeLocalController(const ControllerOptions& options,
                                                const Clock& clock) {
  return MakeController(std::make_unique<LoneChannel>(), RankTree::Star(1), options, clock);
}

}  // namespace rabit
