"""The verdict on a run: what the witness saw and what the calls came to, against what was promised. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypedDict

from project.witness.ledger import CallFigures, KeyFigures, Record

# Of the tenants that share a partner, the small one may have to wait for at most this part of the flood.
FAIR_SHARE = 0.25


class PublishedPace(TypedDict):
    """A window or a throttle as the witness publishes it, its period in seconds."""

    limit: int
    period_s: float


class PublishedLimits(TypedDict):
    """The limits of one key as GET /limits of the witness gives them."""

    concurrency: int | None
    rate: PublishedPace | None
    throttle: PublishedPace | None


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What one call came to, as its row says: its state and the number of its last attempt."""

    state: str
    attempt: int


@dataclass(frozen=True, kw_only=True)
class Sent:
    """The ids of the calls that were sent, by what they show."""

    flood: Sequence[str]
    drip: Sequence[str]
    flaky: Sequence[str]
    others: Sequence[str]
    rolled_back: Sequence[str]

    @property
    def to_run(self) -> list[str]:
        """Return every call that has to be run."""
        return [*self.flood, *self.drip, *self.flaky, *self.others]


@dataclass(frozen=True, kw_only=True)
class Run:
    """All that is known at the end: calls, rows, and the witness's word."""

    calls: Sent
    failures: int
    rows: Mapping[str, Ended]
    deliveries: Mapping[str, int]
    slots_left: int
    limits: Mapping[str, PublishedLimits]
    record: Record
    seconds: float


class KeyVerdict(PublishedLimits, KeyFigures):
    """One key: what it allows, what the witness saw, and whether that is within it."""

    ok: bool


@dataclass(frozen=True, kw_only=True)
class Totals:
    """All together: numbers of calls, except `violations` (limits broken) and `rejected_429` (requests)."""

    sent: int
    lost: int
    duplicates: int
    violations: int
    rejected_429: int


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The verdict: `faults` says in words what did not hold, and is empty if all did.

    `flood_before_drip`: how many calls of the flooding tenant were done when the small one had all of its own.
    `deliveries`: how many calls went each way to their workers.
    """

    faults: Sequence[str]
    keys: Mapping[str, KeyVerdict]
    totals: Totals
    tolerance_s: float
    longest_way_s: float
    flood_before_drip: int
    deliveries: Mapping[str, int]
    seconds: float

    @property
    def is_ok(self) -> bool:
        """Return whether all held."""
        return not self.faults

    def as_json(self) -> dict[str, object]:
        """Return it for tools; the totals also stand at the top, where a tool looks first."""
        return {"ok": self.is_ok, **asdict(self), **asdict(self.totals), "seconds": round(self.seconds, 1)}


def judge(run: Run) -> Summary:
    """Return the verdict on a run."""
    calls, keys = run.record["calls"], run.record["keys"]
    tolerance = run.record["tolerance_s"]
    faults_of = {name: list(_broken(name, run.limits[name], keys[name], tolerance)) for name in keys}
    totals = Totals(
        sent=len(run.calls.to_run),
        lost=sum(calls[call]["successes"] == 0 if call in calls else True for call in run.calls.to_run),
        duplicates=sum(max(0, figures["successes"] - 1) for figures in calls.values()),
        violations=sum(figures["violations"] for figures in keys.values()),
        rejected_429=run.record["rejected_429"],
    )
    flood_before_drip = _finished_before(run.calls.flood, run.calls.drip, calls)
    return Summary(
        faults=[
            *(fault for faults in faults_of.values() for fault in faults),
            *_miscounted(totals),
            *_strange(run, calls),
            *_unfinished(run),
            *_not_retried(run, calls),
            *_unfair(run, flood_before_drip),
        ],
        keys={name: KeyVerdict(**run.limits[name], **keys[name], ok=not faults_of[name]) for name in keys},
        totals=totals,
        tolerance_s=tolerance,
        longest_way_s=run.record["longest_way_s"],
        flood_before_drip=flood_before_drip,
        deliveries=run.deliveries,
        seconds=run.seconds,
    )


def _broken(name: str, limits: PublishedLimits, figures: KeyFigures, tolerance: float) -> Iterator[str]:
    """Say what a key's figures break of its limits, whatever the witness answered at the time."""
    if not figures["requests"]:
        yield f"{name}: the witness saw no request, so nothing is shown"
    if limits["concurrency"] is not None and figures["most_at_once"] > limits["concurrency"]:
        yield f"{name}: {figures['most_at_once']} at once, {limits['concurrency']} allowed"
    rate, most = limits["rate"], figures["most_in_window"]
    if rate is not None and most is not None and most > rate["limit"]:
        yield f"{name}: {most} starts in {rate['period_s']:g} s, {rate['limit']} allowed"
    throttle, least = limits["throttle"], figures["least_spacing_s"]
    if throttle is not None and least is not None:
        spacing = throttle["period_s"] / throttle["limit"]
        if least < spacing - tolerance:
            allowed = f"{spacing * 1000:.1f} ms less {tolerance * 1000:g}"
            yield f"{name}: {least * 1000:.1f} ms between starts, {allowed} allowed"
    if figures["rejected_429"]:
        yield f"{name}: {figures['rejected_429']} of {figures['requests']} requests were answered 429"


