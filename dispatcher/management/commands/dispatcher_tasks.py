"""manage.py dispatcher_tasks: each task, the keys that its calls spend, how it is retried, and what is not limited."""

import inspect
import json
import re
from collections.abc import Iterator
from typing import Any, Final

from celery import Task, current_app
from django.core.management.base import BaseCommand, CommandParser

from dispatcher.conf import conf
from dispatcher.limited import import_tasks, shown
from dispatcher.management.key_table import rows

_OTHERS: Final = ("celery.", "dispatcher.")
"""The beginnings of the names of tasks that are not the project's."""
_REFUSED: Final = {
    r"\.(map|starmap|chunks)\(": "map, starmap and chunks run a task inside of another one: those of a limited task "
    "are refused",
}
"""What the source of a task has in it that a call can't have, and what is shown of it."""


class Command(BaseCommand):
    """List the project's tasks with their limits."""

    help = (
        "List each task of the project: the keys that its calls spend wherever it is sent from, how it is retried, and "
        "what in it can't be limited. It reads the settings and the code, not the database."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the options."""
        parser.add_argument("--json", action="store_true", dest="is_json", help="Print JSON, for other programs.")

    def handle(self, *_: Any, is_json: bool = False, **__: Any) -> None:
        """Print the table. Raises ConfigurationError if the settings can't be read."""
        import_tasks()
        tasks = [task for name, task in sorted(current_app.tasks.items()) if not name.startswith(_OTHERS)]
        found = [
            {"task": task.name, "keys": shown(task.name), "retries": _retries(task), "not_limited": list(_faults(task))}
            for task in tasks
        ]
        if is_json:
            self.stdout.write(json.dumps(found, indent=2))
            return
        table = [
            ("Task", [each["task"] for each in found]),
            ("Keys", ["not limited" if each["keys"] is None else ", ".join(each["keys"]) or "none" for each in found]),
            ("Retries", [each["retries"] for each in found]),
            ("Not limited", ["; ".join(each["not_limited"]) for each in found]),
        ]
        for line in rows(table, lefts=len(table)):
            self.stdout.write(line.rstrip())


def _retries(task: Task) -> str:
    """Return how often a call of a task is tried, in words."""
    most = "for ever" if task.max_retries is None else f"up to {task.max_retries} times"
    if errors := getattr(task, "autoretry_for", ()):
        words = f"after {', '.join(error.__name__ for error in errors)}, {most}"
    elif re.search(r"\.retry\(", _source(task)):
        words = f"self.retry, {most}"
    else:
        words = "one attempt"
    return f"{words}; after a lost process" if task.acks_late else words


def _faults(task: Task) -> Iterator[str]:
    source = _source(task)
    for pattern, words in _REFUSED.items():
        if re.search(pattern, source):
            yield words
    if task.serializer == "pickle":
        yield "serializer pickle is refused"
    if getattr(task, "exchange", None):
        yield "its exchange is refused, name a queue"
    if task.rate_limit and conf().celery_rate_limits != "global":
        yield f"rate_limit {task.rate_limit} holds for each worker, and not for calls of direct queues"


def _source(task: Task) -> str:
    """Return the source of a task; nothing where there is none."""
    try:
        return inspect.getsource(inspect.unwrap(task.run))
    except (OSError, TypeError):
        return ""
