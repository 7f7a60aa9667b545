#include "testing/simulator/controller_job.h"

#include <charconv>
#include <utility>

#include "base/check.h"

namespace rabit::testing {

ControllerJob::ControllerJob(const RankTree& tree, const Options& options)
    : tree_(tree),
      dice_(options.seed),
      network_(time_, dice_, tree_, {options.delay_us_max, 1}, [this](int rank) { Look(rank); }),
      ranks_(static_cast<size_t>(tree.size())) {
  for (int rank = 0; rank < size(); ++rank) {
    at(rank).controller = MakeController(network_.Connect(rank), tree_, options.controller, time_);
  }
}

void ControllerJob::AddGroup(Group group) {
  for (int rank = 0; rank < size(); ++rank) {
    group.my_index = group.IndexOf(rank);
    at(rank).controller->AddGroup(group);
    Look(rank);
  }
}

void ControllerJob::Announce(int rank, const Announcement& mine) {
  const Status said = at(rank).controller->Announce(mine);
  if (at(rank).failure.ok()) at(rank).failure = said;
  Look(rank);
}

void ControllerJob::Refuse(int rank, const TensorKey& key, const Status& why) {
  at(rank).controller->Refuse(key, why);
  Look(rank);
}

void ControllerJob::Abandon(int rank, const Status& why) {
  at(rank).controller->Abandon(why);
  Look(rank);
}

// As the engine's loop does, until there is nothing more to hear; and again when the controller
// would have ended its wait by itself.
void ControllerJob::Look(int rank) {
  Rank& mine = at(rank);
  for (;;) {
    Result<std::optional<Agreement>> agreement = mine.controller->Await(Deadline::max());
    if (!agreement.ok()) {
      if (mine.failure.ok()) mine.failure = agreement.status();
      return;
    }
    if (!*agreement) break;
    mine.agreed.push_back(**std::move(agreement));
  }
  const Deadline when = network_.waits_until(rank);
  if (when == mine.next_look || when == Deadline::max()) return;
  mine.next_look = when;
  time_.At(when, [this, rank] {
    at(rank).next_look = Deadline::max();
    Look(rank);
  });
}

Status ControllerJob::Deliver() {
  while (!network_.is_quiet()) time_.RunNext();
  return failure(0);
}

void ControllerJob::Pass(std::chrono::microseconds time) {
  bool is_over = false;
  time_.In(time, [&is_over] { is_over = true; });
  while (!is_over) time_.RunNext();
}

bool ControllerJob::PassOne() {
  if (!time_.has_events()) return false;
  time_.RunNext();
  return true;
}

std::string ControllerJob::StatisticsOf(int rank) const {
  JsonWriter json;
  at(rank).controller->WriteStatistics(json);
  return json.Take();
}

uint64_t ControllerJob::Counter(int rank, std::string_view name) const {
  const std::string text = StatisticsOf(rank);
  const std::string key = "\"" + std::string(name) + "\":";
  const size_t found = text.find(key);
  RABIT_CHECK(found != std::string::npos, "no statistic has this name");
  uint64_t value = 0;
  const char* digits = text.data() + found + key.size();
  const auto read = std::from_chars(digits, text.data() + text.size(), value);
  RABIT_CHECK(read.ec == std::errc(), "this statistic is no number");
  return value;
}

VirtualNetwork::Traffic ControllerJob::AllToRoot() const {
  VirtualNetwork::Traffic all;
  for (int child : tree_.children(0)) {
    all.messages += network_.sent(child, 0).messages;
    all.bytes += network_.sent(child, 0).bytes;
  }
  return all;
}

VirtualNetwork::Traffic ControllerJob::ToRoot() const {
  VirtualNetwork::Traffic all = AllToRoot();
  all.messages -= forgotten_to_.messages;
  all.bytes -= forgotten_to_.bytes;
  return all;
}

VirtualNetwork::Traffic ControllerJob::FromRoot() const {
  VirtualNetwork::Traffic one = network_.sent(0, tree_.children(0).front());
  one.messages -= forgotten_from_.messages;
  one.bytes -= forgotten_from_.bytes;
  return one;
}

void ControllerJob::ForgetTraffic() {
  forgotten_to_ = AllToRoot();
  forgotten_from_ = network_.sent(0, tree_.children(0).front());
}

}  // namespace rabit::testing
