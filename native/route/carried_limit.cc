#include "route/carried_limit.h"

#include <algorithm>

#include "base/dtype.h"
#include "base/measured.h"
#include "collective/allreduce.h"

namespace rabit {
namespace {

double CarriedCostMicros(const LinkModel& link, int size, int64_t bytes) {
  const double through_root = 2.0 * (size - 1) * static_cast<double>(bytes);
  // Where ranks share cores, the model counts the bytes of all ranks divided by the ranks.
  const double on_the_wire = link.is_crowded ? through_root / size : through_root;
  return on_the_wire / link.bytes_per_us + through_root / kCarriedBytesPerMicro;
}

double ExchangedCostMicros(const LinkModel& link, int size, int64_t bytes) {
  return ChooseAllreduceAlgorithm(link, size, bytes, false).cost_us(link, size, bytes);
}

}  // namespace

int64_t CarriedLimit(const LinkModel& link, int size, int64_t bytes_max) {
  int64_t limit = std::min(CarriedAnyway(size), bytes_max);
  while (limit < bytes_max) {
    const int64_t next = std::min(2 * limit, bytes_max);
    const double carried_us = CarriedCostMicros(link, size, next);
    if (kCarriedTimesCheaper * carried_us > ExchangedCostMicros(link, size, next)) break;
    limit = next;
  }
  return limit;
}

}  // namespace rabit
