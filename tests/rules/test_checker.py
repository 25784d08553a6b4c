"""What the checker of trips finds, in states that no trip should leave."""

from uuid import UUID

import pytest

from tests.rules import checker
from tests.rules.reference import SECOND, Answer, Call, Key, Lane, Limits, Note, State, Trip

GROUP, FIRST, SECOND_MEMBER = 1, 2, 3


def _found(state: State) -> list[str]:
    """Return what is found of a trip that has done nothing."""
    answer = Answer(started=[], fates={}, wake=set(), publish=set(), again_at=None, ended=set(), freed=set())
    return checker.faults(state, state, Trip(now=0, worker=None, queues=[], tasks=None, room=0), answer)


@pytest.mark.parametrize(("is_second_kept", "is_noted"), [(False, False), (True, False), (False, True)])
def test_a_lane_waits_for_a_group_only_while_room_of_each_open_member_is_kept(
    *, is_second_kept: bool, is_noted: bool
) -> None:
    state = State(deliveries={"a": "direct"})
    for id, name in ((GROUP, "g:*"), (FIRST, "g:1"), (SECOND_MEMBER, "g:2")):
        state.keys[id] = Key(id=id, name=name, limits=Limits(concurrency=1), override=Limits())
    kept = [FIRST, SECOND_MEMBER] if is_second_kept else [FIRST]
    for id, keys in enumerate([[GROUP], *([key] for key in kept)], start=1):
        state.lanes[id] = Lane(id=id, queue="a", priority=0, on_limit="wait", key_ids=keys, place=keys[0])
        state.calls.append(Call(id=UUID(int=id), lane=id, task="t", position=id))
        if keys != [GROUP]:
            state.lanes[id].kept_until = 5 * SECOND
    state.notes.append(Note(5 * SECOND, None, FIRST))
    if is_noted:
        state.notes.append(Note(0, None, SECOND_MEMBER))
    assert bool(_found(state)) == (not is_second_kept and not is_noted)
