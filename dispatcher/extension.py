"""What another app of the dispatcher adds to the engine: `dispatcher.ojs` registers its steps in its `ready()`.

Without such an app each step does nothing, and costs nothing.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

if TYPE_CHECKING:
    from dispatcher.request import Extras


HTTP_MISSING: Final = (
    'delivery over HTTP needs the Open Job Spec: add "dispatcher.ojs" to INSTALLED_APPS, or choose direct or broker.'
)


class Extension:
    """The steps at which the engine calls the app; a subclass overrides those that it needs."""

    serves_http = False
    """Whether workers can fetch calls over HTTP."""

    def keeps_events(self) -> bool:
        """Return whether an event log is kept, which the app reads and trims."""
        return False

    def note_event(self, kind: str, data: Mapping[str, Any], *, queue: str | None = None) -> None:
        """Store an event of a limit or a queue, as the Open Job Spec names it, if an event log is kept."""

    def store_extras(self, extras: Mapping[UUID, "Extras"]) -> None:
        """Store what the app keeps of calls, by id, that this transaction wrote, or refused to write."""

    def reclaim(self, *, until: datetime | None = None, now: datetime | None = None) -> int:  # noqa: ARG002 -- the app's
        """End the attempts of fetched calls whose leases were over by `until`; return how many."""
        return 0

    def recover(self, *, now: datetime | None = None) -> None:
        """Do what each recovery does, every few seconds."""

    def clean_up(self, *, now: datetime | None = None) -> None:
        """Delete what was kept for long enough, as the nightly cleanup does."""


class _Registered:
    extension = Extension()


def register(extension: Extension) -> None:
    """Have the engine call this app's steps."""
    _Registered.extension = extension


def registered() -> Extension:
    """Return the registered steps; without an app, steps that do nothing."""
    return _Registered.extension
