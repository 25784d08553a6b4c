"""Calls in the admin: view, cancel, retry or run now."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.views.main import SEARCH_VAR
from django.contrib.contenttypes.models import ContentType
from django.db.models import QuerySet
from django.db.models.expressions import Combinable
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from dispatcher import api, reports, sql
from dispatcher.admin.base import MANY, ReadOnlyAdmin, badge, batches
from dispatcher.messages.tickets import uuid_of
from dispatcher.models import CallQueue, RateLimitKey, Slot
from dispatcher.states import DUE, IN_FLIGHT, TERMINAL, Reason, State

_FOUND = 1_000
"""Maximum number of calls that a search by key finds, waiting and in flight each."""
_OVERSIZED = "oversized"
_BY_END = ("-finished_at", "-id")
_ORDERS: Mapping[str, tuple[str | Combinable, ...]] = {
    **dict.fromkeys(TERMINAL, _BY_END),
    **dict.fromkeys((State.AVAILABLE, _OVERSIZED), ("lane_id", "position")),
    **dict.fromkeys(DUE, ("queue", "scheduled_at", "id")),
    State.PENDING: ("queue", "id"),
}
"""The order of the calls in a state: that of its index."""

_COLOURS = {
    State.COMPLETED: "#2e7d32",
    State.DISCARDED: "#c62828",
    State.CANCELLED: "#757575",
    State.ACTIVE: "#1565c0",
    State.DISPATCHED: "#0277bd",
    State.RETRYABLE: "#ef6c00",
}


def _pretty(value: object) -> SafeString:
    if value is None or value in ([], {}):
        return format_html("{}", "-")
    return format_html("<pre>{}</pre>", json.dumps(value, indent=2, ensure_ascii=False))


def _json(field: str, title: str) -> Callable[["CallAdmin", CallQueue], SafeString]:
    """Return a column that shows a field as JSON."""

    @admin.display(description=title)
    def show(_: "CallAdmin", call: CallQueue) -> SafeString:
        return _pretty(getattr(call, field))

    return show


class StateFilter(admin.SimpleListFilter):
    """Filters by state, each with an index; calls in flight by their slots, of which there are few."""

    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:
        return [*((state.value, state.label) for state in State), (_OVERSIZED, "Oversized: costs more than the limit")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[CallQueue]) -> QuerySet[CallQueue]:
        value = self.value()
        if value is None:
            return queryset
        if value == _OVERSIZED:
            return queryset.filter(oversized_key__isnull=False)
        if value in IN_FLIGHT:
            queryset = queryset.filter(pk__in=Slot.objects.values("call_id"))
        elif value in TERMINAL:
            queryset = queryset.filter(finished_at__isnull=False)
        elif value in DUE:
            queryset = queryset.filter(state__in=DUE)
        elif value == State.AVAILABLE:
            queryset = queryset.filter(oversized_key__isnull=True)
        return queryset.filter(state=value)


class ReasonFilter(admin.SimpleListFilter):
    """Filters discarded calls by reason."""

    title = "reason for the discard"
    parameter_name = "reason"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:
        return [(reason.value, reason.label) for reason in Reason]

    def queryset(self, request: HttpRequest, queryset: QuerySet[CallQueue]) -> QuerySet[CallQueue]:
        value = self.value()
        if not value:
            return queryset
        if request.GET.get(StateFilter.parameter_name, State.DISCARDED) != State.DISCARDED:
            return queryset.none()
        return queryset.filter(reason=value)


@admin.register(CallQueue)
class CallAdmin(ReadOnlyAdmin):
    """Calls are created by `send`, changed by the engine and deleted by retention: people view and control them."""

    list_display = (
        "short_id",
        "task",
        "state_now",
        "queue",
        "priority",
        "attempt",
        "created_at",
        "started_at",
        "finished_at",
    )
    list_filter = (StateFilter, ReasonFilter)
    search_fields = ("id",)
    search_help_text = (
        f"A call's id; the name of a key, for up to {_FOUND:,} waiting calls and {_FOUND:,} in flight; "
        f"or the start of a task's name, among the newest {MANY:,} calls."
    )
    actions = ("cancel", "retry", "run_now")
    fieldsets: ClassVar = [
        (None, {"fields": ("id", "task", "state_now", "why_it_waits", "keys_and_costs")}),
        (
            "Arguments and result",
            {"fields": ("args_json", "kwargs_json", "call_data_json", "meta_json", "result_json")},
        ),
        (
            "Execution",
            {
                "fields": (
                    "queue",
                    "priority",
                    "on_limit",
                    "attempt",
                    "retry_json",
                    "reason",
                    "crashes",
                    "error_history",
                )
            },
        ),
        (
            "When",
            {
                "fields": (
                    "created_at",
                    "scheduled_at",
                    "expires_at",
                    "dispatched_at",
                    "published_at",
                    "started_at",
                    "finished_at",
                )
            },
        ),
    ]

    def get_readonly_fields(self, request: HttpRequest, obj: CallQueue | None = None) -> list[str]:
        return [str(name) for _, group in self.fieldsets for name in group["fields"]]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[CallQueue], search_term: str
    ) -> tuple[QuerySet[CallQueue], bool]:
        """Search by id, by key or by task, each with an index."""
        term = search_term.strip()
        if not term:
            return queryset, False
        if (call := uuid_of(term)) is not None:
            return queryset.filter(pk=call), False
        if RateLimitKey.objects.filter(name=term).exists():
            found = sql.fetch("find_calls_of_key", UUID, {"name": term, "most": _FOUND})
            return queryset.filter(pk__in=found), False
        oldest = CallQueue.objects.order_by("-pk").values_list("pk", flat=True)[MANY : MANY + 1].first()
        recent = queryset if oldest is None else queryset.filter(pk__gt=oldest)
        return recent.filter(task__startswith=term), False

    def get_ordering(self, request: HttpRequest) -> tuple[str | Combinable, ...]:
        """Return the index order of the selection; newest first without one, or for a search."""
        if request.GET.get(SEARCH_VAR):
            return ("-id",)
        if request.GET.get(ReasonFilter.parameter_name):
            return _BY_END
        return _ORDERS.get(request.GET.get(StateFilter.parameter_name, ""), ("-id",))

    @admin.display(description="id")
    def short_id(self, call: CallQueue) -> SafeString:
        """Return the end of the id, which differs from call to call; the whole id is its title."""
        return format_html('<span title="{}" style="white-space:nowrap">…{}</span>', call.pk, str(call.pk)[-12:])

    @admin.display(description="state")
    def state_now(self, call: CallQueue) -> SafeString:
        state = State(call.state)
        return badge(state.label, _COLOURS.get(state, "#6d4c41"))

    @admin.display(description="why it waits")
    def why_it_waits(self, call: CallQueue) -> str:
        return reports.why_in_words(call.pk) or "It does not wait for a limit."

    @admin.display(description="keys")
    def keys_and_costs(self, call: CallQueue) -> SafeString:
        """Return the keys with the call's cost for each."""
        found = reports.costs(call.pk)
        if not found:
            return format_html("{}", "none: no key limits it")
        words = ((cost.cost, f"{cost.name} ({cost.chosen})" if cost.chosen else cost.name) for cost in found)
        return format_html_join(", ", "{} of {}", words)

    @admin.display(description="errors")
    def error_history(self, call: CallQueue) -> SafeString:
        """Return the recorded failures, oldest first, and the number of all failures."""
        if not call.errors:
            return format_html("{}", call.error["message"] if call.error else "none")
        count = max(call.error_count, len(call.errors))
        is_all = count == len(call.errors)
        title = f"{count:,} in total" if is_all else f"{count:,} in total; the first 5 and the last 20 are kept"
        rows = (
            (error.get("occurred_at", ""), error.get("attempt", ""), error.get("type", ""), error.get("message", ""))
            for error in call.errors
        )
        listed = format_html_join("", "<div>{} · attempt {} · <b>{}</b> {}</div>", rows)
        return format_html("<div>{}</div>{}", title, listed)

    args_json = _json("args", "arguments")
    kwargs_json = _json("kwargs", "keyword arguments")
    call_data_json = _json("call_data", "call data")
    meta_json = _json("meta", "meta")
    result_json = _json("result", "result")

    @admin.display(description="retry policy")
    def retry_json(self, call: CallQueue) -> SafeString:
        return _pretty(call.retry) if call.retry is not None else format_html("{}", "the setting's")

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("dispatcher.cancel_callqueue")

    def has_retry_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("dispatcher.retry_callqueue")

    def has_run_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("dispatcher.run_callqueue")

    @admin.action(permissions=["cancel"], description="Cancel calls that have not started")
    def cancel(self, request: HttpRequest, calls: QuerySet[CallQueue]) -> None:
        self._each(request, calls, api.cancel, "cancelled", "they run or have ended")

    @admin.action(permissions=["retry"], description="Retry ended calls")
    def retry(self, request: HttpRequest, calls: QuerySet[CallQueue]) -> None:
        self._each(request, calls, api.retry, "queued for a retry", "they have not ended")

    @admin.action(permissions=["run"], description="Run now: move to the front of the lane, within the limits")
    def run_now(self, request: HttpRequest, calls: QuerySet[CallQueue]) -> None:
        self._each(request, calls, api.run_now, "moved to the front", "they do not wait")

    def _each(
        self,
        request: HttpRequest,
        calls: QuerySet[CallQueue],
        verb: Callable[[Iterable[UUID]], list[UUID]],
        done: str,
        otherwise: str,
    ) -> None:
        """Apply an action to the calls in batches; show how many changed, and why the others did not."""
        moved = left = 0
        for ids in batches(calls):
            changed = verb(ids)
            moved += len(changed)
            left += len(ids) - len(changed)
        LogEntry.objects.create(
            user_id=str(request.user.pk),
            content_type=ContentType.objects.get_for_model(CallQueue),
            object_repr=f"{moved} calls"[:200],
            action_flag=CHANGE,
            change_message=f"{moved} calls: {done}",
        )
        if moved:
            self.message_user(request, f"{moved:,} calls: {done}.", messages.SUCCESS)
        if left:
            self.message_user(request, f"{left:,} calls were not changed: {otherwise}.", messages.WARNING)
