"""Bugs of what travels with the negotiation: whose data, which part of it, and when there is enough."""

from __future__ import annotations

from faults.mutants.mutant import Mutant

CARRIED = "native/control/carried_data.cc"
ROUNDS = "native/control/coordinator_rounds.cc"
RESULT = "native/engine/agreed_result.cc"
DATA = "native:CarriedData"
INLINE = "native:EngineInline"

MUTANTS = [
    Mutant(
        "data is put together in the order in which it came",
        CARRIED,
        "  inputs_[member] = {bytes_.size(), data.size()};\n",
        "  inputs_[added_] = {bytes_.size(), data.size()};\n",
        (DATA,),
    ),
    Mutant(
        "more data is put together than an agreement takes",
        CARRIED,
        "  return carried != Carried::kOneByOne || bytes_.size() <= kCarriedBytesMax;\n",
        "  return true;\n",
        (DATA,),
    ),
    Mutant(
        "a broadcast takes the data of any rank",
        ROUNDS,
        "  if (is_of_root && !(ranks == RankSet(said.root)))",
        "  if (is_of_root && ranks.empty())",
        (DATA,),
    ),
    Mutant(
        "an alltoall that is not even is carried",
        ROUNDS,
        "  const bool is_carried = ready.joined.empty() && !is_cut_apart;\n",
        "  const bool is_carried = ready.joined.empty() && (is_cut_apart || true);\n",
        (INLINE,),
    ),
    Mutant(
        "the rows that go with data are lost",
        ROUNDS,
        "  if (!part.data.empty() && !HasVariablePart(record->agreed.kind))\n",
        "  if (!part.data.empty())\n",
        (INLINE,),
    ),
    Mutant(
        "each rank gets the first part of a reducescatter",
        RESULT,
        "    mine = mine.subspan(static_cast<size_t>(rows.Begin(group.my_index)) * row_bytes,\n",
        "    mine = mine.subspan(static_cast<size_t>(rows.Begin(0)) * row_bytes,\n",
        (INLINE,),
    ),
    Mutant(
        "each rank gets the first part of every input of an alltoall",
        RESULT,
        "  const std::byte* from = ready.data.data() + static_cast<size_t>(group.my_index) * part_bytes;\n",
        "  const std::byte* from = ready.data.data();\n",
        (INLINE,),
    ),
    Mutant(
        "an allgather counts its own input alone",
        RESULT,
        "  const int64_t times = carried == Carried::kOneByOne ? group.size() : 1;\n",
        "  const int64_t times = 1;\n",
        (INLINE,),
    ),
    Mutant(
        "a result of another size is written",
        RESULT,
        "  if (output.bytes() == bytes) return static_cast<std::byte*>(output.data);\n",
        "  if (output.data != nullptr) return static_cast<std::byte*>(output.data);\n",
        (INLINE,),
    ),
]
