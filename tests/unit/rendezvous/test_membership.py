"""Who continues after a loss: what the record of an elastic job says, and that survivors agree."""

from __future__ import annotations

import contextlib
import random
import threading

import pytest
from support.memory_store import MemoryStore

from rabit.errors import Aborted, Internal, PeerLost
from rabit.rendezvous.membership import KEY, Membership
from rabit.rendezvous.next_epoch import is_outdated, next_epoch, waiting_time_s
from rabit.rendezvous.place import are_hosts_equal, place_of
from rabit.rendezvous.survivors import admission, change_membership, next_membership

PATIENCE_S, TIMEOUT_S = 1.0, 60.0


def first(hosts="aabb", least=1) -> Membership:
    return Membership.first(tuple(hosts), least)


def wait_s(membership: Membership) -> float:
    return waiting_time_s(membership, PATIENCE_S, TIMEOUT_S)


def test_a_record_comes_back_from_its_text():
    full = first(least=2).with_here(0, 3, "silent").with_ended(2, "was killed")

    assert Membership.from_json(full.to_json()) == full
    assert Membership.from_json(next_epoch(full).to_json()) == next_epoch(full)


def test_a_text_that_is_no_record_is_refused():
    for text in (b"", b"{", b"{}", b"[]", b'{"epoch":1}'):
        with pytest.raises(Internal, match="malformed"):
            Membership.from_json(text)


def test_survivors_keep_their_order_and_the_lost_are_told_why():
    left = first().with_here(3, 1, "it").with_here(0, 1, "it").with_here(2, -1, "").with_ended(1, "died")

    assert wait_s(left) == 0
    assert next_epoch(left).members == (0, 2, 3)
    assert next_epoch(left).epoch == 2
    assert next_epoch(left).lost == {1: "died"}
    assert not (next_epoch(left).here or next_epoch(left).accused or next_epoch(left).ended)


def test_members_meet_where_most_of_them_reach():
    start = Membership.first(tuple("abc"), 1, stores=3)
    here = start.with_here(0, -1, "", unreached=[0, 1]).with_here(1, -1, "", unreached=[1])

    assert start.meeting.store == next_epoch(start.with_here(0, -1, "")).meeting.store == 0
    assert Membership.from_json(here.to_json()) == here
    assert next_epoch(here).meeting.store == 2
    # They stay where they are as long as that is as good as elsewhere.
    assert next_epoch(next_epoch(here).with_here(0, -1, "")).meeting.store == 2


def test_who_is_missing_gets_time_to_notice():
    one_is_late = first().with_here(0, 1, "gone").with_here(2, 1, "gone").with_ended(1, "died")

    assert one_is_late.missing == [3]
    assert wait_s(one_is_late) == TIMEOUT_S


def test_who_is_silent_and_accused_gets_little_time():
    silent = first("aaa").with_here(0, 2, "silent for 3 s").with_here(1, 2, "silent for 3 s")

    assert wait_s(silent) == PATIENCE_S
    assert next_epoch(silent).lost == {2: "silent for 3 s"}


def test_an_accusation_may_follow_from_another_rank_that_has_ended():
    both = first("aaaa").with_here(0, 2, "closed").with_here(1, 2, "closed").with_ended(3, "died")

    assert wait_s(both) == TIMEOUT_S  # for 2, which may be on its way


def test_who_is_accused_and_comes_goes_on():
    there = first("aa").with_here(0, 1, "closed").with_here(1, 0, "closed")

    assert wait_s(there) == 0
    assert next_epoch(there).members == (0, 1)


def test_of_two_that_do_not_reach_each_other_one_goes_and_is_told_why():
    apart = first("abc").with_here(0, 2, "it").with_here(1, 0, "it", [2]).with_here(2, 0, "it", [1])

    assert Membership.from_json(apart.to_json()) == apart
    assert next_epoch(apart).members == (0, 1)
    assert next_epoch(apart).lost == {2: "it and process 1 do not reach each other, and this one was to go"}
    assert not next_epoch(apart).away


def test_who_has_ended_is_cut_off_from_nobody():
    apart = first("abc").with_here(0, 2, "it").with_here(1, 2, "it", [2]).with_here(2, 1, "it", [1])

    assert next_epoch(apart.with_ended(1, "died")).members == (0, 2)


def test_who_comes_and_ends_then_does_not_go_on():
    ended = first("aaa").with_here(0, 1, "").with_here(1, -1, "").with_here(2, 1, "").with_ended(1, "died")

    assert next_epoch(ended).members == (0, 2)


def test_the_end_of_a_process_that_was_left_out_changes_nothing():
    on = next_epoch(first("aaa").with_here(0, 2, "").with_here(1, 2, "").with_ended(2, "died"))

    assert on.with_ended(2, "died again") == on


def test_those_that_have_ended_well_count_for_the_least():
    membership = first("aaa", least=3).with_ended(2, "").with_here(0, 2, "").with_here(1, 2, "")

    assert not next_epoch(membership).is_too_small
    assert next_epoch(first("aaa", least=3).with_ended(2, "died").with_here(0, 2, "").with_here(1, 2, "")).is_too_small


