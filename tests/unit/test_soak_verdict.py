"""The soak's verdict: growth beyond the bound is caught, and noise in what is small is not taken for growth."""

from dataclasses import replace
from typing import Any

import pytest

from trials.soak.verdict import FEW, SMALL, Reading, judge, judge_load

START = Reading(
    label="start",
    seconds=65.0,
    bytes={"dispatcher_callqueue": 50_000_000, "call_waiting": 3_000_000, "dispatcher_slot": 8_192},
    dead={"dispatcher_callqueue": 40_000, "dispatcher_slot": 500},
    trip_ms=10.0,
    worst_trip_ms=40.0,
    idle_trip_ms=8.0,
    trip_ratio=1.25,
    send_ms=5.0,
    rate=150.0,
    waiting=100_000,
    horizon=12,
)
TRIP = "median trip by an idle one"


def read(**seen: Any) -> Reading:
    """Return a later reading; tables are named with what has changed of them."""
    changed: Any = {k: {**getattr(START, k), **v} if isinstance(v, dict) else v for k, v in seen.items()}
    return replace(START, **changed)


@pytest.mark.parametrize(
    ("later", "short"),
    [
        pytest.param([START, START], [], id="nothing changes"),
        pytest.param([read(trip_ratio=1.5)], [], id="growth up to the bound"),
        pytest.param([START, read(trip_ratio=1.63)], [TRIP], id="a trip takes a third longer"),
        pytest.param([read(trip_ratio=1.63), START], [TRIP], id="only in the middle"),
        pytest.param([START, read(trip_ms=20.0, idle_trip_ms=16.0)], [], id="a busy machine"),
        pytest.param(
            [START, read(bytes={"dispatcher_callqueue": 65_000_000})],
            ["dispatcher_callqueue: bytes"],
            id="a table grows",
        ),
        pytest.param([START, read(bytes={"call_waiting": 3_900_000})], ["call_waiting: bytes"], id="an index grows"),
        pytest.param(
            [START, read(dead={"dispatcher_callqueue": 52_000})],
            ["dispatcher_callqueue: dead rows"],
            id="dead rows pile up",
        ),
        pytest.param(
            [read(bytes={"dispatcher_slot": SMALL}, dead={"dispatcher_slot": FEW})],
            [],
            id="a few pages and rows more of something small",
        ),
        pytest.param(
            [read(bytes={"dispatcher_slot": round(SMALL * 1.3)}, dead={"dispatcher_slot": round(FEW * 1.3)})],
            ["dispatcher_slot: dead rows", "dispatcher_slot: bytes"],
            id="something small grows large",
        ),
        pytest.param(
            [read(bytes={"new": SMALL * 2})], ["new: bytes"], id="an index without a measurement at the start"
        ),
    ],
)
def test_growth_is_caught_and_what_is_none_is_not(later: list[Reading], short: list[str]) -> None:
    assert [finding.name for finding in judge(START, *later) if not finding.ok] == short


@pytest.mark.parametrize(
    ("seen", "is_reached"),
    [({}, True), ({"rate": 140.0}, True), ({"rate": 130.0}, False), ({"waiting": 97_000}, False)],
)
def test_a_load_that_sags_is_caught(seen: dict[str, float], is_reached: bool) -> None:  # noqa: FBT001 - a parameter
    findings = judge_load([START, read(**seen)], rate=150.0, backlog=100_000)
    assert all(finding.ok for finding in findings) is is_reached
