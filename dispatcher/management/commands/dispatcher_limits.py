"""manage.py dispatcher_limits: what the settings say of each key and what the database has; write what differs."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError, CommandParser

from dispatcher import api, sql
from dispatcher.errors import DispatcherError
from dispatcher.history import BY_SETTINGS, Actor
from dispatcher.limits.policy import Policy, describe
from dispatcher.management.command import console, explained, unknown_keys
from dispatcher.management.key_table import rows
from dispatcher.reports import Declared, Difference, declared_keys
from dispatcher.reports.words import in_words

SHOW, DIFF, APPLY = VERBS = ("show", "diff", "apply")
DIFFERENT: Final = 1
"""The exit code of `diff` if something differs."""
_NO_KEYS: Final = 'No keys: neither does DISPATCHER["keys"] name any, nor does the database have one.'
_SAME: Final = "The database has what the settings say."


class Command(BaseCommand):
    """Compare the limits in the settings with those of the database, and write what differs."""

    help = (
        'Show what DISPATCHER["keys"] says of each key, what the database has, and who changed it at run time. '
        "`diff` shows what differs, and exits with 1 if anything does; `apply` writes it."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the options."""
        parser.add_argument("verb", choices=VERBS, help="What to do.")
        parser.add_argument("names", nargs="*", metavar="KEY", help="Only these keys; `apply` writes each of them.")
        parser.add_argument(
            "--existing", action="store_true", help="Also the keys that exist and that templates have made."
        )
        parser.add_argument("--dry-run", action="store_true", dest="is_dry", help="Say what `apply` would write.")
        parser.add_argument(
            "--force", action="store_true", dest="is_forced", help="Write over what was changed at run time, too."
        )
        parser.add_argument("--json", action="store_true", dest="is_json", help="Print JSON, for other programs.")

    @explained()
    def handle(
        self,
        *_: Any,
        verb: str = SHOW,
        names: Sequence[str] = (),
        existing: bool = False,
        is_dry: bool = False,
        is_forced: bool = False,
        is_json: bool = False,
        no_color: bool = False,
        **__: Any,
    ) -> None:
        """Do as asked. Raises CommandError for an unknown key or a policy that is refused."""
        if verb != APPLY and (is_dry or is_forced):
            message = f"--dry-run and --force are for {APPLY}."
            raise CommandError(message)
        try:
            found = _found(names)
            chosen = [key for key in found if names or existing or verb == SHOW or not key.is_templates]
            different = [key for key in chosen if key.difference not in (Difference.SAME, Difference.UNDECLARED)]
            writes = [key for key in different if key.difference is not Difference.CHANGED or names or is_forced]
            oversized = {} if verb != APPLY or is_dry else {key.key: _write(key) for key in writes}
        except DispatcherError as error:
            raise CommandError(str(error)) from error
        would = "would be " if is_dry else ""
        done = {} if verb != APPLY else {key.key: would + ("written" if key in writes else "left") for key in different}
        with console(self.stdout, no_color=no_color):
            if is_json:
                text = json.dumps({"items": [_item(key, done) for key in (chosen if verb == SHOW else different)]})
            elif verb == SHOW:
                text = _table(chosen, done) or _NO_KEYS
            else:
                unasked = [key for key in found if key not in chosen]
                text = "\n".join([_table(different, done) or _SAME, *_notes(done, oversized, unasked)])
            self.stdout.write(f"{text}\n")
        if verb == DIFF and different:
            sys.exit(DIFFERENT)


def _found(names: Sequence[str]) -> list[Declared]:
    """Return the requested keys. Raises CommandError naming unknown ones, with similar names."""
    found = declared_keys(names or None)
    if missing := sorted({*names} - {key.key for key in found}):
        raise unknown_keys(missing)
    return found


def _write(key: Declared) -> int:
    """Make a key as the settings say; return how many waiting calls cost more than that ever allows."""
    policy = key.settings or Policy()
    try:
        if key.database is None:
            api.declare(key.key, policy.as_json())
            return 0
        limits = {**policy.as_json(), "observe": policy.observe}
        return api.limit(key.key, limits, by=Actor(source=BY_SETTINGS))
    except DispatcherError as error:
        message = f"{key.key}: {error}"
        raise CommandError(message) from error


def _item(key: Declared, done: Mapping[str, str]) -> dict[str, Any]:
    return key.as_json() | ({"done": done[key.key]} if done else {})


def _table(keys: Sequence[Declared], done: Mapping[str, str]) -> str:
    """Return a line for each key; empty without keys."""
    now = sql.now()
    columns = [
        ("Key", [key.key for key in keys]),
        ("Settings", [_limits(key.settings) for key in keys]),
        ("Database", [_limits(key.database) for key in keys]),
        ("State", [_state(key, now) for key in keys]),
        *([("Done", [done[key.key] for key in keys])] if done else []),
    ]
    return "\n".join(rows(columns, lefts=len(columns))) if keys else ""


def _limits(policy: Policy | None) -> str:
    return "-" if policy is None else describe(policy)


def _state(key: Declared, now: datetime) -> str:
    words = key.difference.label.lower()
    if key.is_templates:
        words += f", of {key.declared_by}"
    if (changed := key.changed) is not None:
        by = " ".join(filter(None, [changed.actor, f"({changed.source})"]))
        words += f" by {by} {in_words(changed.at, now)}" + (f": {changed.reason}" if changed.reason else "")
    if key.overridden_until is not None:
        words += f", overridden until {key.overridden_until:%Y-%m-%d %H:%M:%S %Z}"
    return words


def _notes(done: Mapping[str, str], oversized: Mapping[str, int], unasked: Sequence[Declared]) -> Iterator[str]:
    """Return a line for what was left, for calls that never fit, and for keys of templates that differ."""
    if any(word.endswith("left") for word in done.values()):
        yield "What was changed at run time is left unless the key is named, or with --force."
    for name, calls in oversized.items():
        if calls:
            yield f"{name}: {calls:,} waiting calls cost more than the limits ever allow, and wait alone."
    templates = sum(key.difference not in (Difference.SAME, Difference.UNDECLARED) for key in unasked)
    if templates:
        yield f"Of the keys that templates have made, {templates:,} differ: see and write them with --existing."
