"""The witness's books against a plain model that looks at every instant."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from project.witness.ledger import SECOND, Ledger, Limits, Visit, Window

LAST = 40
INSTANTS = range(-LAST, 2 * LAST)
times = st.integers(min_value=0, max_value=LAST)
windows = st.builds(Window, limit=st.integers(1, 4), period=st.integers(1, 20))
limits = st.builds(
    Limits, concurrency=st.none() | st.integers(1, 4), rate=st.none() | windows, throttle=st.none() | windows
)


def in_window(starts: Sequence[int], period: int) -> int:
    """Count by trying a window at every instant."""
    return max(sum(begin <= start < begin + period for start in starts) for begin in INSTANTS)


def at_once(open_spans: Sequence[tuple[int, int | None]]) -> int:
    """Count by looking at every instant."""
    return max(sum(start <= now and (end is None or now < end) for start, end in open_spans) for now in INSTANTS)


@dataclass(kw_only=True)
class Model:
    """The rules by the letter: refuse a start if counting it with the welcome ones would break a limit."""

    TOLERANCE: ClassVar[int] = 1
    limits: Limits
    welcome: list[Visit] = field(default_factory=list)

    def broken_by(self, at: int) -> list[str]:
        """Name the limits that a start would break."""
        limits, broken = self.limits, []
        starts = [*(visit.started for visit in self.welcome), at]
        held = [*((visit.started, visit.ended) for visit in self.welcome), (at, None)]
        if limits.concurrency is not None and at_once(held) > limits.concurrency:
            broken.append("concurrency")
        if limits.rate is not None and in_window(starts, limits.rate.period) > limits.rate.limit:
            broken.append("rate")
        if limits.throttle is not None and len(starts) > 1:
            gaps = [abs(a - b) for i, a in enumerate(starts) for b in starts[:i]]
            if min(gaps) < limits.throttle.period // limits.throttle.limit - self.TOLERANCE:
                broken.append("throttle")
        return broken


@given(published=limits, came=st.lists(st.tuples(times, st.integers(1, 10)), max_size=20))
def test_a_start_is_refused_exactly_when_it_breaks_a_limit_in_whatever_order_starts_are_booked(
    published: Limits, came: list[tuple[int, int]]
) -> None:
    model = Model(limits=published)
    ledger = Ledger({"key": published}, tolerance=Model.TOLERANCE)
    for at, seconds in came:
        expected = model.broken_by(at)
        visit = ledger.start(keys=["key"], call="call", at=at)
        assert list(visit.broken.get("key", [])) == expected
        if not expected:
            model.welcome.append(visit)
            ledger.end(visit, at=at + seconds, succeeded=True)


@given(came=st.lists(st.tuples(times, st.integers(1, 10)), min_size=1, max_size=20))
def test_the_figures_count_refused_starts_too(came: list[tuple[int, int]]) -> None:
    ledger = Ledger({"key": Limits(concurrency=1, rate=Window(limit=1, period=10))}, tolerance=0)
    for at, seconds in came:
        ledger.end(ledger.start(keys=["key"], call="call", at=at), at=at + seconds, succeeded=False)
    figures = ledger.record()["keys"]["key"]
    assert figures["requests"] == len(came)
    assert figures["most_at_once"] == at_once([(at, at + seconds) for at, seconds in came])
    assert figures["most_in_window"] == in_window([at for at, _ in came], 10)
    gaps = [abs(a - b) for i, (a, _) in enumerate(came) for b, _ in came[:i]]
    assert figures["least_spacing_s"] == (min(gaps) / SECOND if gaps else None)
    assert figures["violations"] >= figures["rejected_429"]


def test_a_request_is_refused_if_any_of_its_keys_is_broken_and_counts_for_none() -> None:
    ledger = Ledger({"one": Limits(concurrency=1), "other": Limits(concurrency=1)}, tolerance=0)
    ledger.start(keys=["one"], call="first", at=0)
    refused = ledger.start(keys=["one", "other"], call="second", at=1)
    welcome = ledger.start(keys=["other"], call="third", at=2)
    assert dict(refused.broken) == {"one": ["concurrency"]}
    assert not welcome.broken
    assert ledger.record()["rejected_429"] == 1
    assert ledger.record()["keys"]["other"]["rejected_429"] == 0


def test_the_record_separates_requests_from_successes_of_each_call() -> None:
    ledger = Ledger({"key": Limits()}, tolerance=0)
    for second, succeeded in enumerate((False, True, True)):
        visit = ledger.start(keys=["key"], call="call", at=second * 10**9)
        ledger.end(visit, at=second * 10**9 + 5, succeeded=succeeded)
    assert ledger.record()["calls"] == {"call": {"requests": 3, "successes": 2, "finished_s": 2.000000005}}


def test_a_key_that_is_not_published_is_an_error_and_books_nothing() -> None:
    ledger = Ledger({"key": Limits()}, tolerance=0)
    with pytest.raises(KeyError):
        ledger.start(keys=["key", "typo"], call="call", at=0)
    assert ledger.record()["keys"]["key"]["requests"] == 0


def test_spacing_is_that_of_setting_out_and_all_else_is_counted_on_arrival() -> None:
    throttle = Window(limit=1, period=100)
    ledger = Ledger({"even": Limits(throttle=throttle), "window": Limits(rate=throttle)}, tolerance=0)
    held_up = ledger.start(keys=["even", "window"], call="held up", at=30, set_out=0)
    in_time = ledger.start(keys=["even"], call="in time", at=101, set_out=100)
    early = ledger.start(keys=["even"], call="early", at=299, set_out=199)
    together = ledger.start(keys=["window"], call="together", at=129, set_out=129)
    assert [visit.broken for visit in (held_up, in_time, early, together)] == [
        {},
        {},
        {"even": ["throttle"]},
        {"window": ["rate"]},
    ]
    record = ledger.record()
    assert (record["longest_way_s"], record["keys"]["even"]["least_spacing_s"]) == (1e-07, 9.9e-08)
