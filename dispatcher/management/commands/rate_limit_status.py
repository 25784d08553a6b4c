"""manage.py rate_limit_status: the limits of each key, their use, and the calls that wait."""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from dispatcher import sql
from dispatcher.conf import conf
from dispatcher.lifecycle.finish import FREE
from dispatcher.lifecycle.periodic_runs import CLEANUP, RECOVER, TICK, LastRun, last_runs, periodic
from dispatcher.management import key_table
from dispatcher.management.command import console, explained, unknown_keys
from dispatcher.reports import (
    KeyState,
    KeyStatus,
    old_transactions,
    rate_limit_status,
    unserved_queues,
    unstarted_tasks,
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
_FRAME: Final = 4
"""The lines of a screen that are not keys: the titles, the omitted keys, the last tick, the clock."""


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
        names: list[str] | None = None,
        is_json: bool = False,
        watch: float | None = None,
        no_color: bool = False,
        **__: Any,
    ) -> None:
        """Show the keys, repeatedly with --watch. Raises CommandError for a key that does not exist."""
        if watch is not None and not watch > 0:
            raise CommandError(_TOO_OFTEN)
        with console(self.stdout, no_color=no_color) as screen, suppress(KeyboardInterrupt):
            if is_json:
                self._repeat(watch, lambda: screen.out(_json(names, indent=None if watch else 2)))
            elif watch is None or not screen.is_terminal:
                self._repeat(watch, lambda: screen.print(_render(names, watch, screen)))
            else:
                with Live(console=screen, screen=True, auto_refresh=False) as live:
                    self._repeat(
                        watch,
                        lambda: live.update(_render(names, watch, screen), refresh=True),
                        lambda words: live.update(Text(words), refresh=True),
                    )

    def _repeat(
        self, watch: float | None, show: Callable[[], None], report: Callable[[str], None] | None = None
    ) -> None:
        """Show it once, or repeatedly; while watching, wait for an unavailable database."""
        show()
        while watch is not None:
            self.stdout.flush()
            time.sleep(watch)
            try:
                show()
            except sql.DATABASE_ERRORS as fault:
                if not sql.is_unavailable(fault) or (words := faults.in_words(fault)) is None:
                    raise
                sql.discard_connection()
                (report or self._report)(
                    f"{words.splitlines()[0]}\nIt is queried again every {watch:g} s; Ctrl-C ends it."
                )

    def _report(self, words: str) -> None:
        self.stderr.write(words)
        self.stderr.flush()


def _json(names: Sequence[str] | None, *, indent: int | None) -> str:
    document = {
        "items": [key.as_json() for key in _found(names)],
        "unserved_queues": [queue.as_json() for queue in unserved_queues()],
        "unstarted_tasks": [task.as_json() for task in unstarted_tasks()],
        "old_transactions": [old.as_json() for old in old_transactions()],
        "periodic_tasks": [run.as_json() for run in last_runs(periodic())],
    }
    return json.dumps(document, indent=indent)


def _render(names: Sequence[str] | None, watch: float | None, screen: Console) -> RenderableType:
    keys = _found(names)
    if not keys:
        return Text(f"{NO_KEYS}{_runs()}")
    shown = _most_relevant(keys, screen.height - _FRAME) if watch and screen.is_terminal else keys
    footer = _footer(keys, shown, watch)
    if names:
        return Text("\n\n".join(map(key_table.details, shown)) + footer)
    table = key_table.table(shown, screen.width)
    return Group(table, Text(footer.removeprefix("\n"))) if footer else table


def _found(names: Sequence[str] | None) -> list[KeyStatus]:
    """Return the requested keys. Raises CommandError naming unknown ones, with similar names."""
    keys = rate_limit_status(names)
    if missing := sorted(set(names or ()) - {key.name for key in keys}):
        raise unknown_keys(missing)
    return keys


def _most_relevant(keys: Sequence[KeyStatus], most: int) -> list[KeyStatus]:
    """Return as many keys as fit, ordered by name: those first that stop calls, or have many."""
    by_calls = sorted(
        keys, key=lambda key: (not key.waiting or key.state is KeyState.OPEN, -key.waiting, -key.in_flight)
    )
    return sorted(by_calls[: max(1, most)], key=lambda key: key.name)


def _footer(keys: Sequence[KeyStatus], shown: Sequence[KeyStatus], watch: float | None) -> str:
    left_out = f"\n{len(keys) - len(shown):,} more keys, with fewer calls." if len(shown) < len(keys) else ""
    clock = f"\n{keys[0].at:%H:%M:%S %Z}, every {watch:g} s; Ctrl-C ends it." if watch else ""
    return left_out + _unserved() + _old_transactions() + _runs() + clock


def _unserved() -> str:
    """Return a line for each queue without a live worker, and for each task whose calls come back without a start."""
    queues = [
        f"\nNo live worker serves the queue {queue.name}: {_wait(queue.waiting)} "
        f"Start a worker with -Q {queue.name}, or correct the name of the queue."
        for queue in unserved_queues()
    ]
    unknown, unclaimed = "No live worker of queue {} knows task {}", "Calls of queue {} never start, of task {}"
    tasks = [
        f"\n{(unclaimed if each.is_known else unknown).format(each.queue, each.task)}: {_wait(each.waiting)}"
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
    remedy = f"Start beat, and a worker that takes the queue {conf().dispenser_queue}."
    return f"WARNING: {run.name} {last}. {_WITHOUT[run.name]} {remedy}"
