"""Print and store each figure as it is measured, and give up on one that takes too long."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from bench.figures import Bound, Figure
from project.screen import number
from project.time_limit import GaveUp, within

_LINE = "{name:<92} {ours:>9} {reference:>9} {unit:<10} {ratio:>7}  {bound:<7}"


class Report:
    """What was measured so far: each figure is printed and stored at once, so that a run that ends early shows them."""

    def __init__(self, console: Console, path: Path) -> None:
        """Begin without a figure; those of an earlier run are forgotten."""
        self._console = console
        self._path = path
        self.figures: list[Figure] = []
        self._store()
        self._print(
            _LINE.format(name="figure", ours="ours", reference="reference", unit="", ratio="ratio", bound="bound")
        )

    @property
    def is_ok(self) -> bool:
        """Whether there is a figure, and all keep their bounds."""
        return bool(self.figures) and all(figure.ok for figure in self.figures)

    def add(self, figure: Figure) -> None:
        """Print a figure and store all so far."""
        self.figures.append(figure)
        self._store()
        verdict = "[green]ok[/]" if figure.ok else f"[bold red]short[/] {escape(figure.note)}"
        self._print(f"{escape(_line(figure))} {verdict}")

    def measure(self, name: str, measure: Callable[[], Figure | None], *, limit: float) -> Figure | None:
        """Measure one figure within so many seconds, and return it; None if there is none.

        One that takes longer, or fails, has no numbers, says why, and is short.
        """
        try:
            with within(limit):
                figure = measure()
        except GaveUp as gave_up:
            figure = _unmeasured(name, str(gave_up))
        except Exception as error:  # noqa: BLE001 - the others are measured all the same
            figure = _unmeasured(name, f"{type(error).__name__}: {error}".strip().partition("\n")[0])
        if figure is not None:
            self.add(figure)
        return figure

    def measure_all(self, name: str, figures: Iterator[Figure], *, limit: float) -> bool:
        """Measure figures that come one by one, each within so many seconds, until one fails; return if none did."""
        while (measured := self.measure(name, lambda: next(figures, None), limit=limit)) is not None:
            if measured.note:
                return False
        return True

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, soft_wrap=True)

    def _store(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_suffix(".draft")
        draft.write_text(json.dumps([figure.as_json() for figure in self.figures], indent=2) + "\n")
        draft.replace(self._path)


def _unmeasured(name: str, note: str) -> Figure:
    return Figure(name=name, ours=None, reference=None, unit="", side=Bound.AT_MOST, bound=0, note=note)


def _line(figure: Figure) -> str:
    return _LINE.format(
        name=figure.name,
        ours=number(figure.ours),
        reference=number(figure.reference),
        unit=figure.unit,
        ratio=number(figure.ratio),
        bound="-" if figure.ours is None else f"{figure.side.value} {figure.bound:g}",
    )