def test_places_are_dense_on_every_host():
    on = first("aabbb").with_ended(1, "died").with_ended(2, "died")
    for member in (0, 3, 4):
        on = on.with_here(member, 1, "")
    on = next_epoch(on)

    places = [place_of(on, member) for member in on.members]
    assert [(p.rank, p.size) for p in places] == [(0, 3), (1, 3), (2, 3)]
    assert [(p.local_rank, p.local_size) for p in places] == [(0, 1), (0, 2), (1, 2)]
    assert [(p.cross_rank, p.cross_size) for p in places] == [(0, 2), (1, 2), (0, 1)]
    assert not are_hosts_equal(on) and are_hosts_equal(first("aabb"))


def whole(membership: Membership) -> Membership:
    """All members have come for the next epoch."""
    for member in membership.members:
        membership = membership.with_here(member, -1, "")
    return membership


def waiting(membership: Membership, *numbers: int) -> Membership:
    for number in numbers:
        membership = membership.with_newcomer(number, "n").with_waiting(number)
    return membership


def test_more_newcomers_come_after_the_others_in_their_own_order_up_to_the_most():
    grown = next_epoch(whole(waiting(Membership.first("aa", 1, most=4), 7, 5, 6)))

    assert grown.members == (0, 1, 7, 5)
    assert grown.waiting == (6,) and not is_outdated(grown)
    assert [place_of(grown, each).local_rank for each in grown.members] == [0, 1, 0, 1]


def test_a_newcomer_takes_the_place_of_who_was_lost():
    left = waiting(first("aaa"), 3).with_here(0, 1, "").with_here(2, 1, "").with_ended(1, "died")

    assert left.strength == 3
    assert next_epoch(left).members == (0, 3, 2)
    assert next_epoch(left).hosts == {0: "a", 2: "a", 3: "n"}
    assert [next_epoch(left).seat_of(each) for each in (0, 3, 2)] == [0, 1, 2]


def test_who_comes_for_a_newcomer_has_the_seat_of_the_first():
    again = next_epoch(whole(waiting(first("aaa"), 3).with_ended(1, "died")))
    again = next_epoch(whole(waiting(again, 4).with_ended(3, "died")))

    assert again.members == (0, 4, 2)
    assert again.seats == {4: 1}
    assert Membership.from_json(again.to_json()) == again
    assert next_epoch(whole(again.with_ended(4, "died"))).seats == {}


def test_a_newcomer_comes_for_a_lost_member_of_its_own_host_first():
    lost = first("aabb", least=1).with_ended(0, "died").with_ended(2, "died").with_ended(3, "died")
    lost = lost.with_newcomer(5, "b").with_waiting(5).with_newcomer(4, "b").with_waiting(4)
    lost = lost.with_newcomer(6, "c").with_waiting(6)

    assert next_epoch(whole(lost)).members == (6, 1, 5, 4)


def test_a_newcomer_that_ends_before_it_is_a_member_is_forgotten():
    full = waiting(Membership.first("aa", 1, most=3), 2)

    assert is_outdated(full)
    assert full.with_ended(2, "died") == Membership.first("aa", 1, most=3)


def test_members_leave_as_far_as_the_least_allows():
    asked = first("aabb", least=2).with_room(2, (0, 1, 9))

    assert is_outdated(asked) and asked.leaving == {0, 1}
    assert next_epoch(whole(asked)).members == (2, 3)
    assert next_epoch(whole(asked)).left == {0, 1}
    assert next_epoch(whole(asked)).lost == dict.fromkeys((0, 1), "its host is no longer part of the job")
    held_back = next_epoch(whole(first("aabb", least=3).with_room(2, (0, 1))))
    assert held_back.members == (0, 2, 3) and held_back.leaving == {0} and held_back.left == {1}
    replaced = next_epoch(whole(waiting(first("aabb", least=3).with_room(3, (0, 1)), 4)))
    assert replaced.members == (4, 2, 3) and replaced.left == {0, 1}


def test_who_cannot_leave_yet_is_no_reason_to_stop():
    held_back = first("ab", least=2).with_room(2, (1,))

    assert not is_outdated(held_back)
    assert is_outdated(waiting(held_back, 2))


def test_without_any_rank_newcomers_are_no_strength():
    lost = waiting(first("aa"), 2, 3).with_ended(0, "died").with_ended(1, "died")

    assert lost.strength == 0


def test_a_change_that_another_one_overtakes_is_made_again():
    store = MemoryStore(first("aaa"))
    others = iter([lambda held: held.with_ended(0, "died first")])

    def change(held):
        for other in others:
            store.change(other)
        return held.with_ended(1, "died")

    changed = change_membership(store, change)

    assert changed.ended == {0: "died first", 1: "died"}
    assert Membership.from_json(store.watch(KEY, 0, 0).value) == changed


