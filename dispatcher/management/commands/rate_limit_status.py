"""manage.py rate_limit_status: the limits of each key, their use, the calls that wait, and why one does."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any, Final
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError, CommandParser

from dispatcher import sql
from dispatcher.conf import conf
from dispatcher.lifecycle.finish import FREE
from dispatcher.lifecycle.periodic_runs import CLEANUP, RECOVER, TICK, LastRun, last_runs, periodic
from dispatcher.management import key_table
from dispatcher.management.command import Screen, console, explained, unknown_keys
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.reports import (
    KeyStatus,
    old_transactions,
    rate_limit_status,
    runnable_calls,
    unserved_queues,
    unstarted_tasks,
    why_in_words,
)
from dispatcher.reports.words import in_words
from dispatcher.sql import faults

EVERY: Final = 2.0
NO_KEYS: Final = (
    'No rate limit keys yet. Declare one: RateLimitKey.objects.declare("api.example.com", concurrency=5), '
    'or name it in the settings, in DISPATCHER["keys"].'
)
_TOO_OFTEN: Final = "--watch: the seconds must be more than 0"
_WITHOUT: Final = {
    TICK: "Calls that wait for a time do not start.",
    RECOVER: "Calls of workers that died are not put back.",
    CLEANUP: "Calls that ended are not deleted.",
}
"""The effect of a periodic task that does not run."""
_CLEAR: Final = "\x1b[H\x1b[2J"
"""What empties a terminal."""
_FRAME: Final = 4
"""The lines of a screen that are not keys: the titles, the omitted keys, the last tick, the clock."""
TOP: Final = 50
"""How many keys a table has if nothing is said; JSON has all."""
ORDERS: Final[Mapping[str, Callable[[KeyStatus], Any]]] = {
    "name": lambda key: key.name,
    "waiting": lambda key: -key.waiting,
    "oldest": lambda key: key.waiting_since or datetime.max.replace(tzinfo=key.at.tzinfo),
    "in-use": lambda key: -key.in_flight,
    "stopped": lambda key: (not key.waiting or key.is_open, -key.waiting, -key.in_flight),
}
"""The orders of keys by what comes first."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which keys are shown, and how: as the options of the command say."""

    names: Sequence[str] | None
    match: str | None
    top: int | None
    sort: str | None
    watch: float | None
    has_queues: bool