def _miscounted(totals: Totals) -> Iterator[str]:
    if totals.lost:
        yield f"{totals.lost} of {totals.sent} calls never reached the witness with success"
    if totals.duplicates:
        yield f"{totals.duplicates} times a call was done that was done already"


def _strange(run: Run, calls: Mapping[str, CallFigures]) -> Iterator[str]:
    """Say which calls reached the witness, or the table, that should not exist."""
    ghosts = [call for call in run.calls.rolled_back if call in calls or call in run.rows]
    if ghosts:
        yield f"{len(ghosts)} calls exist although their transaction was rolled back: {', '.join(ghosts)}"
    if unknown := calls.keys() - set(run.calls.to_run) - set(ghosts):
        yield f"the witness saw {len(unknown)} calls that were not sent: {', '.join(sorted(unknown))}"


def _unfinished(run: Run) -> Iterator[str]:
    """Say how many calls are not completed, and whether anything is still held."""
    states = [run.rows[call].state if call in run.rows else "missing" for call in run.calls.to_run]
    for state in sorted(set(states) - {"completed"}):
        yield f"{states.count(state)} of {len(states)} calls are {state} and not completed"
    if run.slots_left:
        yield f"{run.slots_left} slots are still held at the end"


def _not_retried(run: Run, calls: Mapping[str, CallFigures]) -> Iterator[str]:
    """Say which of the calls that fail first did not take just the attempts that they needed."""
    needed = run.failures + 1
    for call in run.calls.flaky:
        attempts = run.rows[call].attempt if call in run.rows else 0
        requests = calls[call]["requests"] if call in calls else 0
        if (attempts, requests) != (needed, needed):
            yield f"call {call} took {attempts} attempts and {requests} requests, {needed} expected"


def _unfair(run: Run, flood_before_drip: int) -> Iterator[str]:
    most = FAIR_SHARE * len(run.calls.flood)
    if flood_before_drip > most:
        yield f"the small tenant waited for {flood_before_drip} calls of the flood, at most {most:g} are fair"


def _finished_before(flood: Sequence[str], drip: Sequence[str], calls: Mapping[str, CallFigures]) -> int:
    """Return how many calls of the flood were done when the last of the drip was."""
    last = max(_finishes(drip, calls), default=0.0)
    return sum(finish < last for finish in _finishes(flood, calls))


def _finishes(ids: Sequence[str], calls: Mapping[str, CallFigures]) -> list[float]:
    return [finish for call in ids if call in calls and (finish := calls[call]["finished_s"]) is not None]
