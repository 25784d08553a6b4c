"""Run the trial: `python -m trials.chaos --seed N --minutes M`; exits 0 only if all held. Writes `.run/chaos.json`.

DATABASE_URL and CELERY_BROKER_URL name servers to use; those that are not given are embedded, and then also crash.
Direct delivery, the default, needs no broker, and has none unless it is given.
"""

import argparse
import os
import shutil
import sys
import time
from functools import partial
from pathlib import Path

import django
from django.core.management import call_command
from rich.console import Console

from project.processes import Stack
from project.run_dirs import RUN
from project.screen import judged, write
from project.services import embedded
from project.witness.child import start_witness
from trials import add_delivery
from trials.chaos import screen
from trials.chaos.plan import KINDS, plan
from trials.chaos.servers import Servers, servers

RESULT = RUN / "chaos.json"
SEED = 1
MINUTES = 0.8


def main() -> int:
    """Run the trial, write its verdict, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m trials.chaos", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--seed", type=int, default=SEED, help="of the schedule of faults (default %(default)s)")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for which faults strike (default %(default)s)")
    kinds = f"only these: {', '.join(KINDS)}"
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="kind", help=kinds)
    add_delivery(parser)
    asked = parser.parse_args()
    os.environ["CHAOS_DELIVERY"] = asked.delivery
    if asked.delivery == "direct":
        os.environ.setdefault("CELERY_BROKER_URL", "memory://")
    return judged("trial", partial(run, asked), RESULT)


def run(asked: argparse.Namespace, console: Console) -> int:
    """Set the supervisor, let the schedule happen, say how it ended, stop everything."""
    began, name, seconds = time.monotonic(), f"chaos{os.getpid()}", asked.minutes * 60
    console.print("Starting the servers that are not given ...")
    with (
        embedded(name="chaos") as services,
        servers(services, run=name) as own,
        Stack(services.run_dir, env=environment(own, services.run_dir)) as stack,
    ):
        faults = plan(asked.seed, seconds, can_stop=own.can_stop, kinds=asked.kinds)
        console.print(f"Seed {asked.seed}: {len(faults)} faults in {seconds:g} s. Starting the processes ...")
        witness = start_witness(stack, limits="trials.chaos.limits")
        set_up(own)
        # What knows the models can't be imported before Django is set up.
        from trials.chaos.trial import Trial  # noqa: PLC0415

        with Trial(stack, own, witness=witness, say=lambda line: console.print(line, markup=False)) as trial:
            outcome = trial.run(faults, seconds=seconds)
    took = {"seed": asked.seed, "minutes": asked.minutes, "took_s": round(time.monotonic() - began)}
    write(RESULT, outcome.as_json() | took)
    screen.show(console, outcome)
    console.print(
        f"The same for tools: {RESULT.relative_to(RUN.parent)}   Logs: {services.run_dir / 'logs'}", soft_wrap=True
    )
    return 0 if outcome.verdict.is_ok else 1


def environment(own: Servers, run_dir: Path) -> dict[str, str]:
    """Return the environment of the run's processes; what an earlier run noted is deleted."""
    notes = run_dir / "notes"
    shutil.rmtree(notes, ignore_errors=True)
    notes.mkdir()
    return {
        **own.env,
        "DJANGO_SETTINGS_MODULE": "trials.chaos.settings",
        "CHAOS_NOTES": str(notes),
        "CHAOS_DELIVERY": os.environ["CHAOS_DELIVERY"],
        # The witness is on this machine.
        "NO_PROXY": "127.0.0.1",
    }


def set_up(own: Servers) -> None:
    """Set Django up in this process, which goes to the servers by no proxy, and make the tables."""
    os.environ.update(
        DJANGO_SETTINGS_MODULE="trials.chaos.settings",
        DATABASE_URL=own.database_url,
        CELERY_BROKER_URL=own.services.broker_url,
        CHAOS_RUN=own.run,
    )
    django.setup()
    call_command("migrate", verbosity=0)


sys.exit(main())