class Command(BaseCommand):
    """Show the state of the rate limit keys."""

    help = "Show the limits of each rate limit key, their use, and the calls that wait."

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the options."""
        parser.add_argument(
            "--key",
            nargs="+",
            action="extend",
            metavar="NAME",
            dest="names",
            help="Show all facts of these keys instead of a table of all keys.",
        )
        parser.add_argument("--match", metavar="PATTERN", help="Show the keys whose names match, such as 'tenant:*'.")
        parser.add_argument("--top", type=int, metavar="N", help=f"Show so many keys; by default {TOP}, as JSON all.")
        parser.add_argument("--sort", choices=ORDERS, help="Show these first; by default those that stop calls.")
        parser.add_argument(
            "--queues",
            action="store_true",
            dest="has_queues",
            help="Show for each queue how many calls could start now if a process were free, instead of the keys.",
        )
        parser.add_argument("--call", type=UUID, metavar="ID", help="Say why this call waits, instead of all else.")
        parser.add_argument("--json", action="store_true", dest="is_json", help="Print JSON, for other programs.")
        parser.add_argument(
            "--watch",
            nargs="?",
            const=EVERY,
            type=float,
            metavar="SECONDS",
            help=f"Repeat until Ctrl-C, by default every {EVERY:g} seconds.",
        )

    @explained()
    def handle(
        self,
        *_: Any,
        call: UUID | None = None,
        is_json: bool = False,
        watch: float | None = None,
        no_color: bool = False,
        **options: Any,
    ) -> None:
        """Show the keys, repeatedly with --watch. Raises CommandError for a key that does not exist."""
        if watch is not None and not watch > 0:
            raise CommandError(_TOO_OFTEN)
        named = {name: options.get(name) for name in ("names", "match", "top", "sort")}
        wanted = Wanted(**named, watch=watch, has_queues=bool(options.get("has_queues")))
        with console(self.stdout, no_color=no_color) as screen, suppress(KeyboardInterrupt):
            if call is not None:
                self._write(_why(call))
            elif is_json:
                self._repeat(watch, lambda: self._write(_json(wanted)))
            else:
                # What is watched on a terminal takes the place of what was there before.
                clear = _CLEAR if watch and screen.is_terminal else ""
                self._repeat(watch, lambda: self._write(f"{clear}{_render(wanted, screen)}"))

    def _write(self, text: str) -> None:
        self.stdout.write(f"{text}\n")
        self.stdout.flush()

    def _repeat(self, watch: float | None, show: Callable[[], None]) -> None:
        """Show it once, or repeatedly; while watching, wait for an unavailable database."""
        show()
        while watch is not None:
            time.sleep(watch)
            try:
                show()
            except sql.DATABASE_ERRORS as fault:
                if not sql.is_unavailable(fault) or (words := faults.in_words(fault)) is None:
                    raise
                sql.discard_connection()
                self.stderr.write(f"{words.splitlines()[0]}\nIt is queried again every {watch:g} s; Ctrl-C ends it.")
                self.stderr.flush()


def _why(call: UUID) -> str:
    """Return why a call waits. Raises CommandError if it does not exist."""
    found = CallQueue.objects.filter(id=call).first()
    if found is None:
        message = f"There is no call {call}; it may have ended long ago."
        raise CommandError(message)
    return why_in_words(call) or f"It does not wait: its state is {found.state}."


def _json(wanted: Wanted) -> str:
    """Return one line."""
    if wanted.has_queues:
        return json.dumps({"queues": [{"name": queue.name, **queue.as_json()} for queue in runnable_calls()]})
    keys = _found(wanted)
    document = {
        "items": [key.as_json() for key in (keys if wanted.top is None else _chosen(keys, wanted, wanted.top))],
        "unserved_queues": [queue.as_json() for queue in unserved_queues()],
        "unstarted_tasks": [task.as_json() for task in unstarted_tasks()],
        "old_transactions": [old.as_json() for old in old_transactions()],
        "periodic_tasks": [run.as_json() for run in last_runs(periodic())],
    }
    return json.dumps(document)


def _render(wanted: Wanted, screen: Screen) -> str:
    if wanted.has_queues:
        return key_table.queue_table(runnable_calls()) + _clock(sql.now(), wanted)
    keys = _found(wanted)
    if not keys:
        return f"{NO_KEYS if wanted.match is None else f'No key matches {wanted.match}.'}{_runs()}"
    most = screen.height - _FRAME if wanted.watch and screen.is_terminal else len(keys) if wanted.names else TOP
    shown = _chosen(keys, wanted, wanted.top or most)
    footer = _footer(keys, shown, wanted)
    if wanted.names:
        return "\n\n".join(map(key_table.details, shown)) + footer
    return key_table.table(shown, screen.width, screen.paint) + footer


def _found(wanted: Wanted) -> list[KeyStatus]:
    """Return the requested keys. Raises CommandError naming unknown ones, with similar names."""
    names = wanted.names
    if wanted.match is not None:
        known = RateLimitKey.objects.filter(name__in=names) if names else RateLimitKey.objects.all()
        names = [name for name in known.values_list("name", flat=True) if fnmatchcase(name, wanted.match)]
    keys = rate_limit_status(names)
    if missing := sorted(set(wanted.names or ()) - {key.name for key in keys}):
        raise unknown_keys(missing)
    return keys


def _chosen(keys: Sequence[KeyStatus], wanted: Wanted, most: int) -> list[KeyStatus]:
    """Return up to so many keys in the order asked for; else those first that stop calls, shown by name."""
    chosen = sorted(keys, key=ORDERS[wanted.sort or "stopped"])[: max(1, most)]
    return chosen if wanted.sort else sorted(chosen, key=ORDERS["name"])


def _footer(keys: Sequence[KeyStatus], shown: Sequence[KeyStatus], wanted: Wanted) -> str:
    more = f"\n{len(keys) - len(shown):,} more keys; see --top, --match and --sort." if len(shown) < len(keys) else ""
    return more + _unserved() + _old_transactions() + _runs() + _clock(keys[0].at, wanted)


def _clock(at: datetime, wanted: Wanted) -> str:
    return f"\n{at:%H:%M:%S %Z}, every {wanted.watch:g} s; Ctrl-C ends it." if wanted.watch else ""


def _unserved() -> str:
    """Return a line for each queue without a live worker, and for each task whose calls come back without a start."""
    queues = [
        f"\nNo live worker serves the queue {queue.name}: {_wait(queue.waiting_count)} "
        f"Start a worker with -Q {queue.name}, or correct the name of the queue."
        for queue in unserved_queues()
    ]
    unknown, unclaimed = "No live worker of queue {} knows task {}", "Calls of queue {} never start, of task {}"
    tasks = [
        f"\n{(unclaimed if each.is_known else unknown).format(each.queue, each.task)}: {_wait(each.waiting_count)}"
        for each in unstarted_tasks()
        if not each.is_known or each.returns > FREE
    ]
    return "".join([*queues, *tasks])


def _old_transactions() -> str:
    """Return a warning for each transaction that has been open for long."""
    return "".join(
        f"\nWARNING: {old.what} ({', '.join(filter(None, (old.facts['application'], old.facts['state'])))}) has had a "
        f"transaction open for {old.facts['open_for']}: until it ends, each call costs more than the one before."
        for old in old_transactions()
    )


def _wait(calls: int) -> str:
    return f"{calls:,} {'call waits' if calls == 1 else 'calls wait'}."


def _runs() -> str:
    """Return a line on the last tick, and a warning for each other periodic task that is overdue."""
    tick, *others = last_runs(periodic())
    return "".join(f"\n{_run(run)}" for run in (tick, *(run for run in others if run.is_late)))


def _run(run: LastRun) -> str:
    by = f", by worker {run.worker} without beat" if run.worker else ""
    if run.ran_at is not None and not run.is_late:
        return f"Last tick: {in_words(run.ran_at, run.at)}{by}."
    last = "has never run" if run.ran_at is None else f"last ran {in_words(run.ran_at, run.at)}{by}"
    return f"WARNING: {run.name} {last}. {_WITHOUT[run.name]} {_remedy()}"


def _remedy() -> str:
    """Return who is to run the periodic tasks: any worker does, unless the settings leave them to beat."""
    if conf().fallback_schedule:
        return "Start a worker: it runs this by itself."
    return f"Start beat, and a worker that takes the queue {conf().dispenser_queue}."
