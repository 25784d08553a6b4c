"""What programs for a terminal have in common: a console, tables, and a verdict for people and for tools."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from project.time_limit import GaveUp

INTERRUPTED = 130
_WHOLE = 100
"""Figures from here on are printed without decimals."""


def console(width: int = 120) -> Console:
    """Return the console: as wide as the terminal, or so many columns where there is none: a log keeps long lines."""
    made = Console(highlight=False)
    if not made.is_terminal:
        made.width = width
    return made


def table(title: str, *headings: str, figures: Sequence[str] = ()) -> Table:
    """Return an empty table; its columns of figures come last, to the right."""
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in headings:
        made.add_column(heading, no_wrap=True)
    for heading in figures:
        made.add_column(heading, justify="right", no_wrap=True)
    return made


def mark(*, is_ok: bool) -> str:
    """Return a cell that says whether something held."""
    return "[green]✓[/]" if is_ok else "[red]✗[/]"


def number(value: float | None) -> str:
    """Write a number with three digits that count, thousands apart."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= _WHOLE else f"{value:.3g}"


def show_verdict(console: Console, faults: Iterable[str], praise: str) -> None:
    """Print what did not hold; if all did, the praise."""
    found = list(faults)
    for fault in found:
        console.print(f"✗ {fault}", style="red", markup=False, soft_wrap=True)
    if not found:
        console.print(f"✓ {praise}", style="green")


def write(result: Path, verdict: Mapping[str, object]) -> None:
    """Write a verdict for tools."""
    result.write_text(json.dumps(verdict, indent=2) + "\n")


def judged(name: str, run: Callable[[Console], int], result: Path) -> int:
    """Run a program that leaves its verdict in a file, and return the exit code; one that breaks off has failed."""
    out = console()
    result.unlink(missing_ok=True)
    try:
        return run(out)
    except (Exception, GaveUp) as error:  # noqa: BLE001 - whatever it was, the verdict is that it failed
        write(result, {"ok": False, "faults": [f"{type(error).__name__}: {error}"]})
        out.print(f"✗ The {name} broke off: {error}", style="red", markup=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        out.print("Interrupted; everything is stopped.")
        return INTERRUPTED
