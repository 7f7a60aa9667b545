"""States and samplers of elastic jobs, without losses."""

from __future__ import annotations

import collections
import contextlib
import copy
import re
import threading

import numpy as np
import pytest
from support.memory_store import MemoryStore

import rabit
from rabit import InvalidArgument
from rabit.elastic import (
    ElasticSampler,
    HostsUpdatedInterrupt,
    ObjectState,
    batches,
    recovery,
    run,
)
from rabit.elastic import updates as updates_of_elastic
from rabit.elastic.updates import Updates
from rabit.ops.votes import Vote
from rabit.rendezvous.membership import Membership
from rabit.testing import run_ranks


def test_a_state_goes_back_to_its_last_commit():
    state = ObjectState(step=3, weights=np.arange(4.0), names=["a"])
    state.commit()
    state.step = 9
    state.weights += 1
    state.names.append("b")

    state.restore()

    assert (state.step, state.names, state._commits) == (3, ["a"], 1)
    assert state.weights.tolist() == [0, 1, 2, 3]


def test_what_changes_after_a_restore_does_not_reach_the_commit():
    state = ObjectState(weights=np.zeros(2))
    for _ in range(2):
        state.restore()
        state.weights += 1

    state.restore()

    assert state.weights.tolist() == [0, 0]


@pytest.mark.parametrize("name", ["commit", "sync", "is_local", "register_reset_callbacks", "_saved"])
def test_values_do_not_take_the_place_of_what_the_state_has(name):
    with pytest.raises(InvalidArgument, match=f"ObjectState: .* is called {name}. Give the value another name"):
        ObjectState(step=0, **{name: 3})


def test_what_cannot_be_copied_is_told_by_name():
    text = "ObjectState: the value at ['values']['d']['lock'] of type lock cannot be copied: cannot pickle"
    with pytest.raises(InvalidArgument, match=re.escape(text)):
        ObjectState(step=0, d={"lock": threading.Lock()})


def test_all_ranks_take_the_newest_commit():
    def fn(engine):
        state = ObjectState(step=engine.rank, weights=np.full(3, engine.rank))
        for _ in range(min(engine.rank, 2)):
            state.commit()
        state.sync()
        state.step = -1
        state.restore()
        return state.step, state.weights.tolist(), state._commits

    # Ranks 2 and 3 have two commits; the lower of them counts.
    assert run_ranks(4, fn) == [(2, [2, 2, 2], 2)] * 4


def test_reset_callbacks_run_in_their_order_after_the_values_have_adapted():
    state = ObjectState(step=0)
    seen = []
    state.register_reset_callbacks([lambda: seen.append("a"), lambda: seen.append("b")])

    state.on_reset()

    assert seen == ["a", "b"]


def taken(engine, sampler, batches, batch_size):
    found = []
    for _ in range(batches):
        sampler.reset()
        rows = list(sampler)[:batch_size]
        found += rows
        sampler.record_batch(0, batch_size)
    return found


@pytest.mark.parametrize("shuffle", [True, False])
def test_every_sample_comes_once_though_the_ranks_change(shuffle):
    def before(engine):
        sampler = ElasticSampler(range(48), shuffle=shuffle, seed=5)
        return taken(engine, sampler, 2, 4), sampler.state_dict()

    first = run_ranks(3, before)

    def after(engine):
        sampler = ElasticSampler(range(48), shuffle=shuffle, seed=5)
        sampler.load_state_dict(first[0][1])
        return taken(engine, sampler, 3, 4)

    rest = run_ranks(2, after)
    seen = [row for rows, _ in first for row in rows] + [row for rows in rest for row in rows]
    assert sorted(seen) == list(range(48))
    assert (seen != sorted(seen)) or not shuffle


def test_the_last_samples_come_twice_rather_than_not_for_all():
    def fn(engine):
        sampler = ElasticSampler(range(9), shuffle=False)
        sampler.load_state_dict({"epoch": 0, "processed_num": 8})
        return list(sampler), len(sampler)

    assert run_ranks(4, fn) == [([8], 1)] * 4


def test_an_epoch_that_is_through_has_nothing_left():
    def fn(engine):
        sampler = ElasticSampler(range(6))
        sampler.load_state_dict({"epoch": 0, "processed_num": 6})
        return list(sampler)

    assert run_ranks(2, fn) == [[], []]


