"""Gather what is known at the end of a run: from the notes, the database and the witness."""

import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from importlib import import_module
from pathlib import Path

from django.db import connection

from dispatcher.audit import audit
from dispatcher.models import CallQueue
from project.witness.child import read
from trials import notes
from trials.chaos.verdict import Begin, Order, Records, Row, Struck

FIELDS = ("id", "meta", "queue", "state", "attempt", "errors", "reason")


def gather(run_dir: Path, struck: Sequence[Struck], *, witness: str) -> Records:
    """Return the records of a run that is over; its notes are in `run_dir`."""
    lines = list(notes.read(run_dir / notes.BEGINS))
    record = read(witness, "record")
    return Records(
        orders=_orders(run_dir / notes.ORDERS),
        rows=_rows(),
        begins=[
            Begin(call=line["call"], ticket=line["ticket"], at=line["at"]) for line in lines if line["what"] == "begin"
        ],
        stops=Counter(line["call"] for line in lines if line["what"] == "stop"),
        struck=struck,
        successes={call: figures["successes"] for call, figures in record["calls"].items()},
        keys=record["keys"],
        longest_way_s=record["longest_way_s"],
        late=sum(line["what"] == "late" for line in lines),
        audit=audited(),
    )


def audited() -> list[str]:
    """Return what is wrong in the database as it is now: by `dispatcher_audit`, and by brute force over every row."""
    report = audit()
    problems = [
        f"{found.check.name}: {finding.what} {dict(finding.facts)}"
        for found in report.found
        for finding in found.findings
    ]
    by_force = import_module("tests.races.audit").audit
    try:
        by_force(limits_changed=True)
    except AssertionError as error:
        problems += str(error).splitlines()
    return problems


def _orders(path: Path) -> dict[str, Order]:
    """Return the orders; of one that nothing more is known of than that it was meant, nothing is known."""
    counts: dict[str, int] = {}
    outcomes: dict[str, str] = {}
    for line in notes.read(path):
        if line["what"] == "intent":
            counts[line["order"]] = line["count"]
        else:
            outcomes[line["order"]] = line["what"]
    return {name: Order(outcome=outcomes.get(name, "unknown"), count=count) for name, count in counts.items()}


def _rows() -> dict[str, Row]:
    offset = _clock_offset()
    return {
        str(call["id"]): Row(
            order=call["meta"].get("order", ""),
            kind=call["meta"].get("kind", ""),
            queue=call["queue"].rpartition("-")[2],
            state=call["state"],
            attempt=call["attempt"],
            errors=[(error["type"], _seconds(error["occurred_at"]) - offset) for error in call["errors"]],
            reason=call["reason"],
        )
        for call in CallQueue.objects.values(*FIELDS)
    }


def _clock_offset() -> float:
    """Return how far the database's clock, in seconds of the epoch, is ahead of the monotonic one."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        (now,) = cursor.fetchone()
    return float(now.timestamp()) - time.monotonic()


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()