def agree(store, members, accuse, epoch=1, timeout_s=TIMEOUT_S, away=lambda member: None):
    """What each of `members`, a thread, gets: a Membership or an error."""
    found = {}

    def survive(member):
        try:
            found[member] = next_membership(
                store, member, epoch, accuse(member), "lost", timeout_s, away(member)
            )
        except (Aborted, PeerLost) as error:
            found[member] = error

    threads = [threading.Thread(target=survive, args=(member,)) for member in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), f"{found} so far"
    return found


@pytest.mark.parametrize("seed", range(30))
def test_all_survivors_get_the_same_members_in_whatever_order_they_come(seed):
    dice = random.Random(seed)
    size = dice.randint(2, 9)
    dead = dice.sample(range(size), dice.randint(1, size - 1))
    survivors = [each for each in range(size) if each not in dead]
    dice.shuffle(survivors)
    store = MemoryStore(first("a" * size))
    launcher = threading.Thread(
        target=lambda: [store.change(lambda m, d=d: m.with_ended(d, "died")) for d in dead]
    )
    launcher.start()

    found = agree(store, survivors, lambda member: dice.choice(range(-1, size)))

    launcher.join(60)
    assert len({each.to_json() for each in found.values()}) == 1
    assert next(iter(found.values())).members == tuple(sorted(survivors))


@pytest.mark.parametrize("seed", range(20))
def test_newcomers_and_survivors_get_the_same_members(seed):
    dice = random.Random(seed)
    size, spares = dice.randint(2, 6), dice.randint(1, 4)
    dead = dice.sample(range(size), dice.randint(1, size - 1))
    survivors = [each for each in range(size) if each not in dead]
    membership = Membership.first("a" * size, 1, most=size)
    for each in range(size, size + spares):
        membership = membership.with_newcomer(each, "a")
    store = MemoryStore(membership)
    admitted = {}

    def come(number):
        with contextlib.suppress(Aborted):
            admitted[number] = admission(store, number)

    threads = [threading.Thread(target=come, args=(n,)) for n in range(size, size + spares)]
    for thread in dice.sample(threads, spares):
        thread.start()
    for each in dead:
        store.change(lambda m, each=each: m.with_ended(each, "died"))

    found = agree(store, survivors, lambda member: -1)

    agreed = next(iter(found.values()))
    assert len({each.to_json() for each in found.values()}) == 1
    assert [each for each in agreed.members if each in survivors] == sorted(survivors)
    assert all(agreed.members.index(each) <= each for each in survivors)
    assert len(agreed.members) <= size
    for number, thread in zip(range(size, size + spares), threads, strict=True):
        if number not in agreed.members:  # It waits on, until the launcher gives it up.
            store.change(lambda m, number=number: m.with_ended(number, "released"))
        thread.join(60)
        assert (number in admitted) is (number in agreed.members)


def test_too_few_wait_for_a_newcomer_that_is_on_its_way():
    store = MemoryStore(first("aa", least=2).with_newcomer(2, "a").with_ended(1, "died"))
    found = {}
    newcomer = threading.Thread(target=lambda: found.update({2: admission(store, 2)}))
    survivor = threading.Thread(target=lambda: found.update(agree(store, [0], lambda member: 1)))
    survivor.start()
    held = store.watch(KEY, 0, 60)
    while 0 not in Membership.from_json(held.value).here:
        held = store.watch(KEY, held.version, 60)

    newcomer.start()

    for thread in (newcomer, survivor):
        thread.join(60)
    assert {each: held.members for each, held in found.items()} == {0: (0, 2), 2: (0, 2)}


def test_members_that_do_not_reach_each_other_agree_on_who_goes():
    store = MemoryStore(first("abcd"))
    away = {1: [3], 3: [1]}

    found = agree(store, (0, 1, 2, 3), lambda member: 0, away=lambda member: away.get(member, []))

    assert {each: held.members for each, held in found.items() if each != 3} == dict.fromkeys((0, 1, 2), (0, 1, 2))
    assert isinstance(found[3], Aborted)
    assert "given up by the others" in str(found[3]) and "process 1 do not reach each other" in str(found[3])


def test_a_newcomer_that_nobody_awaits_is_told():
    with pytest.raises(Aborted, match="process 5 is not awaited by the job, which is in epoch 1 with 2 ranks"):
        admission(MemoryStore(first("aa")), 5)


def test_a_member_that_wakes_too_late_is_told():
    store = MemoryStore(first("aaa"))

    on = agree(store, (0, 1), lambda member: 2)

    assert on[0].members == (0, 1)
    with pytest.raises(Aborted, match=r"process 2 was given up .* epoch 2 with 2 ranks: lost\."):
        next_membership(store, 2, 1, 0, "closed", TIMEOUT_S)


def test_too_few_are_an_error_that_names_the_lost():
    store = MemoryStore(first("aaa", least=3).with_ended(1, "was killed by SIGKILL (signal 9)"))

    found = agree(store, (0, 2), lambda member: 1)

    for error in found.values():
        assert isinstance(error, PeerLost) and error.rank == 1
        assert "2 of 3 ranks are left" in str(error) and "process 1: was killed" in str(error)
