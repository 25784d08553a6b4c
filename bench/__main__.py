"""Measure the figures and print them with their bounds: `python -m bench [--quick] [--write] [names]`.

Exits 0 only if every figure keeps its bound. Writes `.run/bench.json`, figure by figure; --write puts the table into
docs/explanation/benchmarks.md, with the commit and the date.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module

import django
from django.core.management import call_command
from django.db import connection, connections

from bench import table
from bench.figures import FULL, QUICK, Bench, Effort, Group
from bench.report import Report
from bench.third_party import witness
from project.run_dirs import RUN
from project.screen import console
from project.services import Services, embedded, own_database

RESULT = RUN / "bench.json"
TABLE = ("direct", "processes", "idle", "broker")
"""The groups of the table, which are measured by default; the others by name."""
GROUPS = {
    "direct": "direct",
    "processes": "processes",
    "idle": "processes",
    "broker": "broker",
    "trips": "trips",
    "fair": "fair",
    "limits": "limits",
    "limits_direct": "limits",
    "over_http": "http",
    "limits_over_http": "http",
}
"""The groups of figures, in the order in which they are measured, and the module that each is in."""


def main() -> int:
    """Measure what is asked for, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "names", nargs="*", metavar="name", help=f"of {', '.join(GROUPS)}; {', '.join(TABLE)} by default"
    )
    parser.add_argument("--quick", action="store_true", help="measure little: for development, not for a verdict")
    parser.add_argument("--write", action="store_true", help="write the table to docs/explanation/benchmarks.md")
    parser.add_argument("--only", metavar="TEXT", default="", help="of trips: only figures whose name has this in it")
    parser.add_argument("--functions", action="store_true", help="of trips: show the functions that cost most")
    asked = parser.parse_args()
    if unknown := sorted(set(asked.names) - set(GROUPS)):
        parser.error(f"{unknown[0]!r} is not one of {', '.join(GROUPS)}")
    effort = QUICK if asked.quick else FULL
    with embedded(name="bench") as services, _ready(services, effort) as ready:
        bench = replace(ready, only=asked.only, shows_functions=asked.functions)
        report = Report(console(160), RESULT)
        for name in asked.names or TABLE:
            _measure(name, report, bench)
        if asked.write:
            table.write(report.figures)
    return 0 if report.is_ok else 1


def _measure(name: str, report: Report, bench: Bench) -> None:
    """Measure the figures of a group; one that fails, or takes too long, is short, and the next group goes on."""
    group: Group = getattr(import_module(f"bench.{GROUPS[name]}"), name)
    if not report.measure_all(name, group(bench), limit=bench.effort.limit):
        connections.close_all()


@contextmanager
def _ready(services: Services, effort: Effort) -> Iterator[Bench]:
    """Have a database, the file of runs and the witness ready, and Django set up for them."""
    os.environ |= {
        "DJANGO_SETTINGS_MODULE": "bench.settings",
        "BENCH_LIMIT": str(effort.limit),
        "BENCH_RUNS": str(services.run_dir / "runs"),
    }
    with own_database(services.database_url, "bench") as address, witness() as third_party:
        os.environ["DATABASE_URL"] = address
        django.setup()
        call_command("migrate", verbosity=0)
        from bench.models import PlainRow  # noqa: PLC0415 - Django is set up now

        with connection.schema_editor() as editor:
            editor.create_model(PlainRow)
        yield Bench(effort=effort, run_dir=services.run_dir, witness=third_party)


if __name__ == "__main__":
    sys.exit(main())
