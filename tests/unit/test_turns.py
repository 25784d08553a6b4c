"""Turns of queues by weights."""

from collections import Counter
from collections.abc import Collection, Sequence

from hypothesis import assume, given
from hypothesis import strategies as st

from dispatcher.limits.turns import Turns

weights = st.dictionaries(st.sampled_from("abcde"), st.integers(1, 16), min_size=2)


def serve(turns: Turns, room: int, queues: Collection[str]) -> list[str]:
    """Make one step for queues that have enough calls: start those that are due first."""
    shares = turns.shares()
    due = {queue: share.due for queue, share in shares.items()}
    started = []
    for _ in range(room):
        queue = min(queues, key=due.__getitem__)
        due[queue] += shares[queue].stride
        started.append(queue)
    turns.note(started)
    return started


def run(turns: Turns, steps: Sequence[int], queues: Collection[str]) -> Counter[str]:
    return Counter(queue for room in steps for queue in serve(turns, room, queues))


def test_equal_weights_give_no_shares() -> None:
    assert Turns().shares() == {}
    assert Turns({"a": 1, "b": 1}).shares() == {}
    assert Turns({"a": 7, "b": 7}).shares() == {}
    assert Turns({"a": 7}).shares() == {}


@given(weights, st.integers(1, 9), st.integers(1, 5))
def test_starts_are_shared_by_weight_whatever_the_size_of_steps(given: dict[str, int], room: int, rounds: int) -> None:
    assume(len(set(given.values())) > 1)
    turns = Turns(given)
    steps, rest = divmod(rounds * sum(given.values()), room)
    started = run(turns, [*[room] * steps, rest], given)
    assert started == {queue: rounds * weight for queue, weight in given.items()}


@given(weights, st.lists(st.sets(st.sampled_from("abcde")), max_size=30), st.integers(1, 4))
def test_no_queue_is_ever_more_than_one_turn_away(
    given: dict[str, int], steps: Sequence[Collection[str]], room: int
) -> None:
    assume(len(set(given.values())) > 1)
    turns = Turns(given)
    for able in steps:
        if queues := sorted(given.keys() & able):
            serve(turns, room, queues)
        assert all(0 <= share.due <= share.stride for share in turns.shares().values())


def test_a_change_of_weights_counts_at_once() -> None:
    turns = Turns({"a": 3, "b": 1})
    run(turns, [3] * 13, "ab")
    turns.set_weights({"a": 1, "b": 4})
    started = run(turns, [1] * 50, "ab")
    assert abs(started["b"] - 40) <= 1
    turns.set_weights({"a": 2, "b": 2})
    assert turns.shares() == {}
    turns.note(["a", "b"])
    turns.set_weights({"a": 1, "b": 2})
    assert run(turns, [1] * 30, "ab") == {"a": 10, "b": 20}
