"""Soak: `python -m trials.soak [--minutes M] [--rate R] [--backlog N] [--delivery D]`.

Exits 0 only if everything stayed flat. Writes `.run/soak.json`.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import django
import psycopg
from rich.console import Console

from project.processes import Stack
from project.run_dirs import RUN
from project.screen import console, write
from project.services import Services, embedded, own_database
from trials import add_delivery

RESULT = RUN / "soak.json"
PROCESSES = 4
"""Of the worker that runs the calls."""
SLOWEST = 60
"""The least rate that leaves something for each kind of traffic."""
REMEDY = """autovacuum is off on this server: nothing could stay flat.
Switch it on (ALTER SYSTEM SET autovacuum = on; SELECT pg_reload_conf();), or unset DATABASE_URL for an embedded one."""


def main() -> int:
    """Soak, print what was found, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m trials.soak", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="of the steady part; 5 at the least to mean much")
    parser.add_argument("--rate", type=float, default=100.0, help="calls per second")
    parser.add_argument("--backlog", type=int, default=100_000, help="calls that wait all the time")
    add_delivery(parser)
    asked = parser.parse_args()
    os.environ["SOAK_DELIVERY"] = asked.delivery
    if asked.rate < SLOWEST:
        parser.error(f"--rate must be at least {SLOWEST}: the measured trips alone take half of that")
    with embedded(name="soak") as services, _own_databases(services):
        result = _soak(services, asked, console(140))
    write(RESULT, result)
    return 0 if result["ok"] else 1


def _soak(services: Services, asked: argparse.Namespace, console: Console) -> dict[str, Any]:
    django.setup()
    from django.core.management import call_command  # noqa: PLC0415 - Django first

    from trials.soak import fixtures, gauges, report, run  # noqa: PLC0415

    for alias in ("default", gauges.IDLE):
        call_command("migrate", database=alias, verbosity=0)
    console.print(f"writing a backlog of {asked.backlog:,} calls ...")
    notes = services.run_dir / "traffic.jsonl"
    notes.write_text("")
    gauge = run.prepare(asked.backlog, notes)
    own = gauges.EACH * fixtures.PROBES / gauges.PERIOD_S
    with Stack(services.run_dir, env={"SOAK_NOTES": str(notes)}) as stack:
        stack.start_worker(queues=[fixtures.QUEUE], concurrency=PROCESSES)
        stack.start("churn", [sys.executable, "-m", "trials.soak.churn", str(asked.rate - own), str(notes)])
        course = run.run(gauge, asked.minutes, console.print)
        stack.ensure_running()
    found = report.findings(course, rate=asked.rate, backlog=asked.backlog)
    report.show(console, course, found)
    return report.as_json(course, found, asked=vars(asked))


@contextmanager
def _own_databases(services: Services) -> Iterator[None]:
    """Have two empty databases of the soak's own on the server at hand. Exits if nothing is vacuumed there."""
    server = services.database_url
    with psycopg.connect(server) as connection:
        if connection.execute("SHOW autovacuum").fetchone() != ("on",):
            sys.exit(REMEDY)
    with own_database(server, "soak") as busy, own_database(server, "soak_idle") as idle:
        own = {"DATABASE_URL": busy, "SOAK_IDLE_URL": idle, "DJANGO_SETTINGS_MODULE": "trials.soak.settings"}
        os.environ.update(own)
        yield


if __name__ == "__main__":
    sys.exit(main())
