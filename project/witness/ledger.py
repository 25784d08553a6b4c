"""The witness's books: who came when, and which published limit that broke.

Numbers at once and in a window are counted where requests arrive. Spacing is judged by when they set out, as each says:
what a busy machine does to one on its way is no one's fault, and would be taken for the fault of the next one.

Pure: no clock, no sockets. Every time is a whole number of nanoseconds of one monotonic clock, so that every
comparison is exact; every span of time is half open, its end no longer being part of it.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypedDict

SECOND = 1_000_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """At most `limit` starts in any `period` of nanoseconds."""

    limit: int
    period: int

    @property
    def spacing(self) -> int:
        """Return the nanoseconds between two starts if they are spread evenly."""
        return self.period // self.limit


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What the third party publishes for one key; `None` means that it does not care."""

    concurrency: int | None = None
    rate: Window | None = None
    throttle: Window | None = None


@dataclass(kw_only=True, slots=True, eq=False)
class Visit:
    """One request: when it set out, came, and was answered, and which limits of which keys it broke."""

    call: str
    set_out: int
    started: int
    ended: int | None = None
    broken: Mapping[str, Sequence[str]] = field(default_factory=dict)
    succeeded: bool = False


class KeyFigures(TypedDict):
    """What one key saw; spacing in seconds, `None` if fewer than two came; no window without a rate."""

    requests: int
    most_at_once: int
    most_in_window: int | None
    least_spacing_s: float | None
    rejected_429: int
    violations: int


class CallFigures(TypedDict):
    """What one call did; `finished_s` is the end of its last success, in seconds of the witness's clock."""

    requests: int
    successes: int
    finished_s: float | None


class Record(TypedDict):
    """The whole book, as GET /record gives it; a refusal that broke two keys is one `rejected_429` here."""

    tolerance_s: float
    longest_way_s: float
    rejected_429: int
    keys: dict[str, KeyFigures]
    calls: dict[str, CallFigures]


def most_in_window(starts: Sequence[int], period: int) -> int:
    """Return the most of the sorted `starts` that one window of `period` holds, wherever it begins."""
    most = first = 0
    for last, start in enumerate(starts):
        while start - starts[first] >= period:
            first += 1
        most = max(most, last - first + 1)
    return most


def most_at_once(spans: Iterable[tuple[int, int | None]]) -> int:
    """Return the most of the `spans` (start, end; no end yet is `None`) that one instant holds."""
    edges = []
    for start, end in spans:
        edges.append((start, 1))
        if end is not None:
            edges.append((end, -1))
    most = now = 0
    for _, step in sorted(edges):
        now += step
        most = max(most, now)
    return most


def least_spacing(starts: Sequence[int]) -> int | None:
    """Return the shortest time between two of the sorted `starts`, `None` if there are fewer than two."""
    return min((later - earlier for earlier, later in pairwise(starts)), default=None)


@dataclass(kw_only=True, slots=True)
class Account:
    """The page of one key: every visit, and apart from them those that were welcome and so are counted."""

    limits: Limits
    visits: list[Visit] = field(default_factory=list)
    welcome: list[Visit] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    departures: list[int] = field(default_factory=list)

    def broken_by(self, at: int, *, set_out: int, tolerance: int) -> list[str]:
        """Return the limits that one more start `at`, having set out before, would break among the welcome ones.

        Requests are timed as they arrive and booked a moment later, maybe in another order: what starts or
        ends after `at` is looked at too.
        """
        broken = []
        concurrency, rate, throttle = self.limits.concurrency, self.limits.rate, self.limits.throttle
        if concurrency is not None:
            beside = [(max(v.started, at), v.ended) for v in self.welcome if v.ended is None or v.ended > at]
            if most_at_once([*beside, (at, None)]) > concurrency:
                broken.append("concurrency")
        if rate is not None and most_in_window(_near(self.starts, at, rate.period), rate.period) > rate.limit:
            broken.append("rate")
        if throttle is not None:
            spacing = least_spacing(_near(self.departures, set_out, throttle.spacing))
            if spacing is not None and spacing < throttle.spacing - tolerance:
                broken.append("throttle")
        return broken

    def book(self, visit: Visit) -> None:
        """Enter a visit; only a welcome one counts against those that follow."""
        self.visits.append(visit)
        if not visit.broken:
            self.welcome.append(visit)
            insort(self.starts, visit.started)
            insort(self.departures, visit.set_out)

    def figures(self, name: str) -> KeyFigures:
        """Return what this key saw, refused visits included: they came, whatever they were answered."""
        starts = sorted(visit.started for visit in self.visits)
        spacing = least_spacing(sorted(visit.set_out for visit in self.visits))
        rate = self.limits.rate
        return {
            "requests": len(starts),
            "most_at_once": most_at_once((visit.started, visit.ended) for visit in self.visits),
            "most_in_window": most_in_window(starts, rate.period) if rate else None,
            "least_spacing_s": None if spacing is None else spacing / SECOND,
            "rejected_429": sum(name in visit.broken for visit in self.visits),
            "violations": sum(len(visit.broken.get(name, ())) for visit in self.visits),
        }


def _near(counted: list[int], at: int, period: int) -> list[int]:
    """Return `at` among those of the counted times that may share a window of `period` with it, sorted."""
    near = counted[bisect_left(counted, at - period) : bisect_left(counted, at + period)]
    insort(near, at)
    return near


class Ledger:
    """The books of all keys; `tolerance` (ns) is forgiven in spacing alone, for starts that come a little late."""

    def __init__(self, limits: Mapping[str, Limits], *, tolerance: int) -> None:
        """Open an empty account for each key that is published."""
        self.tolerance = tolerance
        self.accounts = {name: Account(limits=published) for name, published in limits.items()}
        self.visits: list[Visit] = []

    def start(self, *, keys: Iterable[str], call: str, at: int, set_out: int | None = None) -> Visit:
        """Book a request that came `at`; `broken` names the limits that it broke. KeyError: unknown key.

        set_out: when it began its way, if it says so; else it took no time.
        """
        began = at if set_out is None else min(at, set_out)
        accounts = {key: self.accounts[key] for key in keys}
        judged = {
            key: account.broken_by(at, set_out=began, tolerance=self.tolerance) for key, account in accounts.items()
        }
        broken = {key: limits for key, limits in judged.items() if limits}
        visit = Visit(call=call, set_out=began, started=at, broken=broken)
        for account in accounts.values():
            account.book(visit)
        self.visits.append(visit)
        return visit

    def end(self, visit: Visit, *, at: int, succeeded: bool) -> None:
        """Book the answer to a visit."""
        visit.ended = at
        visit.succeeded = succeeded

    def record(self) -> Record:
        """Return every key's figures and, for each call, what it did."""
        successes = [visit for visit in self.visits if visit.succeeded]
        requests = Counter(visit.call for visit in self.visits)
        succeeded = Counter(visit.call for visit in successes)
        finished = {visit.call: visit.ended / SECOND for visit in successes if visit.ended is not None}
        return {
            "tolerance_s": self.tolerance / SECOND,
            "longest_way_s": max((visit.started - visit.set_out for visit in self.visits), default=0) / SECOND,
            "rejected_429": sum(bool(visit.broken) for visit in self.visits),
            "keys": {name: account.figures(name) for name, account in self.accounts.items()},
            "calls": {
                call: {"requests": count, "successes": succeeded[call], "finished_s": finished.get(call)}
                for call, count in requests.items()
            },
        }
