"""When time opens a key, by the reference (test_take compares it with the functions): the first moment with room."""

from itertools import accumulate
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from tests.rules.reference import MILLISECOND, SECOND, Key, Limits, Slot, Start, State, Tuning, opening, room

NOW = 100 * SECOND
# Small numbers, so that starts meet at the edges of their windows.
limits = st.builds(
    Limits,
    concurrency=st.none() | st.integers(0, 6),
    rate_limit=st.integers(1, 6),
    rate_period=st.none() | st.sampled_from([100 * MILLISECOND, SECOND]),
    throttle_limit=st.integers(1, 6),
    throttle_period=st.none() | st.sampled_from([100 * MILLISECOND, SECOND]),
).map(lambda drawn: Limits(**{**vars(drawn), **_absent(drawn)}))
starts = st.lists(st.tuples(st.integers(-400, 10), st.integers(1, 3)), max_size=8).map(sorted)
tunings = st.builds(
    Tuning,
    horizon=st.sampled_from([0, 200 * MILLISECOND]),
    margin=st.sampled_from([0, 7 * MILLISECOND]),
    ramp=st.sampled_from([8, SECOND + 3, 8 * SECOND]),
)


def _absent(drawn: Limits) -> dict[str, Any]:
    """Return None for the limit of a rate without a period."""
    return {f"{rate}_limit": None for rate in ("rate", "throttle") if getattr(drawn, f"{rate}_period") is None}


@given(
    limits=limits,
    spent=starts,
    held=st.lists(st.integers(1, 2), max_size=3),
    blocked=st.none() | st.integers(-9_000, 300),
    cost=st.integers(1, 6),
    tuning=tunings,
)
def test_an_opening_is_the_first_moment_with_room(
    *, limits: Limits, spent: list[tuple[int, int]], held: list[int], blocked: int | None, cost: int, tuning: Tuning
) -> None:
    totals = accumulate(each for _, each in spent)
    key = Key(
        id=1,
        name="api",
        limits=limits,
        override=Limits(),
        blocked_until=None if blocked is None else NOW + blocked * MILLISECOND,
    )
    state = State(
        keys={1: key},
        slots=[Slot(call, 1, each, None, NOW) for call, each in enumerate(held)],
        starts={
            1: [
                Start(NOW + at * MILLISECOND, total, each, each)
                for (at, each), total in zip(spent, totals, strict=True)
            ]
        },
    )
    allowed = room(state, key, None, NOW, tuning)
    assume(cost <= allowed.fits)

    def has_room(at: int) -> bool:
        return room(state, key, None, at, tuning).is_open(cost, at + tuning.horizon)

    at = opening(state, allowed, cost, NOW, tuning)
    if at is None:
        is_full = limits.concurrency is not None and allowed.held + cost > limits.concurrency
        assert has_room(NOW) or is_full
    else:
        assert at > NOW
        assert has_room(at)
        assert not has_room(at - 1)
