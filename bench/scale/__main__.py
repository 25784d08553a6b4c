"""Measure every operation on a large system beside a small one: `python -m bench.scale [--quick] [names]`.

Exits 0 only if every figure keeps its bound. Writes `.run/scale.json`, figure by figure.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import django
from django.core.management import call_command

from bench.report import Report
from bench.scale.sizes import SMALL, YARDSTICK, Size
from bench.scale.systems import Databases, System, timed
from project.run_dirs import RUN
from project.screen import console
from project.services import embedded, own_database

if TYPE_CHECKING:
    from bench.scale.compare import Task
    from bench.scale.variants import Variant

RESULT = RUN / "scale.json"
NAMES = ("yardstick", "parked", "due", "expiring", "lanes", "awake", "ended")
"""The variants; variants.py can be imported only when Django is set up."""
MADE = ("small", "large", "small_template", "large_template")


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much to measure."""

    size: Size
    seconds: float
    """How long the samples of one comparison may take, roughly."""
    limit: float
    """After how many seconds a figure is given up."""


FULL = Effort(size=YARDSTICK, seconds=4.0, limit=60.0)
QUICK = Effort(size=YARDSTICK.tenth(), seconds=1.0, limit=20.0)


def main() -> int:
    """Measure what is asked for, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(NAMES)}; all of them by default")
    parser.add_argument("--quick", action="store_true", help="a tenth of the size, and fewer samples")
    parser.add_argument("--match", metavar="TEXT", default="", help="measure only figures whose name has this in it")
    asked = parser.parse_args()
    if unknown := sorted(set(asked.names) - set(NAMES)):
        parser.error(f"{unknown[0]!r} is not one of {', '.join(NAMES)}")
    effort = QUICK if asked.quick else FULL
    with embedded(name="scale") as services, _ready(services.database_url, effort) as databases:
        report = Report(console(160), RESULT)
        for name in asked.names or NAMES:
            _measure(name, asked.match, report, databases, effort)
    return 0 if report.is_ok else 1


@contextmanager
def _ready(server_url: str, effort: Effort) -> Iterator[Databases]:
    """Set Django up, and make the templates of both systems."""
    databases = Databases(server_url)
    with ExitStack() as made:
        for name in MADE:
            made.enter_context(own_database(server_url, f"scale_{name}"))
        os.environ |= {
            "DATABASE_URL": databases.url("small"),
            "SCALE_LARGE_URL": databases.url("large"),
            "SCALE_LIMIT": str(effort.limit),
            "DJANGO_SETTINGS_MODULE": "bench.scale.settings",
        }
        django.setup()
        call_command("migrate", verbosity=0)
        for name, size in (("small", SMALL), ("large", effort.size)):
            template = f"{name}_template"
            databases.copy("small", template)
            with timed(f"{name}: {size.tenants:,} tenants, {size.waiting:,} waiting, {size.ended:,} ended"):
                databases.fill(template, size)
        yield databases


def _measure(name: str, match: str, report: Report, databases: Databases, effort: Effort) -> None:
    """Make both systems of a variant, and measure its tasks one by one."""
    from bench.scale import compare, pages  # noqa: PLC0415 -- Django is set up now
    from bench.scale.variants import VARIANTS  # noqa: PLC0415

    variant = VARIANTS[name]
    systems = [System("large", effort.size), System("default", SMALL)]
    with timed(f"{name}: both systems"):
        _make(variant, databases, effort.size)
    pages.forget_client()
    for task in _tasks(variant, systems[1], match):
        is_named = name == "yardstick" or task.name.startswith(f"{name}: ")
        named = task if is_named else replace(task, name=f"{name}: {task.name}")
        measure = partial(compare.measure, named, *systems, seconds=effort.seconds)
        figure = report.measure(named.name, measure, limit=effort.limit)
        if figure is None or figure.note:
            _close()
            databases.stop_statements("small", "large")


def _tasks(variant: "Variant", small: System, match: str) -> Iterator["Task"]:
    from bench.scale.compare import on  # noqa: PLC0415

    for group in variant.groups:
        with on(small):
            tasks = list(group())
        yield from (task for task in tasks if match in task.name)


def _make(variant: "Variant", databases: Databases, size: Size) -> None:
    _close()
    for name, each in (("small", SMALL), ("large", size)):
        databases.copy(f"{name}_template", name)
        for statements in variant.adds:
            databases.fill(name, each, statements)


def _close() -> None:
    from django.db import connections  # noqa: PLC0415

    connections.close_all()


if __name__ == "__main__":
    sys.exit(main())
