#include "transport/group_transport.h"

#include "testing/inproc_transport.h"
#include "testing/test.h"
#include "testing/transport_conformance.h"

namespace rabit {
namespace {

// Keeps what the views borrow.
struct Support {
  std::vector<std::unique_ptr<Transport>> world;
  std::vector<Group> groups;
};

// The odd ranks of a world of 2 n + 1.
testing::TransportSet MakeGroup(int size) {
  auto support = std::make_shared<Support>();
  testing::InprocFabric fabric(2 * size + 1);
  Group group{.id = 7, .ranks = {}, .my_index = -1};
  for (int i = 0; i < size; ++i) group.ranks.push_back(2 * i + 1);
  testing::TransportSet set;
  for (int i = 0; i < size; ++i) {
    support->world.push_back(fabric.Connect(2 * i + 1));
    group.my_index = i;
    support->groups.push_back(group);
  }
  for (size_t i = 0; i < support->groups.size(); ++i) {
    set.ranks.push_back(std::make_unique<GroupTransport>(*support->world[i], support->groups[i]));
  }
  set.support = support;
  return set;
}

[[maybe_unused]] const int kGroupSuite =
    testing::RegisterTransportConformance({.suite = "GroupTransport", .make = MakeGroup});

}  // namespace
}  // namespace rabit
