"""What an action of the admin did: batch by batch within a time, how many, why not the others, and who did it."""

from collections import Counter
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final, Protocol

from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db.models import Model
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

BUDGET: Final = 20.0
"""Seconds that one action takes at the most: a web server gives up on a request that takes much longer."""
BATCH: Final = 500
_LOGGED: Final = 1_000
"""The most rows that one action notes one by one; what is more is noted as a number."""

OBJECT: Final = "_object"
"""The field of a form on an object's own page: whoever acts from there comes back to it."""


class Admin(Protocol):
    """What this module needs to know of a model admin."""

    def message_user(self, request: HttpRequest, message: str, level: int = ...) -> None:
        """Show a message on the next page."""


@dataclass
class Tally:
    """How many rows an action changed, and why it left others as they are."""

    request: HttpRequest
    model: type[Model]
    noted: str
    """What the history says of each: "Paused."."""
    done: int = 0
    left: Counter[str] = field(default_factory=Counter)
    is_cut: bool = False
    until: float = field(default_factory=lambda: monotonic() + BUDGET)

    def is_late(self) -> bool:
        """Say whether the time is up; then the rest is left to another go."""
        self.is_cut = monotonic() >= self.until
        return self.is_cut

    def add(self, changed: dict[Any, str]) -> None:
        """Count rows that were changed, by id and name, and note them in the history."""
        logged = list(changed.items())[: max(0, _LOGGED - self.done)]
        LogEntry.objects.bulk_create(self._entry(name, pk) for pk, name in logged)
        self.done += len(changed)

    def tell(self, admin: Admin, done: str) -> HttpResponse | None:
        """Say how it went; return the way back if it was asked for on an object's own page."""
        if self.done > _LOGGED:
            self._entry(f"{self.done - _LOGGED:,} more {self.model._meta.verbose_name_plural}").save()
        if self.done:
            admin.message_user(self.request, f"{self._counted(self.done)} {done}.", messages.SUCCESS)
        for reason, number in self.left.most_common():
            message = f"{self._counted(number)} left alone: {reason}."
            admin.message_user(self.request, message, messages.WARNING)
        if self.is_cut:
            message = f"Stopped after {BUDGET:g} seconds, so there may be more: run the action again."
            admin.message_user(self.request, message, messages.WARNING)
        elif not self.done and not self.left:
            admin.message_user(self.request, "There was nothing to do.", messages.WARNING)
        return way_back(self.request, self.model)

    def _counted(self, number: int) -> str:
        options = self.model._meta
        return f"{number:,} {options.verbose_name if number == 1 else options.verbose_name_plural}"

    def _entry(self, name: str, pk: Any = None) -> LogEntry:
        return LogEntry(
            user_id=str(self.request.user.pk),
            content_type=ContentType.objects.get_for_model(self.model),
            object_id=pk,
            object_repr=name[:200],
            action_flag=CHANGE,
            change_message=self.noted,
        )


def way_back(request: HttpRequest, model: type[Model]) -> HttpResponse | None:
    """Return to the page of the object whose button was pushed; None if the list was used."""
    pk = request.POST.get(OBJECT)
    if pk is None:
        return None
    return HttpResponseRedirect(reverse(f"admin:{model._meta.label_lower.replace('.', '_')}_change", args=[pk]))
