"""Calls in the admin: read them, cancel, retry or run them now."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final
from uuid import UUID

from django.contrib import admin
from django.db import transaction
from django.db.models import Q, QuerySet
from django.db.models.expressions import Combinable
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from dispatcher import engine, reports
from dispatcher.admin import looks
from dispatcher.admin.actions import BATCH, Tally
from dispatcher.admin.filters import QueueFilter, SentFilter, StateFilter, has_lanes_indexed, is_few, ordering, sent_in
from dispatcher.admin.paging import CappedPaginator, LeanChangeList, batches
from dispatcher.conf import conf
from dispatcher.models import CallQueue, Lane, RateLimitKey
from dispatcher.reports import words
from dispatcher.states import DUE, IN_FLIGHT, TERMINAL, State

SEARCHED: Final = 100_000
"""How many of the newest calls are looked through where no index helps."""

_HAS_ENDED: Final = dict.fromkeys(TERMINAL, "they have ended")
_NOT_CANCELLED: Final = {State.ACTIVE: "they run, and what runs is not interrupted", **_HAS_ENDED}
_NOT_RETRIED: Final = {
    **dict.fromkeys([State.AVAILABLE, State.PENDING, *DUE], "they have not ended, and go when they may"),
    **dict.fromkeys(IN_FLIGHT, "they are in flight"),
}
_NOT_RUN: Final = {**dict.fromkeys(IN_FLIGHT, "they are in flight already"), **_HAS_ENDED}

_ACTIONS: Final = {
    "cancel": ("Cancel", [State.AVAILABLE, State.PENDING, State.DISPATCHED, *DUE]),
    "retry": ("Retry", [*TERMINAL]),
    "run_now": ("Run now", [State.AVAILABLE, State.PENDING, *DUE]),
}
"""The buttons of a call's page, each with the states in which it does something."""

if TYPE_CHECKING:
    _Admin = admin.ModelAdmin[CallQueue]
else:
    _Admin = admin.ModelAdmin


