"""A figure: ours against a reference and its bound; and how the two are measured side by side."""

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter, sleep
from typing import Self

from project.witness.server import Witness

TIMEOUT_S = 180.0
POLL_S = 0.003


class Bound(Enum):
    """On which side of its bound a ratio must be."""

    AT_MOST = "≤"
    AT_LEAST = "≥"


_HOLDS = {Bound.AT_MOST: operator.le, Bound.AT_LEAST: operator.ge}


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One line of the table; what could not be measured has no numbers, and is not ok."""

    name: str
    ours: float | None
    reference: float | None
    unit: str
    side: Bound
    bound: float
    floor: float = 0.0
    """By so much, in the unit, ours may be more than the reference whatever the ratio is."""
    note: str = ""
    """Why there are no numbers."""

    @classmethod
    def rate(cls, name: str, ours: float, reference: float, bound: float, *, unit: str = "calls/s") -> Self:
        """Return a figure of calls per second, or of another rate: at least so many times the reference's."""
        return cls(name=name, ours=ours, reference=reference, unit=unit, side=Bound.AT_LEAST, bound=bound)

    @classmethod
    def time(cls, name: str, ours: float, reference: float, bound: float, *, unit: str = "ms") -> Self:
        """Return a figure of a time, or of another cost: at most so many times the reference's."""
        return cls(name=name, ours=ours, reference=reference, unit=unit, side=Bound.AT_MOST, bound=bound)

    @classmethod
    def absolute(cls, name: str, ours: float, unit: str, *, bound: float) -> Self:
        """Return a figure of a cost that is compared with its bound only."""
        return cls.time(name, ours, 1, bound, unit=unit)

    @property
    def ratio(self) -> float | None:
        """Return ours by reference, None if one of them is missing; nothing against nothing is 0."""
        if self.ours is None or self.reference is None:
            return None
        return self.ours / self.reference if self.reference else self.ours

    @property
    def ok(self) -> bool:
        """Return whether the ratio keeps its bound, or the difference is below the floor."""
        if self.ours is None or self.reference is None or self.ratio is None:
            return False
        is_equal = self.side is Bound.AT_MOST and self.floor > 0 and self.ours - self.reference <= self.floor
        return is_equal or bool(_HOLDS[self.side](self.ratio, self.bound))

    def as_json(self) -> dict[str, object]:
        """Return the line for tools."""
        return {
            "name": self.name,
            "ours": self.ours,
            "reference": self.reference,
            "unit": self.unit,
            "ratio": self.ratio,
            "bound": self.bound,
            "floor": self.floor,
            "ok": self.ok,
            "note": self.note,
        }


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much to measure: everything, or so little that a developer does not wait."""

    rounds: int
    """Rounds of what takes a second or less."""
    long_rounds: int
    """Rounds of what takes many seconds."""
    scale: float
    """By which the numbers of calls are multiplied."""
    limit: float
    """After how many seconds a figure is given up."""

    def calls(self, number: int) -> int:
        """Return how many calls to use where all the effort takes `number`."""
        return max(1, round(number * self.scale))


FULL = Effort(rounds=9, long_rounds=3, scale=1.0, limit=900)
QUICK = Effort(rounds=3, long_rounds=1, scale=0.1, limit=300)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What every group of figures is given: how much to measure, and what stands ready for it."""

    effort: Effort
    run_dir: Path
    """Where processes keep their logs."""
    witness: Witness
    """The third party; its address is in the environment."""
    only: str = ""
    """What the names of the figures have in them that are measured, of trips."""
    shows_functions: bool = False
    """Whether the functions that a trip spends most in are printed."""


Measure = Callable[[], float]
"""Do one round and return its result, in the unit of the figure."""


def in_turns(*measures: Measure, rounds: int) -> list[float]:
    """Measure all in turn, A B C A B C, after a round to warm up; return the median of each."""
    for measure in measures:
        measure()
    taken = [[measure() for measure in measures] for _ in range(rounds)]
    return [median(results) for results in zip(*taken, strict=True)]


def each(action: Callable[[], object], times: int) -> float:
    """Return the median milliseconds that one action takes."""
    return median(_timed(action) for _ in range(times))


def _timed(action: Callable[[], object]) -> float:
    began = perf_counter()
    action()
    return (perf_counter() - began) * 1_000


def ensure(holds: object, what: object) -> None:
    """Raise AssertionError with what there is instead, unless an operation did what it is measured for."""
    if not holds:
        raise AssertionError(what)


def wait_for(count: Callable[[], int], expected: int) -> None:
    """Wait until the count is reached. Raises TimeoutError naming how far it came."""
    deadline = monotonic() + TIMEOUT_S
    while (reached := count()) < expected:
        if monotonic() > deadline:
            message = f"{reached} of {expected} calls ended within {TIMEOUT_S:g} s"
            raise TimeoutError(message)
        sleep(POLL_S)


Group = Callable[[Bench], Iterator[Figure]]
"""Figures that are measured together."""
