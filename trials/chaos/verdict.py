"""What follows from the records of a run: what was lost, doubled, over a limit, or miscounted. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypedDict

from project.witness.ledger import KeyFigures
from trials.chaos.plan import KINDS, WORKERS, Fault, queues_of

TERMINAL = frozenset({"completed", "cancelled", "discarded"})
LOST = frozenset({"WorkerLost", "WorkerLostError", "Terminated", "SystemExit"})
"""Errors that the dispatcher notes for an attempt whose process went away."""
POISON = "poison"

STOPS_PROCESSES = frozenset(name for name, kind in KINDS.items() if {*kind.targets} <= {*WORKERS, "database"})
"""Faults by which an attempt can be lost between its claim and the first line of its task."""
EXAMPLES = 3
NOTICED_S = 30.0
"""How long after the end of such a fault the loss may come to light: leases, and a database that comes back."""


@dataclass(frozen=True, kw_only=True)
class Struck:
    """A fault as it happened: its beginning, and the moment from which service is expected; monotonic seconds."""

    fault: Fault
    began: float
    over: float


@dataclass(frozen=True, kw_only=True)
class Order:
    """What one transaction sent: what its sender knows of it ("committed", "rolled back" or "unknown")."""

    outcome: str
    count: int


@dataclass(frozen=True, kw_only=True)
class Begin:
    """One execution of a task's first line."""

    call: str
    ticket: str
    at: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """What the database says of a call at the end; its errors as (type, monotonic seconds)."""

    order: str
    kind: str
    queue: str
    state: str
    attempt: int
    errors: Sequence[tuple[str, float]] = ()
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Records:
    """All that is known at the end of a run.

    stops: how often each call's task raised RateLimited. successes: of each call, at the witness.
    keys: what the witness saw of each key. late: starts that were given up, since it was too late for them.
    longest_way_s: of a request, to the witness. audit: what the audit of the database found.
    """

    orders: Mapping[str, Order]
    rows: Mapping[str, Row]
    begins: Sequence[Begin]
    stops: Mapping[str, int]
    struck: Sequence[Struck]
    successes: Mapping[str, int]
    keys: Mapping[str, KeyFigures]
    late: int = 0
    longest_way_s: float = 0.0
    audit: Sequence[str] = ()


class Spread(TypedDict):
    """Seconds; None if there is no figure."""

    median: float | None
    worst: float | None


