"""Run the demo from nothing to its verdict: `python -m project.demo`; exits 0 only if every promise held."""

import os
import sys
import time
from pathlib import Path

import django
from django.core.management import call_command
from rich.console import Console

from project.processes import Stack
from project.run_dirs import RUN
from project.screen import judged, write
from project.services import embedded
from project.time_limit import within
from project.witness.child import start_witness

RESULT = RUN / "demo.json"
# So many that the limits decide when a call starts, and never a lack of processes.
PROCESSES = 16
# In seconds: when the calls must have ended, and when the demo does in any case.
DRAINED_BY = 90.0
ENDED_BY = 120.0


def run(console: Console) -> int:
    """Start everything, let the story happen, say how it ended, stop everything."""
    began = time.monotonic()
    console.print("Starting PostgreSQL and Valkey ...")
    with embedded() as services, Stack(services.run_dir) as stack, within(ENDED_BY):
        logs = relative(services.run_dir / "logs")
        console.print(f"Migrating, starting witness, worker, beat and dispenser (logs: {logs}) ...")
        witness = start(stack)
        # Django can't be imported before it is set up, which needs the address of the database.
        from project.demo import scenario, screen  # noqa: PLC0415

        summary = scenario.run(console, stack, witness, began=began, deadline=began + DRAINED_BY)
        write(RESULT, summary.as_json())
        screen.show_summary(console, summary)
        console.print(f"The same for tools: {relative(RESULT)}   Logs: {logs}", soft_wrap=True)
    return 0 if summary.is_ok else 1


def start(stack: Stack) -> str:
    """Start the shop's processes on a migrated database, and return where the witness listens."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    witness = start_witness(stack)
    django.setup()
    call_command("migrate", verbosity=0)
    stack.start_worker(queues=["celery", "reports"], concurrency=PROCESSES)
    stack.start_dispenser()
    stack.start_beat()
    stack.wait_ready()
    return witness


def relative(path: Path) -> Path:
    """Return a path as seen from the project's directory."""
    return path.relative_to(RUN.parent)


sys.exit(judged("demo", run, RESULT))
