// Requests that end with the agreement: it brings the result, and no lane takes part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/group.h"
#include "control/agreement.h"
#include "engine/pending_request.h"

namespace rabit {

// Whether the input goes with the announcement: of a collective of `group` that somebody waits for,
// and whose input and result have at most `bytes_max` bytes.  Others keep to the announcements of
// steady steps, which have one size whatever the tensors.
bool CarriesData(const Request& request, int64_t bytes_max, const Group& group);
// The input, prescaled if it is reduced, in place of what `data` holds.
void CopyInput(const Request& request, std::vector<std::byte>& data);

// Each makes the result that of `request`.
void SetResult(PendingRequest& request, int32_t number);
void SetResult(PendingRequest& request, int64_t number);
// Of a collective of `group` whose data was carried.
void SetResult(PendingRequest& request, const ReadyTensor& ready, const Group& group);

}  // namespace rabit