class Recovery(Spread):
    """Seconds from the end of a fault to the next begin in every queue that it touched."""

    by_kind: dict[str, Spread]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The figures; `failures` says in words what did not hold, and is empty if all did."""

    sent: int
    lost: int
    double_starts: int
    violations: int
    wrong_attempts: int
    wrong_ends: int
    late: int
    longest_way_s: float
    recovery: Recovery
    recovered: Mapping[int, float | None]
    failures: Sequence[str]

    @property
    def is_ok(self) -> bool:
        """Return whether all held."""
        return not self.failures


def judge(records: Records) -> Verdict:
    """Return the verdict on a run."""
    begins = _by_call(records.begins)
    lost = [*_lost(records), *_unreal(records, begins)]
    doubled = [call for call, of_call in begins.items() for _ in range(len(of_call) - len(_tickets(of_call)))]
    counts = {call: _count(row, begins.get(call, ()), records, call) for call, row in records.rows.items()}
    miscounted = [f"{call}: {count.words}" for call, count in counts.items() if count.wrong]
    ends = list(_wrong_ends(records))
    recovered = {struck.fault.number: _recovered(struck, records) for struck in records.struck}
    never = [f"fault {number}" for number, seconds in recovered.items() if seconds is None]
    broken = [f"{key} ({_seen(figures)})" for key, figures in records.keys.items() if figures["violations"]]
    return Verdict(
        sent=_sent(records),
        lost=len(lost),
        double_starts=len(doubled),
        violations=sum(figures["violations"] for figures in records.keys.values()),
        wrong_attempts=sum(count.wrong for count in counts.values()),
        wrong_ends=len(ends),
        late=records.late,
        longest_way_s=records.longest_way_s,
        recovery=_recovery(records.struck, recovered),
        recovered=recovered,
        failures=[
            *_said("calls lost, or run that were never sent", lost),
            *_said("starts for a ticket that had started already", doubled),
            *_said("keys whose limits were broken at the witness", broken),
            *_said("calls whose attempts are counted wrongly", miscounted),
            *_said("calls that ended as they should not", ends),
            *_said("faults after which a queue was never served again", never),
            *_said("findings of the audit", records.audit),
        ],
    )


def _said(what: str, found: Sequence[str]) -> Iterator[str]:
    if found:
        more = ", ..." if len(found) > EXAMPLES else ""
        yield f"{len(found)} {what}: {', '.join(found[:EXAMPLES])}{more}"


def _seen(figures: KeyFigures) -> str:
    window, spacing = figures["most_in_window"], figures["least_spacing_s"]
    words = [f"{figures['violations']} times", f"up to {figures['most_at_once']} at once"]
    if window is not None:
        words.append(f"{window} in a window")
    if spacing is not None:
        words.append(f"{spacing * 1000:.1f} ms apart")
    return ", ".join(words)


def _sent(records: Records) -> int:
    """Return how many calls were sent: what was committed, and what exists of the undecided ones."""
    there = Counter(row.order for row in records.rows.values())
    committed = sum(order.count for order in records.orders.values() if order.outcome == "committed")
    return committed + sum(there[name] for name, order in records.orders.items() if order.outcome == "unknown")


def _lost(records: Records) -> Iterator[str]:
    """Yield each call that was committed and is not there, or not at its end, or not done."""
    there = Counter(row.order for row in records.rows.values())
    for name, order in records.orders.items():
        wanted = order.count if order.outcome == "committed" or (order.outcome == "unknown" and there[name]) else 0
        yield from (f"one of order {name}, {order.outcome}, is missing" for _ in range(wanted - there[name]))
    for call, row in records.rows.items():
        if row.state not in TERMINAL:
            yield f"{call} is {row.state}"
        elif row.state == "completed" and not records.successes.get(call):
            yield f"{call} is completed, and the witness never saw it done"


def _unreal(records: Records, begins: Mapping[str, Sequence[Begin]]) -> Iterator[str]:
    """Yield each call that exists, or ran, although it was never sent."""
    real = {name for name, order in records.orders.items() if order.outcome != "rolled back"}
    yield from (f"{call} was rolled back and is there" for call, row in records.rows.items() if row.order not in real)
    yield from (f"{call} ran and is not there" for call in begins.keys() - records.rows.keys())


def _wrong_ends(records: Records) -> Iterator[str]:
    """Yield calls of the ordinary load that did not complete, and poisonous ones that were not discarded as such."""
    for call, row in records.rows.items():
        if row.state not in TERMINAL:
            continue
        wanted = "discarded" if row.kind == POISON else "completed"
        if row.state != wanted:
            yield f"{call} ({row.kind}) is {row.state} {row.reason or ''}".rstrip()
        elif row.kind == POISON and row.reason != POISON:
            yield f"{call} is poison and discarded for {row.reason}"


@dataclass(frozen=True, kw_only=True)
class _Count:
    """How far the attempts of one call are from what is known of them."""

    wrong: int = 0
    words: str = ""


def _count(row: Row, begins: Sequence[Begin], records: Records, call: str) -> _Count:
    """Compare the attempts that a row counts with its errors, and with the begins that were noted."""
    lost = [at for kind, at in row.errors if kind in LOST]
    known = len(row.errors) + (row.state in {"completed", "active"})
    if row.attempt != known:
        return _Count(wrong=abs(row.attempt - known), words=f"{row.attempt} attempts, {known} ends of attempts")
    stops = records.stops.get(call, 0)
    begun = len(_tickets(begins))
    # A stop that was noted may not have been recorded: then its attempt ended as lost.
    uncounted = begun - stops - row.attempt
    if uncounted > 0:
        words = f"{begun} begins, of which {stops} were rate limited, and {row.attempt} attempts"
        return _Count(wrong=uncounted, words=words)
    never_begun = row.attempt - begun + max(0, stops - len(lost))
    explained = sum(_is_explained(at, records.struck) for at in lost)
    words = f"{row.attempt} attempts, of which {never_begun} never began and faults explain {explained}"
    return _Count(wrong=max(0, never_begun - explained), words=words)


def _is_explained(at: float, struck: Iterable[Struck]) -> bool:
    """Return whether a fault just before may have ended a process between a claim and its task."""
    return any(fault.began <= at <= fault.over + NOTICED_S for fault in struck if fault.fault.kind in STOPS_PROCESSES)


def _recovered(struck: Struck, records: Records) -> float | None:
    """Return the seconds until the last queue that a fault touched was served again, None if one never was."""
    firsts: dict[str, float] = {}
    for begin in records.begins:
        if begin.at > struck.over and begin.call in records.rows:
            queue = records.rows[begin.call].queue
            firsts[queue] = min(begin.at, firsts.get(queue, begin.at))
    touched = [firsts.get(queue) for queue in queues_of(struck.fault.target)]
    return None if None in touched else max(at for at in touched if at is not None) - struck.over


def _recovery(struck: Sequence[Struck], recovered: Mapping[int, float | None]) -> Recovery:
    by_kind: dict[str, list[float]] = defaultdict(list)
    for each in struck:
        seconds = recovered[each.fault.number]
        if seconds is not None:
            by_kind[each.fault.kind].append(seconds)
    every = [seconds for of_kind in by_kind.values() for seconds in of_kind]
    return {**_spread(every), "by_kind": {kind: _spread(of_kind) for kind, of_kind in sorted(by_kind.items())}}


def _spread(seconds: Sequence[float]) -> Spread:
    if not seconds:
        return {"median": None, "worst": None}
    return {"median": round(median(seconds), 3), "worst": round(max(seconds), 3)}


def _by_call(begins: Iterable[Begin]) -> dict[str, list[Begin]]:
    found: dict[str, list[Begin]] = defaultdict(list)
    for begin in begins:
        found[begin.call].append(begin)
    return found


def _tickets(begins: Iterable[Begin]) -> set[str]:
    return {begin.ticket for begin in begins}
