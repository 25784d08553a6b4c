"""The demo's verdict: all is well, or every way in which it is not is said."""

from dataclasses import replace

import pytest

from project.demo.summary import Ended, PublishedLimits, Run, Sent, judge
from project.witness.ledger import KeyFigures

EVEN: PublishedLimits = {"concurrency": 2, "rate": None, "throttle": {"limit": 10, "period_s": 1.0}}
WINDOW: PublishedLimits = {"concurrency": None, "rate": {"limit": 20, "period_s": 2.0}, "throttle": None}
SEEN: KeyFigures = {
    "requests": 3,
    "most_at_once": 2,
    "most_in_window": None,
    "least_spacing_s": 0.096,
    "rejected_429": 0,
    "violations": 0,
}


@pytest.fixture
def run() -> Run:
    """Return a run in which all held: the small tenant's call was done before the last of the flood."""
    requests = {"flood-1": 1, "flood-2": 1, "flood-3": 1, "flood-4": 1, "drip": 1, "flaky": 3}
    finished = {"flood-1": 1.0, "drip": 2.0}
    return Run(
        calls=Sent(
            flood=["flood-1", "flood-2", "flood-3", "flood-4"],
            drip=["drip"],
            flaky=["flaky"],
            others=[],
            rolled_back=["never"],
        ),
        failures=2,
        rows={call: Ended(state="completed", attempt=attempts) for call, attempts in requests.items()},
        deliveries={"direct": 6},
        slots_left=0,
        limits={"even": EVEN, "window": WINDOW},
        record={
            "tolerance_s": 0.005,
            "longest_way_s": 0.001,
            "rejected_429": 0,
            "keys": {"even": SEEN, "window": {**SEEN, "most_in_window": 20, "least_spacing_s": 0.0}},
            "calls": {
                call: {"requests": attempts, "successes": 1, "finished_s": finished.get(call, 9.0)}
                for call, attempts in requests.items()
            },
        },
        seconds=12.34,
    )


def test_a_run_in_which_all_held_is_ok(run: Run) -> None:
    summary = judge(run)
    assert summary.is_ok, summary.faults
    assert all(verdict["ok"] for verdict in summary.keys.values())
    assert summary.flood_before_drip == 1


def test_the_json_has_the_totals_at_the_top_too(run: Run) -> None:
    written = judge(run).as_json()
    assert written["ok"] is True
    assert written["totals"] == {"sent": 6, "lost": 0, "duplicates": 0, "violations": 0, "rejected_429": 0}
    assert [written[name] for name in ("lost", "duplicates", "violations", "rejected_429")] == [0, 0, 0, 0]
    assert written["seconds"] == 12.3


@pytest.mark.parametrize(
    ("key", "figure", "value", "said"),
    [
        ("even", "most_at_once", 3, "even: 3 at once, 2 allowed"),
        ("even", "least_spacing_s", 0.0949, "even: 94.9 ms between starts, 100.0 ms less 5 allowed"),
        ("window", "most_in_window", 21, "window: 21 starts in 2 s, 20 allowed"),
        ("window", "requests", 0, "window: the witness saw no request, so nothing is shown"),
        ("even", "rejected_429", 2, "even: 2 of 3 requests were answered 429"),
    ],
)
def test_a_figure_beyond_its_limit_is_a_fault_of_its_key(
    run: Run, key: str, figure: str, value: float, said: str
) -> None:
    run.record["keys"][key] = {**run.record["keys"][key], figure: value}  # type: ignore[typeddict-item]
    summary = judge(run)
    assert summary.faults == [said]
    assert [name for name, verdict in summary.keys.items() if not verdict["ok"]] == [key]


def test_a_call_that_the_witness_never_answered_with_success_is_lost(run: Run) -> None:
    run.record["calls"]["drip"]["successes"] = 0
    del run.record["calls"]["flood-4"]
    summary = judge(run)
    assert summary.totals.lost == 2
    assert summary.faults == ["2 of 6 calls never reached the witness with success"]


def test_a_call_done_twice_is_a_duplicate(run: Run) -> None:
    run.record["calls"]["drip"]["successes"] = 3
    assert judge(run).totals.duplicates == 2
    assert not judge(run).is_ok


def test_a_call_of_a_transaction_that_was_rolled_back_must_not_be_seen(run: Run) -> None:
    run.record["calls"]["never"] = {"requests": 1, "successes": 1, "finished_s": 1.0}
    assert judge(run).faults == ["1 calls exist although their transaction was rolled back: never"]


def test_a_call_that_was_not_sent_must_not_be_seen(run: Run) -> None:
    run.record["calls"]["stray"] = {"requests": 1, "successes": 1, "finished_s": 1.0}
    assert judge(run).faults == ["the witness saw 1 calls that were not sent: stray"]


def test_what_is_not_completed_or_still_held_is_said(run: Run) -> None:
    rows = {**run.rows, "flood-1": Ended(state="discarded", attempt=3)}
    assert judge(replace(run, rows=rows, slots_left=1)).faults == [
        "1 of 6 calls are discarded and not completed",
        "1 slots are still held at the end",
    ]


def test_a_call_that_fails_twice_must_take_three_attempts(run: Run) -> None:
    rows = {**run.rows, "flaky": Ended(state="completed", attempt=4)}
    assert judge(replace(run, rows=rows)).faults == ["call flaky took 4 attempts and 3 requests, 3 expected"]


def test_a_small_tenant_that_waits_for_the_flood_is_a_fault(run: Run) -> None:
    run.record["calls"]["drip"]["finished_s"] = 10.0
    summary = judge(run)
    assert summary.flood_before_drip == 4
    assert summary.faults == ["the small tenant waited for 4 calls of the flood, at most 1 are fair"]
