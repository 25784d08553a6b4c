"""What is sent: kinds of calls that keep every limit busy, and some that misbehave."""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from dispatcher.request import Call
from trials.chaos import limits, tasks
from trials.chaos.settings import SIDE_QUEUE

POISON = "poison"
"""The kind whose calls kill their process every time, and so must end discarded."""
POISON_ATTEMPTS = 5
# Within the 8 ms that the witness forgives, and within the margin.
EVENLY, IN_WINDOW = 0.003, 0.04


def _think(chance: Random) -> Call:
    cost = chance.choice([1, 2, limits.DEAR_COST])
    seen = ["tokens", "tokens.dear"] if cost == limits.DEAR_COST else ["tokens"]
    return _visit(chance, {"tokens": cost}, seen=seen)


def _book(chance: Random) -> Call:
    keys = chance.choice([[], ["ledger"]])
    return _visit(chance, keys, seen=[limits.SIDE_KEY, *keys], longest=0.2, queue=SIDE_QUEUE)


KINDS: Mapping[str, Callable[[Random], Call]] = {
    # A concurrency and a throttle; a window; two keys, of which all tenants share one.
    "pay": lambda chance: _visit(chance, ["pay"], most_late=EVENLY),
    "mail": lambda chance: _visit(chance, ["mail"], longest=0.15, most_late=IN_WINDOW),
    "sync": lambda chance: _visit(chance, ["partner", f"tenant:{chance.choice(limits.TENANTS)}"]),
    # More than 1 of a key; the other queue, which has limits of its own, and half of these the ledger, too.
    "think": _think,
    "book": _book,
    # It fails once or twice.
    "ship": lambda chance: _visit(chance, ["courier"], failures=chance.randint(1, 2)),
    # It raises RateLimited now and then.
    "be_rate_limited": lambda chance: Call(
        task=tasks.be_rate_limited, kwargs={"keys": ["strict"], "seconds": _seconds(chance)}, keys=["strict"]
    ),
    # No key at all.
    "wander": lambda chance: _visit(chance, [], longest=0.1),
    # It kills the process, every time.
    POISON: lambda _: Call(
        task=tasks.poison, keys=["partner"], retry={"max_attempts": POISON_ATTEMPTS, "initial_interval": 0.2}
    ),
}
WEIGHTS: Mapping[str, float] = dict.fromkeys(KINDS, 1.0) | {POISON: 0.08}
BACKLOG: Mapping[str, int] = dict.fromkeys(KINDS, 20) | {"pay": 10, POISON: 1}
"""How many calls of a kind may not have started before its senders hold back: limits are busy, and drain in seconds."""


def _visit(
    chance: Random,
    keys: list[str] | dict[str, int],
    *,
    seen: list[str] | None = None,
    longest: float = 0.4,
    queue: str | None = None,
    **asked: Any,
) -> Call:
    kwargs = {"keys": list(keys) if seen is None else seen, "seconds": _seconds(chance, longest), **asked}
    return Call(task=tasks.visit, kwargs=kwargs, keys=keys, queue=queue)


def _seconds(chance: Random, longest: float = 0.3) -> float:
    return round(chance.uniform(0.05, longest), 3)