def test_epochs_have_orders_of_their_own():
    def fn(engine):
        sampler = ElasticSampler(range(64))
        first = list(sampler)
        sampler.set_epoch(1)
        return first, list(sampler)

    (first, second), (other, _) = run_ranks(2, fn)
    assert first != second and not set(first) & set(other)


def test_run_calls_the_function_with_the_state_of_the_lowest_rank():
    @run
    def train(state, factor, *, plus):
        return state.step * factor + plus

    def fn(engine):
        return train(ObjectState(step=engine.rank + 5), 10, plus=1)

    assert run_ranks(3, fn) == [51, 51, 51]


def test_without_a_state_run_says_what_is_missing():
    def fn(engine):
        with pytest.raises(InvalidArgument, match="the first argument of train is int"):
            run(train)(3)

    def train(state):
        return state

    run_ranks(1, fn)


def test_an_error_in_a_job_that_is_not_elastic_is_raised():
    @run
    def train(state):
        raise rabit.PeerLost("rank 1 is gone", 1)

    def fn(engine):
        with pytest.raises(rabit.PeerLost, match="rank 1 is gone"):
            train(ObjectState(step=0))

    run_ranks(1, fn)


@pytest.mark.parametrize(("count", "sizes"), [(24, [4, 4]), (20, [4, 3]), (5, [3])], ids=str)
def test_batches_are_those_of_all_epochs_and_are_committed(count, sizes):
    def fn(engine):
        sampler = ElasticSampler(range(count), seed=engine.size)
        state = ObjectState(sampler=sampler, steps=0)
        seen = []
        for batch in batches(sampler, state, batch_size=4, epochs=2):
            with batch as rows:
                seen.append(rows)
                state.steps += 1
        return seen, state._commits, state.steps, sampler.state_dict()

    # Of three ranks: each gets as many as the others, the last samples perhaps twice.
    found = run_ranks(3, fn)
    for seen, commits, steps, position in found:
        assert [len(rows) for rows in seen] == [min(n, -(-count // 3)) for n in sizes] * 2
        assert commits == steps == 2 * len(sizes)
        assert position == {"epoch": 2, "processed_num": 0}
    for epoch in range(2):
        rows = [r for seen, *_ in found for b in seen[epoch * len(sizes) :][: len(sizes)] for r in b]
        assert sorted(set(rows)) == list(range(count))


def test_batches_go_on_where_a_state_is():
    def fn(engine):
        sampler = ElasticSampler(range(16), shuffle=False)
        sampler.load_state_dict({"epoch": 3, "processed_num": 8})
        state = ObjectState(sampler=sampler)
        seen = []
        for batch in batches(sampler, state, batch_size=2, epochs=4):
            with batch as rows:
                seen.append(rows)
        return seen

    assert run_ranks(2, fn) == [[[8, 10], [12, 14]], [[9, 11], [13, 15]]]


def test_an_error_of_the_program_leaves_the_loop():
    def fn(engine):
        sampler = ElasticSampler(range(4))
        state = ObjectState(sampler=sampler)
        with pytest.raises(ValueError, match="no such sample"):
            for batch in batches(sampler, state, batch_size=2):
                with batch:
                    raise ValueError("no such sample")
        return state._commits, state._updates

    assert run_ranks(1, fn) == [(0, None)]


def test_a_batch_that_is_not_entered_is_told():
    def fn(engine):
        sampler = ElasticSampler(range(4))
        with pytest.raises(InvalidArgument, match="Write 'with batch as rows:'"):
            for _ in batches(sampler, ObjectState(sampler=sampler), batch_size=2):
                pass

    run_ranks(1, fn)


def test_a_state_without_the_sampler_is_told():
    def fn(engine):
        with pytest.raises(InvalidArgument, match="the state does not hold the sampler"):
            batches(ElasticSampler(range(4)), ObjectState(step=0), batch_size=2)

    run_ranks(1, fn)


def test_nobody_leaves_before_all_have_come_to_the_end():
    """A rank that is lost in the last step makes the others repeat it, and they need each other."""
    is_through, has_left = threading.Event(), threading.Event()

    @run
    def train(state):
        if rabit.rank() == 0:
            is_through.set()
            return False
        assert is_through.wait(30)
        return has_left.wait(0.3)

    def fn(engine):
        found = train(ObjectState(step=0))
        if rabit.rank() == 0:
            has_left.set()
        return found

    assert run_ranks(2, fn) == [False, False]


class LosesAlways:
    """The recovery of an elastic job whose every attempt ends in a loss; without processes."""

    def __init__(self, monkeypatch):
        monkeypatch.setattr(recovery, "member_number", lambda: 0)
        monkeypatch.setattr(recovery, "membership_store", lambda *_: contextlib.closing(self))
        monkeypatch.setattr(recovery.Recovery, "__exit__", lambda *_: None)
        monkeypatch.setattr(recovery.Recovery, "_start_over", lambda *_: None)
        self.calls = 0

    def __call__(self, state, commits):
        self.calls += 1
        assert self.calls < 100, "it continues for ever"
        if self.calls <= commits:
            state.commit()
        raise rabit.PeerLost("rank 1 is gone", 1)


@pytest.mark.parametrize("commits", [0, 10])
def test_losses_that_come_back_each_time_are_raised(monkeypatch, commits):
    train = LosesAlways(monkeypatch)

    def fn(engine):
        with pytest.raises(rabit.PeerLost, match="rank 1 is gone"):
            run(train)(ObjectState(step=0), commits)

    run_ranks(1, fn)
    # Each commit is a way on, after which so many attempts are made again.
    assert train.calls == 17 + max(0, commits - 1)


def test_an_update_that_rank_0_sees_stops_all_ranks_at_the_same_commit():
    held = Membership.first(["a"] * 3, 1, most=4).with_newcomer(3, "a")

    def fn(engine):
        store = MemoryStore(held)
        updates = Updates(store, clock=iter(range(100)).__next__)
        updates.check()
        store.change(lambda membership: membership.with_waiting(3))
        with pytest.raises(HostsUpdatedInterrupt):
            updates.check()

    run_ranks(3, fn)


def test_where_commits_follow_quickly_the_next_one_takes_the_answer_to_a_vote():
    """None waits for messages to rank 0 and back, and still all ranks stop at the same one."""
    held = Membership.first(["a"] * 3, 1, most=4).with_newcomer(3, "a").with_waiting(3)
    is_ahead = threading.Event()

    def fn(engine):
        store = MemoryStore(Membership.first(["a"] * 3, 1, most=4))
        now = [0.0]
        updates = Updates(store, clock=lambda: now[0])

        def check():
            now[0] += 0.06
            updates.check()

        for _ in range(2):  # They have their own votes; the second says that 7 follow without one.
            check()
        for _ in range(6):
            check()
        if engine.rank == 0:
            store.change(lambda membership: held)
            check()  # It asks, and does not wait for the others.
            is_ahead.set()
        else:
            assert is_ahead.wait(10)
            check()
        with pytest.raises(HostsUpdatedInterrupt):
            for _ in range(9):
                check()
                checks.append(engine.rank)

    checks = []
    run_ranks(3, fn)
    assert checks == []


def test_quick_commits_have_a_vote_every_half_second(monkeypatch):
    held = Membership.first(["a"] * 3, 1, most=4).with_newcomer(3, "a").with_waiting(3)
    votes = collections.Counter()

    class Counted(Vote):
        def __init__(self, *args, engine, **named):
            votes[engine.rank] += 1
            super().__init__(*args, engine=engine, **named)

    monkeypatch.setattr(updates_of_elastic, "Vote", Counted)

    def fn(engine):
        store = MemoryStore(Membership.first(["a"] * 3, 1, most=4))
        now = [0.0]
        updates = Updates(store, clock=lambda: now[0])
        checks = 0
        with pytest.raises(HostsUpdatedInterrupt):
            for _ in range(300):
                now[0] += 0.01 * (1 + engine.rank)  # Only the clock of rank 0 counts.
                if checks == 90 and engine.rank == 0:
                    store.change(lambda membership: held)
                updates.check()
                checks += 1
        return checks

    found = run_ranks(3, fn)
    # A vote comes every half second.
    assert len(set(found)) == 1 and 90 <= found[0] <= 142
    assert set(votes.values()) <= {4, 5, 6}


def test_ranks_vote_at_the_same_checks_again_after_a_join():
    def fn(engine):
        now = [0.0]
        updates = Updates(MemoryStore(Membership.first(["a"] * 2, 1, most=4)), clock=lambda: now[0])
        for _ in range(2):
            for _ in range(3 + 4 * engine.rank):
                now[0] += 0.1
                updates.check()
            assert rabit.join() == 1
        for _ in range(20):
            now[0] += 0.1
            updates.check()
            rabit.barrier(name="step")

    run_ranks(2, fn)


def test_at_the_end_no_vote_is_on_its_way():
    def fn(engine):
        for _ in range(2):  # The second ones have the same name.
            updates = Updates(MemoryStore(Membership.first(["a"] * 2, 1, most=4)), clock=lambda: 0.0)
            for _ in range(3):
                updates.check()
            updates.finish()

    run_ranks(2, fn)


class OwnState(ObjectState):
    """Has a part of its own, of which it keeps two commits."""

    is_local = True

    def __init__(self, rank):
        self.own = rank
        self.kept = []
        super().__init__(step=0)

    def save(self):
        self.kept = [*self.kept, (self.own, copy.deepcopy(self._contents()))][-2:]
        super().save()

    def restore(self):
        self.own, values = self.kept[-1]
        self._saved = {"values": values}
        super().restore()

    def step_back(self, commits):
        assert commits == 1
        self.kept.pop()
        self.restore()

    def take_own(self, has_own, taken):
        self.own = self.kept[-1][0] if has_own else None


def test_ranks_with_parts_of_their_own_go_back_to_the_last_commit_that_all_have():
    def fn(engine):
        state = OwnState(engine.rank)
        # Ranks 0 and 2 are a commit ahead, and rank 3 has just come.
        for step in range((5, 4, 5, 0)[engine.rank]):
            state.step, state.own = step + 1, 10 * engine.rank + step + 1
            state.commit()
        state.sync()
        return state.step, state._commits, state.own

    assert run_ranks(4, fn) == [(4, 4, 4), (4, 4, 14), (4, 4, 24), (4, 4, None)]


@pytest.mark.parametrize("kind", [OwnState, lambda rank: ObjectState(step=0, own=None)], ids=["local", "equal"])
@pytest.mark.parametrize("steps", [0, 1, 5])
def test_a_newcomer_that_has_committed_before_takes_the_commit_of_the_others(kind, steps):
    """As after loading a checkpoint, which the others did when they began."""

    def fn(engine):
        is_newcomer = engine.rank == 0
        state = kind(engine.rank)
        state.step = 77 if is_newcomer else 0
        state.commit()
        if is_newcomer:
            engine.config = engine.config.replace(joins=True)
        for step in range(0 if is_newcomer else steps):
            state.step = step + 1
            state.commit()
        state.sync()
        return state.step, state._commits

    assert run_ranks(3, fn) == [(steps, steps + 1)] * 3


def meet_and_lose(state, is_late):
    """The first sync(), in which a rank is lost: late ones have not finished it."""
    broadcast = state.broadcast

    def interrupted(root_rank):
        broadcast(root_rank)
        raise rabit.PeerLost("a rank is gone", 0)

    if is_late:
        state.broadcast = interrupted
    with contextlib.suppress(rabit.PeerLost):
        state.sync()
    state.broadcast = broadcast


def meet_again(state):
    """As elastic.run does after a loss."""
    state.restore()
    state.on_reset()
    state.sync()


@pytest.mark.parametrize("commits", [0, 1])
def test_a_loss_at_the_end_of_the_first_meeting_brings_all_to_its_commit(commits):
    """Rank 0 has finished and may have committed before it saw the loss; rank 1 has no commit."""

    def fn(engine):
        state = ObjectState(step=engine.rank, own=engine.rank, per_rank=["own"])
        meet_and_lose(state, is_late=engine.rank == 1)
        state.step, state.own = 1, 10
        for _ in range(commits if engine.rank == 0 else 0):
            state.commit()
        taken = []
        take_own = state.take_own
        state.take_own = lambda *of: (taken.append(of), take_own(*of))
        meet_again(state)
        state.commit()
        return state.step, state.own, taken[0], state._commits

    assert run_ranks(2, fn) == [(0, 0, (True, None), 1), (0, 1, (False, None), 1)]


def test_a_rank_that_commits_alone_hears_where_commits_wait():
    def fn(engine):
        state = ObjectState(step=0, own=engine.rank, per_rank=["own"])
        meet_and_lose(state, is_late=engine.rank == 1)
        for _ in range(2 if engine.rank == 0 else 0):
            state.commit()
        meet_again(state)

    with pytest.raises(rabit.Internal, match=r"ObjectState on rank 0 is 2 commits ahead .* the function that elastic"):
        run_ranks(2, fn)


def test_what_one_rank_has_loaded_survives_it_where_another_has_finished_the_first_meeting():
    states = {}

    def first(engine):
        states[engine.rank] = ObjectState(step=0 if engine.rank else 7, own=engine.rank, per_rank=["own"])
        meet_and_lose(states[engine.rank], is_late=engine.rank == 1)

    def without_rank_0(engine):
        state = states[engine.rank + 1]
        meet_again(state)
        return state.step, state.own

    run_ranks(3, first)

    assert run_ranks(2, without_rank_0) == [(7, 1), (7, 2)]


@pytest.mark.parametrize("per_rank", [["own"], []], ids=["local", "equal"])
@pytest.mark.parametrize("late", [{1}, {2}, {1, 2}], ids=str)
@pytest.mark.parametrize("joined", [{0}, {0, 1, 2}], ids=str)
def test_a_newcomer_as_rank_0_takes_what_the_first_ranks_have_loaded(joined, late, per_rank):
    """The first ranks with this state may have come to the job when it had another one."""
    states = {}

    def first(engine):
        engine.config = engine.config.replace(joins=engine.rank in joined - {0})
        states[engine.rank] = ObjectState(step=7, own=engine.rank if per_rank else 5, per_rank=per_rank)
        meet_and_lose(states[engine.rank], is_late=engine.rank in late)

    def with_another_rank_0(engine):
        engine.config = engine.config.replace(joins=engine.rank in joined)
        if engine.rank == 0:
            state = ObjectState(step=0, own=99, per_rank=per_rank)
            state.sync()
        else:
            state = states[engine.rank]
            meet_again(state)
        return state.step, state.own

    run_ranks(3, first)

    owns = [99, 1, 2] if per_rank else [5, 5, 5]
    assert run_ranks(3, with_another_rank_0) == [(7, own) for own in owns]


def test_a_newcomer_that_was_interrupted_is_not_one_of_the_first_ranks():
    """The first ranks have lost two, one after the other, and the one that has come for the first has no state."""

    def fn(engine):
        is_newcomer = engine.rank == 0
        engine.config = engine.config.replace(joins=is_newcomer)
        state = ObjectState(step=0 if is_newcomer else 7, own=engine.rank, per_rank=["own"])
        if not is_newcomer:
            state.on_reset()  # They have lost the first one.
        meet_and_lose(state, is_late=True)
        meet_again(state)
        return state.step

    assert run_ranks(3, fn) == [7, 7, 7]


def test_a_loss_in_the_first_meeting_leaves_what_was_loaded_after_making_the_state():
    def fn(engine):
        state = ObjectState(step=0, own=0, per_rank=["own"])
        state.step, state.own = 7, 10 + engine.rank  # From a checkpoint.
        meet_and_lose(state, is_late=True)
        state.step, state.own = 1, 1
        meet_again(state)
        return state.step, state.own

    assert run_ranks(2, fn) == [(7, 10), (7, 11)]


def test_newcomers_get_the_commit_and_not_what_the_root_has_done_since():
    """As in an update of the hosts, where the ranks that stay do not go back before."""

    def fn(engine):
        state = ObjectState(step=0, own=engine.rank, per_rank=["own"])
        if engine.rank < 2:
            state.step = 1
            state.commit()
            state.step = 2
        state.sync()
        return state.step, state.own

    assert run_ranks(3, fn) == [(1, 0), (1, 1), (1, 2)]


def test_a_rank_that_went_back_knows_it_when_another_one_is_lost_then():
    """The one that made it go back may be that other one."""

    def fn(engine):
        state = OwnState(engine.rank)
        for _ in range(5 - engine.rank):
            state.commit()

        def broadcast(root_rank):
            raise rabit.PeerLost("rank 1 is gone", 1)

        state.broadcast = broadcast
        with pytest.raises(rabit.PeerLost):
            state.sync()
        return state._commits

    assert run_ranks(2, fn) == [4, 4]


def test_ranks_with_parts_of_their_own_commit_together():
    """Else one could be two commits ahead, and has only two."""
    is_ahead = threading.Event()

    def fn(engine):
        updates = Updates(None)
        if engine.rank == 1:
            found = is_ahead.wait(0.3)
            updates.check(keeps_together=True)
            return found
        updates.check(keeps_together=True)
        is_ahead.set()
        return False

    assert run_ranks(2, fn) == [False, False]
