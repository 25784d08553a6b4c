"""Filters whose choices cost nothing, and which an index serves."""

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone

from dispatcher.admin.paging import first_id
from dispatcher.conf import conf
from dispatcher.models import CallQueue, Lane, RateLimitKey, Slot
from dispatcher.states import DUE, IN_FLIGHT, TERMINAL, State

FLYING: Final = "in_flight"
"""The choice for all that is in flight."""

_PERIODS: Final = {
    "hour": ("The last hour", timedelta(hours=1)),
    "day": ("The last day", timedelta(days=1)),
    "week": ("The last week", timedelta(weeks=1)),
}
_OLDER: Final = "older"

if TYPE_CHECKING:
    _Calls = QuerySet[CallQueue]
    _Keys = QuerySet[RateLimitKey]
else:
    _Calls = _Keys = QuerySet


class StateFilter(admin.SimpleListFilter):
    """By state. What is in flight is found by its slots, of which there are few."""

    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:
        """Offer every state."""
        del request, model_admin
        return [*((state.value, state.label) for state in State), (FLYING, "In flight")]

    def queryset(self, request: HttpRequest, queryset: _Calls) -> _Calls:
        """Filter by the chosen state, in words that its index knows."""
        del request
        value = self.value()
        if value is None:
            return queryset
        if value == FLYING or value in IN_FLIGHT:
            states = IN_FLIGHT if value == FLYING else [value]
            return queryset.filter(pk__in=Slot.objects.values("call_id"), state__in=states)
        if value in TERMINAL:
            queryset = queryset.filter(finished_at__isnull=False)
        return queryset.filter(state=value)


class SentFilter(admin.SimpleListFilter):
    """By the time of sending, which every id begins with."""

    title = "sent"
    parameter_name = "sent"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:
        """Offer some periods, and what is older than all of them."""
        del request, model_admin
        return [*((value, label) for value, (label, _) in _PERIODS.items()), (_OLDER, "More than a week ago")]

    def queryset(self, request: HttpRequest, queryset: _Calls) -> _Calls:
        """Filter by the chosen period."""
        del request
        return queryset.filter(sent_in(self.value()))


class QueueFilter(admin.SimpleListFilter):
    """By queue, among the queues that there are lanes of."""

    title = "queue"
    parameter_name = "queue"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:
        """Offer the queues that calls were sent to."""
        del request, model_admin
        queues = Lane.objects.using(conf().database).values_list("queue", flat=True).distinct()
        return [(queue, queue) for queue in sorted(queues)]

    def queryset(self, request: HttpRequest, queryset: _Calls) -> _Calls:
        """Filter by the chosen queue: by its lanes as well, since those the waiting calls are indexed by."""
        del request
        value = self.value()
        if value is None:
            return queryset
        return queryset.filter(queue=value, lane__in=Lane.objects.filter(queue=value).values("pk"))


class KeyStateFilter(admin.SimpleListFilter):
    """By what was set by people or by a provider, and by what holds calls up."""

    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:
        """Offer what a key may be in."""
        del request, model_admin
        return [
            ("paused", "Paused"),
            ("blocked", "Blocked"),
            ("overridden", "Overridden"),
            ("stopping", "Holding calls up"),
        ]

    def queryset(self, request: HttpRequest, queryset: _Keys) -> _Keys:
        """Filter by the choice."""
        del request
        match self.value():
            case "paused":
                return queryset.filter(is_paused=True)
            case "blocked":
                return queryset.filter(blocked_until__gt=timezone.now())
            case "overridden":
                return queryset.filter(override_until__gt=timezone.now())
            case "stopping":
                parked = Lane.objects.filter(parked_on__isnull=False)
                return queryset.filter(pk__in=parked.values("parked_on"))
            case _:
                return queryset


def sent_in(period: str | None) -> Q:
    """Return the condition that a call was sent in a period that SentFilter offers."""
    if period in _PERIODS:
        return Q(pk__gte=first_id(timezone.now() - _PERIODS[period][1]))
    if period == _OLDER:
        return Q(pk__lt=first_id(timezone.now() - max(span for _, span in _PERIODS.values())))
    return Q()


def ordering(state: str | None) -> Iterable[str]:
    """Return the order in which an index gives the calls of a state; by default the newest come first."""
    if state in TERMINAL:
        return ("-finished_at", "-pk")
    if state in DUE:
        return ("scheduled_at", "pk")
    if state == State.AVAILABLE:
        return ("lane_id", "position")
    return ("-pk",)


def is_few(state: str | None) -> bool:
    """Whether calls in this state are few: those in flight, which their slots find."""
    return state in {FLYING, *IN_FLIGHT}


def has_lanes_indexed(state: str | None) -> bool:
    """Whether calls in this state are found by their lanes, however many there are."""
    return state == State.AVAILABLE or is_few(state)
