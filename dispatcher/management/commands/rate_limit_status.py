"""manage.py rate_limit_status: what every key allows, what is spent of it and what waits for it."""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

from django.core.management.base import BaseCommand, CommandError, CommandParser

from dispatcher.conf import conf
from dispatcher.management import key_table
from dispatcher.models import RateLimitKey
from dispatcher.reports import KeyState, KeyStatus, rate_limit_status, unserved_queues

if TYPE_CHECKING:
    from rich.console import RenderableType

EVERY: Final = 2.0
NO_KEYS: Final = (
    'No rate limit keys yet. Declare one: RateLimitKey.objects.declare("api.example.com", concurrency=5), '
    'or name it in the settings, in DISPATCHER["keys"].'
)
_TOO_OFTEN: Final = "--watch: the seconds must be more than 0"
_CLEAR: Final = "\033[H\033[2J"
_FRAME: Final = 3
"""Lines of a screen that are not keys: the column titles, what was left out, the clock."""


class Command(BaseCommand):
    """Show how the rate limit keys stand."""

    help = "Show what every rate limit key allows, what is spent of it and what waits for it."

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the options."""
        parser.add_argument(
            "--key",
            nargs="+",
            action="extend",
            metavar="NAME",
            dest="names",
            help="Tell all about these keys, in place of a table of all.",
        )
        parser.add_argument("--json", action="store_true", dest="is_json", help="Print JSON, for other programs.")
        parser.add_argument(
            "--watch",
            nargs="?",
            const=EVERY,
            type=float,
            metavar="SECONDS",
            help=f"Show it again and again until Ctrl-C, every {EVERY:g} seconds if not said otherwise.",
        )

    def handle(
        self,
        *_: Any,
        names: list[str] | None = None,
        is_json: bool = False,
        watch: float | None = None,
        no_color: bool = False,
        **__: Any,
    ) -> None:
        """Show the keys until told to stop. Raises CommandError for a key that does not exist."""
        if watch is not None and not watch > 0:
            raise CommandError(_TOO_OFTEN)
        self.stdout.ending = ""
        is_terminal = self.stdout.isatty()
        try:
            with suppress(KeyboardInterrupt):
                if is_json:
                    self._repeat(watch, partial(self._show_json, names, is_line=watch is not None))
                elif is_terminal and find_spec("rich"):
                    self._show_rich(names, watch, has_color=not no_color)
                else:
                    self._repeat(watch, partial(self._show_plain, names, watch, is_terminal=is_terminal))
        except BrokenPipeError:
            # The reader, `head` say, has seen enough; Python flushes once more at exit, and that goes nowhere.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def _repeat(self, watch: float | None, show: Callable[[], None]) -> None:
        show()
        while watch is not None:
            time.sleep(watch)
            show()

    def _show_json(self, names: Sequence[str] | None, *, is_line: bool) -> None:
        document: dict[str, Any] = {"items": [key.as_json() for key in _found(names)]}
        document["unserved_queues"] = [queue.as_json() for queue in unserved_queues()]
        self._write(json.dumps(document, indent=None if is_line else 2))

    def _show_plain(self, names: Sequence[str] | None, watch: float | None, *, is_terminal: bool) -> None:
        keys = _found(names)
        if not keys:
            return self._write(NO_KEYS)
        size = shutil.get_terminal_size()
        shown = _most_telling(keys, size.lines - _FRAME) if is_terminal and watch else keys
        body = (
            "\n\n".join(map(key_table.details, shown))
            if names
            else key_table.plain(key_table.columns(shown, size.columns if is_terminal else None))
        )
        clear = _CLEAR if is_terminal and watch else ""
        return self._write(f"{clear}{body}{_footer(keys, shown, watch)}")

    def _show_rich(self, names: Sequence[str] | None, watch: float | None, *, has_color: bool) -> None:
        from rich.console import Console, Group  # noqa: PLC0415 -- the extra `cli`
        from rich.live import Live  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        console = Console(file=cast("TextIO", self.stdout), no_color=not has_color, force_terminal=True)

        def render() -> "RenderableType":
            keys = _found(names)
            if not keys:
                return Text(NO_KEYS)
            shown = _most_telling(keys, console.height - _FRAME) if watch else keys
            footer = _footer(keys, shown, watch)
            if names:
                return Text("\n\n".join(map(key_table.details, shown)) + footer)
            table = key_table.rich(shown, key_table.columns(shown, console.width))
            return Group(table, Text(footer)) if footer else table

        if watch is None:
            console.print(render())
            return
        with Live(console=console, screen=True, auto_refresh=False) as live:
            self._repeat(watch, lambda: live.update(render(), refresh=True))

    def _write(self, text: str) -> None:
        self.stdout.write(f"{text}\n")
        self.stdout.flush()


def _found(names: Sequence[str] | None) -> list[KeyStatus]:
    """Return the keys asked for. Raises CommandError naming those that do not exist, with names that are close."""
    keys = rate_limit_status(names)
    if missing := sorted(set(names or ()) - {key.name for key in keys}):
        known = list(RateLimitKey.objects.using(conf().database).values_list("name", flat=True))
        raise CommandError(" ".join(_unknown(name, known) for name in missing))
    return keys


def _unknown(name: str, known: Sequence[str]) -> str:
    close = get_close_matches(name, known)
    hint = f" Did you mean {' or '.join(close)}?" if close else ""
    return f"There is no rate limit key {name!r}.{hint}"


def _most_telling(keys: Sequence[KeyStatus], most: int) -> list[KeyStatus]:
    """Return as many keys as fit: those first that hold up calls, or have many; in order of name."""
    by_calls = sorted(
        keys, key=lambda key: (not key.waiting or key.state is KeyState.OPEN, -key.waiting, -key.in_flight)
    )
    return sorted(by_calls[: max(1, most)], key=lambda key: key.name)


def _footer(keys: Sequence[KeyStatus], shown: Sequence[KeyStatus], watch: float | None) -> str:
    left_out = f"\n{len(keys) - len(shown):,} more keys, with less going on." if len(shown) < len(keys) else ""
    clock = f"\n{keys[0].at:%H:%M:%S %Z}, every {watch:g} s; Ctrl-C ends it." if watch else ""
    return left_out + _unserved() + clock


def _unserved() -> str:
    """Tell which queues nobody serves, a line for each."""
    return "".join(
        f"\nNo live worker serves the queue {queue.name}: {queue.waiting:,} calls wait." for queue in unserved_queues()
    )
