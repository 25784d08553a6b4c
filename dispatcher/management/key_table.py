"""The layout of keys in a terminal: a table of many, or the details of a few."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from rich.table import Table
from rich.text import Text

from dispatcher.limits.policy import describe, describe_period
from dispatcher.reports import KeyState, KeyStatus
from dispatcher.reports.words import brief, in_words

GAP: Final = 2
SHORTEST_NAME: Final = 12
_COLORS: Final = {KeyState.PAUSED: "red", KeyState.BLOCKED: "red", KeyState.AT_LIMIT: "yellow", KeyState.OPEN: "green"}


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column; a narrow terminal drops those with the highest `rank` first, and never rank 0."""

    title: str
    cells: Sequence[str]
    is_right: bool = False
    rank: int = 0

    @property
    def width(self) -> int:
        """The width of its longest cell."""
        return max(len(self.title), *map(len, self.cells))


def table(keys: Sequence[KeyStatus], width: int) -> Table:
    """Return the columns that are not empty and fit; names are shortened to the remaining width."""
    found = [column for column in _columns(keys) if any(column.cells)]
    while _width(found) > width:
        last = max(found, key=lambda column: column.rank)
        if last.rank == 0 or _width(found) - found[0].width + SHORTEST_NAME <= width:
            break
        found.remove(last)
    room = max(SHORTEST_NAME, width - _width(found) + found[0].width)
    made = plain_table()
    for column in found:
        made.add_column(column.title, justify="right" if column.is_right else "left", no_wrap=True)
    for key, (name, state, *cells) in zip(keys, zip(*(column.cells for column in found), strict=True), strict=True):
        made.add_row(Text(_cut(name, room)), Text(state, style=_COLORS[key.state]), *map(Text, cells))
    return made


def plain_table() -> Table:
    """Return a table without lines."""
    return Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")


def details(key: KeyStatus) -> str:
    """Return all facts of one key, one line each."""
    facts = list(_details(key))
    width = max(len(title) for title, _ in facts)
    return "\n".join([f"{key.name}: {_state(key)}", *(f"  {title.ljust(width)}  {fact}" for title, fact in facts)])


def _columns(keys: Sequence[KeyStatus]) -> list[Column]:
    return [
        Column(title="Key", cells=[key.name for key in keys]),
        Column(title="State", cells=[_state(key) for key in keys]),
        Column(title="In use", cells=[_in_use(key) for key in keys], is_right=True),
        Column(title="Window", cells=[_window(key) for key in keys], is_right=True),
        Column(title="Frees", cells=[_span(key.at, key.frees_at) for key in keys], is_right=True, rank=3),
        Column(title="Next", cells=[_next(key) for key in keys], is_right=True, rank=1),
        Column(title="Waiting", cells=[f"{key.waiting:,}" for key in keys], is_right=True),
        Column(title="Oldest", cells=[_span(key.waiting_since, key.at) for key in keys], is_right=True, rank=2),
        Column(title="Oversized", cells=[f"{key.oversized:,}" if key.oversized else "" for key in keys], is_right=True),
        Column(title="Override", cells=[_span(key.at, key.overridden_until) for key in keys], is_right=True),
    ]


def _width(shown: Sequence[Column]) -> int:
    return sum(column.width for column in shown) + GAP * (len(shown) - 1)


def _cut(name: str, width: int) -> str:
    return name if len(name) <= width else f"{name[: width - 1]}…"


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
