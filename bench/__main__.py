"""Measure the figures and print them with their bounds: `python -m bench [--quick] [names]`.

Exits 0 only if every figure keeps its bound. Writes `.run/bench.json`.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module

import django
from django.core.management import call_command
from rich.console import Console
from rich.table import Table

from bench import database
from bench.figures import FULL, QUICK, Bench, Bound, Effort, Figure, Group
from bench.third_party import witness
from project.homes import RUN
from project.services import Services, embedded, valkey

RESULT = RUN / "bench.json"
GROUPS = {
    "send": "sending",
    "send_many": "sending",
    "admission": "admission",
    "backlog": "admission",
    "sleeping": "admission",
    "parked": "admission",
    "end_to_end": "running",
    "hot_key": "running",
    "hand_over": "running",
    "limits": "limits",
    "fetching": "http",
    "over_http": "http",
}
"""The groups of figures, in the order in which they are measured, and the module that each is in."""

_WHOLE = 100
"""Figures from here on are printed without decimals."""


def main() -> int:
    """Measure what is asked for, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(GROUPS)}; all of them by default")
    parser.add_argument("--quick", action="store_true", help="measure little: for development, not for a verdict")
    asked = parser.parse_args()
    if unknown := sorted(set(asked.names) - set(GROUPS)):
        parser.error(f"{unknown[0]!r} is not one of {', '.join(GROUPS)}")
    console = Console(width=None if sys.stdout.isatty() else 120)
    with embedded(name="bench") as services, _ready(services, QUICK if asked.quick else FULL) as bench:
        figures = [figure for name in asked.names or GROUPS for figure in measured(console, name, bench)]
    show(console, figures)
    RESULT.write_text(json.dumps([figure.as_json() for figure in figures], indent=2) + "\n")
    return 0 if all(figure.ok for figure in figures) else 1


def measured(console: Console, name: str, bench: Bench) -> Iterator[Figure]:
    """Yield the figures of a group; what goes wrong is said, and is one that is not ok."""
    began = time.monotonic()
    console.print(f"{name} ...", end=" ")
    try:
        group: Group = getattr(import_module(f"bench.{GROUPS[name]}"), name)
        yield from group(bench)
    except Exception as error:  # noqa: BLE001 - the others are measured all the same
        console.print(f"{type(error).__name__}: {error}", style="red", markup=False)
        yield Figure(name=name, ours=None, reference=None, unit="", side=Bound.AT_LEAST, bound=0)
    console.print(f"{time.monotonic() - began:.0f} s")


def show(console: Console, figures: Sequence[Figure]) -> None:
    """Print the table."""
    table = Table("Figure")
    for heading in ("ours", "reference", "", "ratio", "bound", ""):
        table.add_column(heading, justify="right" if heading else "left")
    for figure in figures:
        table.add_row(
            figure.name,
            _number(figure.ours),
            _number(figure.reference),
            figure.unit,
            "-" if figure.ratio is None else f"{figure.ratio:.3g}",
            f"{figure.side.value} {figure.bound:g}",
            "[green]ok[/]" if figure.ok else "[bold red]short[/]",
        )
    console.print(table)


@contextmanager
def _ready(services: Services, effort: Effort) -> Iterator[Bench]:
    """Have databases, notes and the witness ready, and Django set up for them."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "bench.settings"
    with database.databases(services) as (address, beside), _notes(services), witness() as third_party:
        os.environ["DATABASE_URL"], os.environ["BENCH_BESIDE_URL"] = address, beside
        django.setup()
        for alias in ("default", "beside"):
            call_command("migrate", database=alias, verbosity=0)
            database.run("make_bare", using=alias)
        yield Bench(effort=effort, home=services.home, witness=third_party)


@contextmanager
def _notes(services: Services) -> Iterator[None]:
    """Have a Redis where tasks note what they saw: the broker, or a Valkey if the broker is something else."""
    if services.broker_url.startswith("redis"):
        os.environ["BENCH_NOTES_URL"] = services.broker_url
        yield
        return
    with valkey(services.home) as server:
        os.environ["BENCH_NOTES_URL"] = server.url
        yield


def _number(value: float | None) -> str:
    """Write a number with three digits that count, thousands apart."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= _WHOLE else f"{value:.3g}"


sys.exit(main())