@admin.register(CallQueue)
class CallAdmin(_Admin):
    """Calls are written by `send` and moved by the engine: here they are read and steered, never edited."""

    list_display = ("short_id", "task", "badge", "since", "queue", "sent")
    list_only = (
        *("id", "task", "state", "queue"),
        *("created_at", "scheduled_at", "dispatched_at", "started_at", "finished_at"),
    )
    list_filter = (StateFilter, SentFilter, QueueFilter)
    sortable_by = ()
    search_fields = ("id",)
    search_help_text = (
        "An id; the whole name of a key; or how a task's name begins. "
        f"By key or task, the newest {SEARCHED:,} calls are searched (filter by “sent” to go back further); "
        "by key, all of those that wait or are in flight, if you filter by that state."
    )
    paginator = CappedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50
    actions = ("cancel", "retry", "run_now")
    change_form_template = "admin/dispatcher/callqueue/change_form.html"
    fieldsets: ClassVar = [
        (None, {"fields": ("badge", "task", "why_it_waits", "keys")}),
        ("What it calls", {"fields": ("shown_args", "shown_kwargs", "shown_call_data", "shown_meta")}),
        ("How it went", {"fields": ("attempt", "shown_retry", "shown_result", "errors_shown")}),
        (
            "When",
            {
                "fields": (
                    "shown_created_at",
                    "shown_scheduled_at",
                    "shown_expires_at",
                    "shown_dispatched_at",
                    "shown_published_at",
                    "shown_started_at",
                    "shown_finished_at",
                )
            },
        ),
        ("Where", {"fields": ("id", "queue", "priority", "on_limit", "lane_id", "ticket")}),
    ]
    readonly_fields = [str(name) for _, group in fieldsets for name in group["fields"]]

    shown_args = looks.json_shown("args", "arguments")
    shown_kwargs = looks.json_shown("kwargs", "keyword arguments")
    shown_call_data = looks.json_shown("call_data", "call data")
    shown_meta = looks.json_shown("meta", "meta")
    shown_result = looks.json_shown("result", "result")
    shown_created_at = looks.time_shown("created_at", "sent")
    shown_scheduled_at = looks.time_shown("scheduled_at", "not before")
    shown_expires_at = looks.time_shown("expires_at", "expires")
    shown_dispatched_at = looks.time_shown("dispatched_at", "admitted")
    shown_published_at = looks.time_shown("published_at", "handed to Celery")
    shown_started_at = looks.time_shown("started_at", "started")
    shown_finished_at = looks.time_shown("finished_at", "ended")

    @property
    def media(self) -> Any:
        """Add the style sheet."""
        return super().media + looks.STYLE

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Refuse: calls are sent, not made here."""
        del request
        return False

    def has_change_permission(self, request: HttpRequest, obj: CallQueue | None = None) -> bool:
        """Refuse: nothing is edited, and actions have permissions of their own."""
        del request, obj
        return False

    def has_delete_permission(self, request: HttpRequest, obj: CallQueue | None = None) -> bool:
        """Refuse: people cancel calls, and the retention deletes those that have ended."""
        del request, obj
        return False

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        """Whether the person may cancel calls."""
        return request.user.has_perm("dispatcher.cancel_callqueue")

    def has_retry_permission(self, request: HttpRequest) -> bool:
        """Whether the person may retry calls."""
        return request.user.has_perm("dispatcher.retry_callqueue")

    def has_run_permission(self, request: HttpRequest) -> bool:
        """Whether the person may move calls to the front."""
        return request.user.has_perm("dispatcher.run_callqueue")

    # The list

    def get_queryset(self, request: HttpRequest) -> QuerySet[CallQueue]:
        """Read from the dispatcher's database."""
        return super().get_queryset(request).using(conf().database)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[LeanChangeList]:
        """Read what the list shows and no more."""
        del request, kwargs
        return LeanChangeList

    def get_ordering(self, request: HttpRequest) -> list[str | Combinable]:
        """Order as an index of the chosen state does."""
        return [*ordering(request.GET.get(StateFilter.parameter_name))]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[CallQueue], search_term: str
    ) -> tuple[QuerySet[CallQueue], bool]:
        """Find by id, by key or by task; where no index helps, among the newest calls."""
        term = search_term.strip()
        if (call_id := _uuid(term)) is not None:
            return queryset.filter(pk=call_id), False
        state = request.GET.get(StateFilter.parameter_name)
        key = RateLimitKey.objects.using(conf().database).filter(name=term).first() if term else None
        is_by_task = bool(term) and key is None
        is_by_lane = key is not None or QueueFilter.parameter_name in request.GET
        if key is not None:
            queryset = queryset.filter(lane__in=_lanes(key).values("pk"))
        elif is_by_task:
            queryset = queryset.filter(task__startswith=term)
        is_scan = (is_by_task and not is_few(state)) or (is_by_lane and not has_lanes_indexed(state))
        return queryset.filter(_newest(request) if is_scan or state == State.PENDING else Q()), False

    @admin.display(description="state")
    def badge(self, call: CallQueue) -> SafeString:
        """Return the state as a badge."""
        return looks.badge(State(call.state))

    @admin.display(description="call")
    def short_id(self, call: CallQueue) -> SafeString:
        """Return the end of the id: the beginning is the time, and much the same for many."""
        return format_html('<span class="dispatcher-id" title="{}">{}</span>', call.pk, str(call.pk)[-12:])

    @admin.display(description="since, or due")
    def since(self, call: CallQueue) -> str:
        """Return when it came to its state; of one that waits for its time, that time."""
        at = call.finished_at
        match call.state:
            case State.AVAILABLE:
                at = max(filter(None, (call.created_at, call.scheduled_at)))
            case State.DISPATCHED:
                at = call.dispatched_at
            case State.ACTIVE:
                at = call.started_at
            case State.SCHEDULED | State.RETRYABLE:
                at = call.scheduled_at
        return looks.ago(at)

    @admin.display(description="sent")
    def sent(self, call: CallQueue) -> str:
        """Return when it was sent."""
        return looks.stamp(call.created_at)

    # The page of one call

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Offer what the person may do to the call now."""
        call = self.get_object(request, object_id)
        buttons = [
            (name, label)
            for name, (label, states) in _ACTIONS.items()
            if call is not None and call.state in states and name in self.get_actions(request)
        ]
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), "buttons": buttons})

    @admin.display(description="why it waits")
    def why_it_waits(self, call: CallQueue) -> SafeString | str:
        """Return what holds the call up, in a sentence."""
        if call.state in DUE:
            return f"Its time is {looks.when(call.scheduled_at)}."
        wait = reports.why_waiting(call.pk)
        if wait is None:
            return "It does not wait."
        since = f"since {looks.when(wait.since)}"
        ahead = f"{wait.ahead:,}{' or more' if wait.ahead == reports.MANY else ''} of its lane go before it"
        place = ahead if wait.ahead else "it is the first of its lane"
        if wait.stopped_by is None:
            return f"Its lane is to be served; {place}. It waits {since}."
        (status,) = reports.rate_limit_status([wait.stopped_by])
        link = looks.key_link(status.id, status.name)
        return format_html("{} {} stopped its lane. It waits {}; {}.", link, looks.key_badge(status), since, place)

    @admin.display(description="keys")
    def keys(self, call: CallQueue) -> SafeString | str:
        """Return its keys: what it costs of each, how each stands, and its limits in force."""
        costs = {cost.name: cost.cost for cost in reports.costs(call.pk)}
        if not costs:
            return "None, so nothing limits it."
        rows = (
            (
                looks.key_link(key.id, key.name),
                costs[key.name],
                looks.key_badge(key),
                words.limits(key.policy),
            )
            for key in reports.rate_limit_status(costs)
        )
        return looks.table(("Key", "Cost", "State now", "Limits in force"), rows)

    @admin.display(description="errors")
    def errors_shown(self, call: CallQueue) -> SafeString | str:
        """Return every failure, oldest first, and what ended it."""
        errors = [*call.errors, *([call.error] if call.error and call.error not in call.errors else [])]
        if not errors:
            return looks.NOTHING
        rows = (
            (error.get("attempt"), _occurred(error), error.get("type", ""), error.get("message", ""))
            for error in errors
        )
        return looks.table(("Attempt", "When", "Error", "Message"), rows)

    @admin.display(description="retry policy")
    def shown_retry(self, call: CallQueue) -> SafeString | str:
        """Return the call's own retry policy."""
        return "the setting's" if call.retry is None else looks.pretty(call.retry)

    # Actions

    @transaction.non_atomic_requests(using=conf().database)
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """List calls, or act on them: outside of a transaction, since the engine commits before it publishes."""
        return super().changelist_view(request, extra_context)

    @admin.action(permissions=["cancel"], description="Cancel: end calls that have not started")
    def cancel(self, request: HttpRequest, calls: QuerySet[CallQueue]) -> HttpResponse | None:
        """Cancel the chosen calls that have not started."""
        return self._act(request, calls, engine.cancel, "cancelled", _NOT_CANCELLED)

    @admin.action(permissions=["retry"], description="Retry: let ended calls wait again, from attempt 0")
    def retry(self, request: HttpRequest, calls: QuerySet[CallQueue]) -> HttpResponse | None:
        """Let the chosen calls that have ended wait again."""
        return self._act(request, calls, engine.retry, "to be retried", _NOT_RETRIED)

    @admin.action(permissions=["run"], description="Run now: to the front of their lanes; limits still hold")
    def run_now(self, request: HttpRequest, calls: QuerySet[CallQueue]) -> HttpResponse | None:
        """Move the chosen calls that wait to the front."""
        return self._act(request, calls, engine.run_now, "moved to the front", _NOT_RUN)

    def _act(
        self,
        request: HttpRequest,
        calls: QuerySet[CallQueue],
        verb: Callable[[Iterable[UUID]], list[UUID]],
        done: str,
        refusals: Mapping[State, str],
    ) -> HttpResponse | None:
        """Do something to the calls batch by batch; say of how many, and why not of the others."""
        tally = Tally(request, CallQueue, noted=f"{done.capitalize()}.")
        for ids in batches(calls, BATCH):
            changed = set(verb(ids))
            tally.add({pk: str(pk) for pk in ids if pk in changed})
            tally.left += _refused([pk for pk in ids if pk not in changed], refusals)
            if tally.is_late():
                break
        return tally.tell(self, done)


