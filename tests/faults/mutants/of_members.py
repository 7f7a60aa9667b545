"""Bugs of elastic jobs: of who continues, from which state, with which samples."""

from __future__ import annotations

from faults.mutants.mutant import Mutant

MEMBERSHIP = "rabit/rendezvous/membership.py"
NEXT_EPOCH = "rabit/rendezvous/next_epoch.py"
SURVIVORS = "rabit/rendezvous/survivors.py"
RECOVERY = "rabit/elastic/recovery.py"
STATE = "rabit/elastic/state.py"
RECORD = "tests/unit/rendezvous/test_membership.py"
STATES = "tests/unit/ops/test_elastic.py"
COPIES = "tests/unit/ops/test_elastic_replicas.py"
JOBS = "tests/launch/test_elastic.py"
KILLED = f"{JOBS}::test_the_others_go_on_when_one_is_killed[1]"

MUTANTS = [
    Mutant(
        "a change of the record that another one overtook is not repeated",
        SURVIVORS,
        "        if is_mine:\n            return changed",
        "        return changed",
        (RECORD,),
    ),
    Mutant(
        "a process that was given up is not told",
        SURVIVORS,
        "if member in membership.members or member in membership.left:",
        "if membership.members:",
        (RECORD,),
    ),
    Mutant(
        "who came and ended is a member",
        NEXT_EPOCH,
        "if member in membership.here and member not in membership.ended]",
        "if member in membership.here]",
        (RECORD,),
    ),
    Mutant(
        "an accusation excludes though another loss explains it",
        NEXT_EPOCH,
        "if not has_cause and all(member in membership.accused for member in missing):",
        "if all(member in membership.accused for member in missing):",
        (RECORD,),
    ),
    Mutant(
        "newcomers come before those that have the state",
        NEXT_EPOCH,
        "return (*kept, *more), frozenset(going[len(back) :]), taken",
        "return (*more, *kept), frozenset(going[len(back) :]), taken",
        (RECORD,),
    ),
    Mutant(
        "every rank takes the state of rank 0, and not the newest",
        STATE,
        "self.broadcast(max(range(len(ranks)), key=lambda number: (counts[number], ranks[number].begins)))",
        "self.broadcast(0)",
        (STATES,),
    ),
    Mutant(
        "ranks with residuals take the newest commit",
        STATE,
        "if self.is_local and chosen >= 0:",
        "if self.is_local and chosen < -1:",
        (STATES,),
    ),
    Mutant(
        "ranks with residuals do not commit together",
        "rabit/elastic/updates.py",
        "if self._store is None and not keeps_together:",
        "if self._store is None:",
        (STATES,),
    ),
    Mutant(
        "a commit counts though its copies have not arrived",
        STATE,
        "                self.step_back(1)  # It is not a commit: others may continue from the previous one.\n",
        "",
        (COPIES,),
    ),
    Mutant(
        "copies are not made anew when the ranks have changed",
        STATE,
        "        self._is_new = False\n        if self._has_replicas():\n",
        "        self._is_new = False\n        if self._has_replicas() and self._commits == 0:\n",
        (COPIES,),
    ),
    Mutant(
        "copies are kept on the host of their rank",
        "rabit/elastic/replicas.py",
        "for index in range(1, len(names))][:count]",
        "for index in range(len(names))][:count]",
        (COPIES,),
    ),
    Mutant(
        "who comes for a lost rank gets another commit",
        "rabit/elastic/replicas.py",
        "for at, parts in reversed(self._kept) if at == commit and seat in parts)",
        "for _, parts in self._kept if seat in parts)",
        (COPIES,),
    ),
    Mutant(
        "that one direction is cut off does not count for the other",
        NEXT_EPOCH,
        "            missed[other].add(each)\n",
        "",
        ("tests/unit/rendezvous/test_reach.py",),
    ),
    Mutant(
        "who comes for a newcomer has another seat",
        MEMBERSHIP,
        "return self.seats.get(member, member)",
        "return member",
        (RECORD,),
    ),
    Mutant(
        "commits share memory with the values",
        "rabit/elastic/renewal.py",
        "self._copy = copy.deepcopy(value, self._placed)",
        "self._copy = value",
        (STATES,),
    ),
    Mutant(
        "an interrupted commit stays half of two",
        STATE,
        "            self._saved = renewal.fill()\n            raise",
        "            raise",
        ("tests/unit/ops/test_elastic_renewal.py",),
    ),
    Mutant(
        "two arrays of a commit share the memory of one",
        "rabit/elastic/renewal.py",
        "self._places.setdefault(memories[1], memories[0]) == memories[0]",
        "True",
        ("tests/unit/ops/test_elastic_renewal.py",),
    ),
    Mutant(
        "a step that was begun is not undone after a loss",
        RECOVERY,
        "            self._state.restore()\n        if error is not None:",
        "        if error is not None:",
        (JOBS + " -k begun_is_undone",),
    ),
    Mutant(
        "ranks leave while others may need them for a step again",
        RECOVERY,
        'barrier(name="rabit.elastic.end")',
        "pass",
        (STATES,),
    ),
    Mutant(
        "losses in a row are survived for ever",
        RECOVERY,
        "        if self._resets > _RESETS_MAX:\n            raise error\n",
        "",
        (STATES,),
    ),
    Mutant(
        "rank 0 sees an update of the hosts alone",
        "rabit/elastic/updates.py",
        "answer = vote.wait()",
        "answer = vote.wait() if rank() else _IS_OUTDATED * self._sees_one(self._clock())",
        (STATES,),
    ),
    Mutant(
        "batches are committed as often as every rank's own clock says",
        "rabit/elastic/cadence.py",
        "wanted = self._wanted() if rank() == 0 else 0",
        "wanted = self._wanted()",
        ("tests/unit/ops/test_elastic_cadence.py",),
    ),
    Mutant(
        "the place in the data is not saved",
        "rabit/elastic/sampler.py",
        '"processed_num": self.processed_num}',
        '"processed_num": 0}',
        (JOBS + " -k every_sample_once",),
    ),
    Mutant(
        "samples that are left are dealt as those of the whole epoch",
        "rabit/elastic/sampler.py",
        "left = order[self.processed_num :]",
        "left = order",
        (STATES,),
    ),
    Mutant(
        "engines of a later epoch say that they are of the first",
        "rabit/session.py",
        "config, epoch=membership.epoch, pool=_state.pool",
        "config, epoch=1, pool=_state.pool",
        (KILLED,),
    ),
    Mutant(
        "the launcher writes no ends of processes",
        "rabit/launch/losses.py",
        "        held = self.change(end)\n",
        "",
        (KILLED,),
    ),
    Mutant(
        "members that meet wait for one whose end the launcher knows",
        "rabit/launch/losses.py",
        "            tell_end(self._store, held, number)\n",
        "            pass\n",
        (JOBS + " -k meet_it_again",),
    ),
    Mutant(
        "a job ends with as many ranks as it needs",
        "rabit/launch/losses.py",
        "end(held).strength < self._least:",
        "end(held).strength <= self._least:",
        (KILLED,),
    ),
    Mutant(
        "an optimizer continues in the memory of the commit",
        "rabit_torch/elastic/state.py",
        'copy.deepcopy(_whole(tensor, self._saved["tensors"][name]))',
        '_whole(tensor, self._saved["tensors"][name])',
        ("tests/frameworks/test_torch_elastic.py -k after_a_restore",),
    ),
]
