"""Measure an operation on the large system and on the small one, in turns, and judge the medians."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

from django.conf import settings
from django.test import override_settings

from bench.figures import Bound, Figure
from bench.scale.systems import System

PER_CALL = 1.2
"""How many times the small system's time whatever happens per call, trip or tick may take on the large one."""
PER_PAGE = 1.5
"""The same of pages and commands that show a bounded number of rows."""
FLOOR_MS = 0.5
"""By so much one may be slower whatever the ratio is, where it takes only a few milliseconds."""
FEW_MS = 5.0
"""What counts as a few milliseconds."""
ORDER_MS = 200.0
"""Within how many milliseconds an order of a person returns, whatever waits."""
TICK_S = 1.0
"""The budget of a tick, as the setting `tick` has it by default."""
TICK_BOUND = 1.5
"""How many times its budget a tick may take."""
_BLOCK = 5
"""How often in a row one system does what is quick: it is warm then, as in a process of its own."""
_BLOCK_MS = 50.0
"""What counts as quick."""
_WARM_UP = 6
"""So often each does it before it counts, if that is quick: the server settles on a plan at the sixth."""
_FEWEST = 3
"""Samples of each system at the least, unless one takes longer than the time for all."""
_MOST = 200
"""The most samples of one system, before the figure is short."""
_TIMES = 3
"""Samples of what is measured on the large system alone."""
_LONGER = 4
"""By how much longer it is measured where the figure is short: a busy machine is no growth."""

Prepare = Callable[[System], Any]
Do = Callable[[Any], object]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is measured: `do` is given what `prepare` has returned, which is not measured."""

    name: str = field(kw_only=False)
    do: Do
    prepare: Prepare = lambda system: system


@dataclass(frozen=True, kw_only=True)
class Operation(Task):
    """What is measured on both systems."""

    bound: float = PER_CALL
    share: Callable[[System], float] = lambda _: 1.0
    """By how many calls or rows the time is divided."""
    unit: str = "ms"


Page = partial(Operation, bound=PER_PAGE)


class Order(Task):
    """What a person asks for: it is measured on the large system alone, and the slowest counts."""


class Tick(Task):
    """A tick with much to do: it is measured on the large system alone, and the slowest counts."""


def after(*statements: str) -> Prepare:
    """Return what runs these files of statements on a system."""

    def prepare(system: System) -> System:
        for name in statements:
            system.run(name)
        return system

    return prepare


@contextmanager
def on(system: System) -> Iterator[None]:
    """Let the dispatcher use this system."""
    with override_settings(DISPATCHER={**settings.DISPATCHER, "database": system.alias}):
        yield


def measure(task: Task, large: System, small: System, *, seconds: float) -> Figure:
    """Measure one task; a comparison takes about so many seconds of samples, and a pair of them at the least."""
    for system in (large, small):
        with on(system):
            system.settle()
    if isinstance(task, Operation):
        return _compare(task, large, small, seconds)
    slowest = _slowest(task, large, seconds)
    if isinstance(task, Tick):
        return _absolute(task.name, slowest / 1_000, TICK_S, "s", TICK_BOUND)
    return _absolute(task.name, slowest, ORDER_MS, "ms", 1.0)


def sample(task: Task, system: System) -> float:
    """Return how many milliseconds it takes once."""
    with on(system):
        prepared = task.prepare(system)
        began = perf_counter()
        task.do(prepared)
        return (perf_counter() - began) * 1_000


def judge(task: Operation, ours: list[float], reference: list[float]) -> Figure:
    """Return the figure of these samples (ms), those to warm up included where there are more."""
    large, small = (median(_warm(times)) for times in (ours, reference))
    return Figure(
        name=task.name,
        ours=large,
        reference=small,
        unit=task.unit,
        side=Bound.AT_MOST,
        bound=task.bound,
        floor=FLOOR_MS if small < FEW_MS and task.unit == "ms" else 0.0,
    )


def _warm(times: list[float]) -> list[float]:
    """Leave out the first ones: those before the plan is settled, or at least the very first."""
    return times[_WARM_UP if len(times) >= 2 * _WARM_UP else min(1, len(times) - 1) :]


def _compare(task: Operation, large: System, small: System, seconds: float) -> Figure:
    times: dict[str, list[float]] = {large.alias: [], small.alias: []}
    began = perf_counter()
    while True:
        for system in (large, small):
            count = _BLOCK if max(times[small.alias], default=_BLOCK_MS) < _BLOCK_MS else 1
            times[system.alias] += [sample(task, system) / task.share(system) for _ in range(count)]
        took, samples = perf_counter() - began, len(times[small.alias])
        figure = judge(task, times[large.alias], times[small.alias])
        is_enough = samples >= _MOST or (took > seconds and samples >= _FEWEST)
        if (is_enough and figure.ok) or took > _LONGER * seconds:
            return figure


def _slowest(task: Task, large: System, seconds: float) -> float:
    """Return the slowest of some samples (ms), of fewer where they take long: those are short anyway."""
    began, slowest = perf_counter(), 0.0
    for _ in range(_TIMES):
        slowest = max(slowest, sample(task, large))
        if perf_counter() - began > _LONGER * seconds:
            break
    return slowest


def _absolute(name: str, ours: float, most: float, unit: str, bound: float) -> Figure:
    return Figure(name=name, ours=ours, reference=most, unit=unit, side=Bound.AT_MOST, bound=bound)
