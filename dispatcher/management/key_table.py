"""The layout of keys and queues in a terminal: a table of many, or the details of a few keys."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from dispatcher.limits.policy import describe, describe_period
from dispatcher.reports import KeyState, KeyStatus, Runnable
from dispatcher.reports.health import MOST_RUNNABLE
from dispatcher.reports.words import brief, in_words

Paint = Callable[..., str]
"""Gives a text colors, as Django's `colorize` does."""
GAP: Final = 2
SHORTEST_NAME: Final = 12
_COLORS: Final = {
    KeyState.PAUSED: "red",
    KeyState.BLOCKED: "red",
    KeyState.AT_LIMIT: "yellow",
    KeyState.OBSERVED: "cyan",
    KeyState.OPEN: "green",
}


def plain(text: str, **_: Any) -> str:
    """Return a text without colors."""
    return text


def table(keys: Sequence[KeyStatus], width: int, paint: Paint = plain) -> str:
    """Return the columns that are not empty, a line for each key; names are shortened to the remaining width."""
    columns = [(title, cells) for title, cell in _COLUMNS.items() if any(cells := [cell(key) for key in keys])]
    others = sum(max(map(len, [title, *cells])) + GAP for title, cells in columns[1:])
    room = max(SHORTEST_NAME, width - others)
    columns[0] = ("Key", [name if len(name) <= room else f"{name[: room - 1]}…" for name in columns[0][1]])
    at = max(map(len, ["Key", *columns[0][1]])) + GAP
    header, *lines = rows(columns, lefts=2)
    ends = [at + len(_state(key)) for key in keys]
    painted = [
        f"{line[:at]}{paint(line[at:end], fg=_COLORS[key.state])}{line[end:]}"
        for key, line, end in zip(keys, lines, ends, strict=True)
    ]
    return "\n".join([paint(header, opts=("bold",)), *painted])


def queue_table(queues: Sequence[Runnable]) -> str:
    """Return a line for each queue: how many calls could start, how long the oldest has waited, and how many run."""
    counts = [f"{each.calls:,}{' or more' if each.calls == MOST_RUNNABLE else ''}" for each in queues]
    oldest = [_span(each.since, each.at) for each in queues]
    columns = [("Queue", [each.name for each in queues]), ("Runnable", counts), ("Oldest", oldest)]
    return "\n".join(rows([*columns, ("Active", [f"{each.active:,}" for each in queues])]))


def rows(columns: Sequence[tuple[str, Sequence[str]]], *, lefts: int = 1) -> list[str]:
    """Return the titles and the rows of columns as lines of text; the first `lefts` columns begin on the left."""
    padded = []
    for number, (title, cells) in enumerate(columns):
        width = max(map(len, [title, *cells]))
        padded.append([cell.ljust(width) if number < lefts else cell.rjust(width) for cell in (title, *cells)])
    return [(" " * GAP).join(row).rstrip() for row in zip(*padded, strict=True)]


def details(key: KeyStatus) -> str:
    """Return all facts of one key, one line each."""
    facts = list(_details(key))
    width = max(len(title) for title, _ in facts)
    return "\n".join([f"{key.name}: {_state(key)}", *(f"  {title.ljust(width)}  {fact}" for title, fact in facts)])


def _state(key: KeyStatus) -> str:
    return key.state.label.lower()


def _span(since: datetime | None, until: datetime | None) -> str:
    return brief(until - since) if since and until else ""


def _in_use(key: KeyStatus) -> str:
    limit = key.policy.concurrency
    return str(key.in_flight) if limit is None else f"{key.in_flight}/{limit}"


def _window(key: KeyStatus) -> str:
    rate = key.policy.rate
    return f"{key.used}/{rate.limit} in {describe_period(rate)}" if rate else ""


def _next(key: KeyStatus) -> str:
    """Return when the next call may start; "-" if that takes an end or a person."""
    if key.is_paused or "concurrency" in key.stopped_by or ("members" in key.stopped_by and key.opens_at is None):
        return "-"
    at = max(filter(None, (key.opens_at, key.next_start_at)), default=key.at)
    return brief(at - key.at) if at > key.at else "now"