def _refused(ids: Sequence[UUID], refusals: Mapping[State, str]) -> Counter[str]:
    """Return why these calls were left alone, by the states that they are in."""
    states = CallQueue.objects.using(conf().database).filter(pk__in=ids).values_list("state", flat=True)
    found = Counter(refusals.get(State(state), "they have just changed") for state in states)
    return found + Counter({"they are gone": len(ids) - found.total()})


def _lanes(key: RateLimitKey) -> QuerySet[Lane]:
    """Return the lanes of the calls that spend a key: those that name it, and those of the queue if it is a queue's."""
    queue = key.name.removeprefix("queue:") if key.name.startswith("queue:") else None
    return Lane.objects.filter(Q(key_ids__contains=[key.pk]) | Q(queue=queue))


def _newest(request: HttpRequest) -> Q:
    """Return the condition that a call is one of the newest of the period that is filtered by."""
    period = sent_in(request.GET.get(SentFilter.parameter_name))
    newest = CallQueue.objects.using(conf().database).filter(period).order_by("-pk").values_list("pk", flat=True)
    oldest = newest[SEARCHED : SEARCHED + 1].first()
    return Q() if oldest is None else Q(pk__gt=oldest)


def _occurred(error: Mapping[str, Any]) -> str:
    at = error.get("occurred_at")
    return looks.when(datetime.fromisoformat(at)) if at else looks.NOTHING


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
