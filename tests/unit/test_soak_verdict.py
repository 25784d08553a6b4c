"""The soak's verdict: growth beyond the bound is caught, and noise in what is small is not taken for growth."""

from dataclasses import replace

import pytest

from trials.soak.verdict import FEW, SMALL, Reading, judge, judge_load

START = Reading(
    label="start",
    seconds=65.0,
    bytes={"dispatcher_callqueue": 50_000_000, "call_waiting": 3_000_000, "dispatcher_slot": 8_192},
    live={"dispatcher_callqueue": 104_000},
    dead={"dispatcher_callqueue": 40_000, "dispatcher_slot": 500},
    hot={"dispatcher_callqueue": 0.4},
    vacuums={"dispatcher_callqueue": 2},
    pass_ms=10.0,
    worst_pass_ms=40.0,
    idle_pass_ms=8.0,
    pass_ratio=1.25,
    send_ms=5.0,
    rate=150.0,
    waiting=100_000,
    horizon=12,
)


def short(*readings: Reading) -> list[str]:
    """Return the names of the figures that do not keep their bounds."""
    return [finding.name for finding in judge(*readings) if not finding.ok]


def test_what_stays_as_it_was_is_flat() -> None:
    assert short(START, START, START) == []


def test_growth_up_to_the_bound_is_flat() -> None:
    assert short(START, replace(START, pass_ratio=1.5)) == []


def test_a_pass_that_takes_a_third_longer_is_caught() -> None:
    assert short(START, START, replace(START, pass_ratio=1.63)) == ["median pass by an idle one"]


@pytest.mark.parametrize("name", ["dispatcher_callqueue", "call_waiting"])
def test_a_table_or_index_that_grows_is_caught(name: str) -> None:
    grown = {**START.bytes, name: round(START.bytes[name] * 1.3)}
    assert short(START, START, replace(START, bytes=grown)) == [f"{name}: bytes"]


def test_dead_rows_that_pile_up_are_caught() -> None:
    grown = replace(START, dead={**START.dead, "dispatcher_callqueue": 52_000})
    assert short(START, START, grown) == ["dispatcher_callqueue: dead rows"]


def test_a_machine_that_is_busy_with_other_things_is_no_growth() -> None:
    assert short(START, START, replace(START, pass_ms=20.0, idle_pass_ms=16.0)) == []


def test_what_has_grown_in_the_middle_is_caught_although_it_is_gone_at_the_end() -> None:
    assert short(START, replace(START, pass_ratio=1.63), START) == ["median pass by an idle one"]


def test_a_few_pages_and_rows_more_of_something_small_are_no_growth() -> None:
    more = replace(START, bytes={**START.bytes, "dispatcher_slot": SMALL}, dead={**START.dead, "dispatcher_slot": FEW})
    assert short(START, more) == []


def test_something_small_that_grows_large_is_caught() -> None:
    grown = replace(
        START,
        bytes={**START.bytes, "dispatcher_slot": round(SMALL * 1.3)},
        dead={**START.dead, "dispatcher_slot": round(FEW * 1.3)},
    )
    assert short(START, grown) == ["dispatcher_slot: dead rows", "dispatcher_slot: bytes"]


def test_an_index_without_a_measurement_at_the_start_is_not_passed_over() -> None:
    grown = replace(START, bytes={**START.bytes, "new": SMALL * 2})
    assert short(START, grown) == ["new: bytes"]


@pytest.mark.parametrize(
    ("seen", "is_reached"),
    [({}, True), ({"rate": 140.0}, True), ({"rate": 130.0}, False), ({"waiting": 97_000}, False)],
)
def test_a_load_that_sags_is_caught(seen: dict[str, float], is_reached: bool) -> None:  # noqa: FBT001 - a parameter
    findings = judge_load([START, replace(START, **seen)], rate=150.0, backlog=100_000)
    assert all(finding.ok for finding in findings) is is_reached