def _details(key: KeyStatus) -> Iterator[tuple[str, str]]:
    policy = key.policy
    limit = "without a limit" if policy.concurrency is None else f"of {policy.concurrency}"
    parts = f": {key.running} running, {key.admitted} on the way to a worker" if key.in_flight else ""
    yield "In flight", f"{key.in_flight} {limit}{parts}"
    if policy.per_worker is not None:
        yield "Per worker", f"at most {policy.per_worker}; one worker holds {key.most_of_one_worker}"
    if policy.rate is not None:
        frees = f"; the first frees {in_words(key.frees_at, key.at)}" if key.frees_at else ""
        yield "Window", f"{key.used} of {policy.rate.limit} starts in any {describe_period(policy.rate)}{frees}"
    if policy.throttle is not None and key.next_start_at is not None:
        next_start = "now" if key.next_start_at <= key.at else in_words(key.next_start_at, key.at)
        following = "" if key.is_paused else f"; next start {next_start}"
        yield "Throttle", f"{policy.throttle.limit} per {describe_period(policy.throttle)}{following}"
    yield from _observed(key)
    yield from _turns(key)
    if key.members is not None:
        yield "Members", f"{key.members.total}, of which {key.members.open} have room"
    if key.stopped_by:
        yield "At limit", ", ".join(key.stopped_by)
    if key.opens_at is not None:
        yield "Opens", in_words(key.opens_at, key.at)
    if key.blocked_until is not None:
        yield "Blocked", f"until {key.blocked_until:%Y-%m-%d %H:%M:%S %Z}"
    if key.overridden_until is not None:
        yield "Override", f"until {key.overridden_until:%Y-%m-%d %H:%M:%S %Z}; then {describe(key.own_policy)}"
    since = f", the first {in_words(key.waiting_since, key.at)}" if key.waiting_since else ""
    yield "Waiting", f"{key.waiting:,}{since}"
    if key.oversized:
        yield "Oversized", f"{key.oversized:,} of these cost more than the limits ever allow, and wait alone"


def _observed(key: KeyStatus) -> Iterator[tuple[str, str]]:
    """Say what the limits of an observed key would have done."""
    if key.observed is not None:
        yield "Observed", f"since {key.observed.since:%Y-%m-%d %H:%M:%S %Z}; its limits {key.observed}"


def _turns(key: KeyStatus) -> Iterator[tuple[str, str]]:
    """Say by what the calls that wait take turns, and where each share is."""
    if key.policy.fair_by is not None:
        yield "Turns", f"by {key.policy.fair_by}"
    if key.policy.weight > 1:
        yield "Weight", f"{key.policy.weight}"
    for share in key.shares:
        priority = f", priority {share.priority}" if share.priority else ""
        lanes = "1 lane waits" if share.lanes == 1 else f"{share.lanes:,} lanes wait"
        place = "due" if share.ahead == 0 else f"{abs(share.ahead):,.1f} {'ahead' if share.ahead > 0 else 'behind'}"
        yield (
            "Share",
            f"{share.share or f'none of {key.policy.fair_by}'}: {lanes}{priority}, weight {share.weight}, {place}",
        )


_COLUMNS: Final[dict[str, Callable[[KeyStatus], str]]] = {
    "Key": lambda key: key.name,
    "State": _state,
    "In use": _in_use,
    "Window": _window,
    "Next": _next,
    "Waiting": lambda key: f"{key.waiting:,}",
    "Oldest": lambda key: _span(key.waiting_since, key.at),
    "Oversized": lambda key: f"{key.oversized:,}" if key.oversized else "",
    "Would delay": lambda key: f"{key.observed.delayed:,}" if key.observed else "",
    "Override": lambda key: _span(key.at, key.overridden_until),
}
"""What a column says of a key, by its title."""
