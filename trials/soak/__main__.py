"""Soak: `python -m trials.soak [--minutes M] [--rate R] [--backlog N] [--delivery D]`.

Exits 0 only if everything stayed flat. Writes `.run/soak.json`.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import django
import psycopg
from psycopg import sql
from rich.console import Console

from project.processes import Stack
from project.run_dirs import RUN
from project.services import Services, create_database, embedded

RESULT = RUN / "soak.json"
DATABASES = {"DATABASE_URL": "soak", "SOAK_IDLE_URL": "soak_idle"}
PROCESSES = 4
"""Of the worker that runs the calls with direct delivery."""
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
    parser.add_argument(
        "--delivery",
        choices=("broker", "direct"),
        default="broker",
        help="how calls reach workers (default %(default)s)",
    )
    asked = parser.parse_args()
    os.environ["SOAK_DELIVERY"] = asked.delivery
    if asked.rate < SLOWEST:
        parser.error(f"--rate must be at least {SLOWEST}: the measured trips alone take half of that")
    console = Console(width=None if sys.stdout.isatty() else 140)
    with embedded(name="soak") as services, _own_databases(services):
        result = _soak(services, asked, console)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
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
        if fixtures.IS_DIRECT:
            stack.start_worker(queues=[fixtures.QUEUE], concurrency=PROCESSES)
        stack.start("churn", [sys.executable, "-m", "trials.soak.churn", str(asked.rate - own), str(notes)])
        course = run.run(gauge, asked.minutes, console.print)
        stack.ensure_running()
    found = report.findings(course, rate=asked.rate, backlog=asked.backlog)
    report.show(console, course, found)
    return report.as_json(course, found, asked=vars(asked), index_use=gauges.index_use())


@contextmanager
def _own_databases(services: Services) -> Iterator[None]:
    """Have two empty databases of the soak's own on the server at hand. Exits if nothing is vacuumed there."""
    given = urlsplit(services.database_url)
    names = {variable: f"{given.path.removeprefix('/')}_{name}" for variable, name in DATABASES.items()}
    with psycopg.connect(services.database_url, autocommit=True) as connection:
        if connection.execute("SHOW autovacuum").fetchone() != ("on",):
            sys.exit(REMEDY)
        try:
            for variable, name in names.items():
                create_database(services.database_url, name, replace=True)
                os.environ[variable] = given._replace(path=f"/{name}").geturl()
            os.environ["DJANGO_SETTINGS_MODULE"] = "trials.soak.settings"
            yield
        finally:
            for name in names.values():
                drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
                connection.execute(drop.format(sql.Identifier(name)))


if __name__ == "__main__":
    sys.exit(main())
