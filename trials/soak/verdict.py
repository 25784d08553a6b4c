"""Whether it stayed flat: each figure of later readings against the first one's. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

BOUND = 1.2
"""How many times the first reading a later one may be."""
RATE_BOUND = 0.9
"""The least part of the rate asked for that must have been reached."""
BACKLOG_BOUND = 0.98
"""The least part of the backlog asked for that must still wait."""
SMALL = 256 * 1024
"""Bytes that any table or index may take: below that, one more page would look like growth."""
FEW = 1_000
"""Dead rows that any table may have: they fill a few pages, and how many there are depends on the second."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What was seen in a stretch of the run: the most of what comes and goes, the median of what takes time."""

    label: str
    seconds: float
    bytes: Mapping[str, int]
    """Each table and index, at its largest."""
    dead: Mapping[str, int]
    """Dead rows of each table, at their most: autovacuum comes by once in a stretch."""
    trip_ms: float
    worst_trip_ms: float
    idle_trip_ms: float
    """What the same trip took in a database without a churn, at the same time."""
    trip_ratio: float
    """The median of what a trip took by what the one in the idle database took right before or after it."""
    send_ms: float
    rate: float
    """Calls that ended, per second."""
    waiting: int
    """The standing backlog."""
    horizon: int
    """The most transactions since the oldest snapshot that somebody looked at."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One figure over the readings, and whether it keeps its bound."""

    name: str
    values: Sequence[float]
    ratio: float
    bound: float
    ok: bool


def judge(first: Reading, *later: Reading, bound: float = BOUND) -> list[Finding]:
    """Compare later readings with the first: the median trip, dead rows and sizes may grow up to the bound."""
    return [*judge_work(first, *later, bound=bound), *judge_sizes(first, *later, bound=bound)]


def judge_work(first: Reading, *later: Reading, bound: float = BOUND) -> list[Finding]:
    """Compare the median trip, and what autovacuum finds.

    The trip is measured by an idle one of the same moment: otherwise other load on the machine would be in the figure.
    """
    readings = [first, *later]
    names = sorted(set().union(*(reading.dead for reading in readings)))
    return [
        _grown("median trip by an idle one", [reading.trip_ratio for reading in readings], 0, bound),
        *(_grown(f"{name}: dead rows", [each.dead.get(name, 0) for each in readings], FEW, bound) for name in names),
    ]


def judge_sizes(first: Reading, *later: Reading, bound: float = BOUND) -> list[Finding]:
    """Compare the sizes of tables and indexes."""
    readings = [first, *later]
    names = sorted(set().union(*(reading.bytes for reading in readings)))
    return [_grown(f"{name}: bytes", [each.bytes.get(name, 0) for each in readings], SMALL, bound) for name in names]


def judge_load(readings: Sequence[Reading], *, rate: float, backlog: int) -> list[Finding]:
    """Say whether the load was what it was meant to be: with less of it everything would look flat."""
    return [
        _reached("calls/s", [reading.rate for reading in readings], rate, RATE_BOUND),
        _reached("calls that wait", [reading.waiting for reading in readings], backlog, BACKLOG_BOUND),
    ]


def _reached(name: str, values: Sequence[float], asked: float, bound: float) -> Finding:
    ratio = min(values) / asked
    return Finding(name=name, values=values, ratio=ratio, bound=bound, ok=ratio >= bound)


def _grown(name: str, values: Sequence[float], floor: float, bound: float) -> Finding:
    first, *later = (max(value, floor) for value in values)
    ratio = max(later) / first
    return Finding(name=name, values=values, ratio=ratio, bound=bound, ok=ratio <= bound)
