"""Keys in the admin: how they stand, their limits, and pause, resume, override."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.views.main import ChangeList
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.safestring import SafeString

from dispatcher import engine, reports
from dispatcher.admin import looks
from dispatcher.admin.actions import BATCH, OBJECT, Tally
from dispatcher.admin.filters import FLYING, KeyStateFilter
from dispatcher.admin.forms import KeyForm, OverrideForm, limits_of
from dispatcher.admin.paging import CappedChangeList, CappedPaginator, batches
from dispatcher.conf import conf
from dispatcher.errors import KeyNotFound
from dispatcher.models import RateLimitKey
from dispatcher.reports import words
from dispatcher.states import State

SHOWN: Final = 20
"""How many calls a key's page shows that hold it, and that wait for it; and how many keys an override names."""

_PAUSED_ALREADY: Final = "paused already"
_NOT_STOPPED: Final = "neither paused nor blocked"
_NOT_OVERRIDDEN: Final = "not overridden"

if TYPE_CHECKING:
    _Admin = admin.ModelAdmin[RateLimitKey]
else:
    _Admin = admin.ModelAdmin


class KeyChangeList(CappedChangeList):
    """A page of keys, each with how it stands now: one report for all of them."""

    def get_results(self, request: HttpRequest) -> None:
        """Report the keys of the page."""
        super().get_results(request)
        keys = list(self.result_list)
        found = {status.id: status for status in reports.rate_limit_status([key.name for key in keys])}
        for key in keys:
            key.status = found.get(key.pk)
        self.result_list = keys


@admin.register(RateLimitKey)
class KeyAdmin(_Admin):
    """Limits are changed through the engine, so that what waits is let in at once."""

    form = KeyForm
    list_display = ("name", "state_now", "in_use", "window", "throttle", "next_start", "waiting", "oldest")
    list_filter = (KeyStateFilter,)
    search_fields = ("name__startswith",)
    search_help_text = "How the key's name begins."
    sortable_by = ()
    ordering = ("name",)
    paginator = CappedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50
    actions = ("pause", "resume", "override", "end_override")
    change_form_template = "admin/dispatcher/ratelimitkey/change_form.html"
    fieldsets: ClassVar = [
        (None, {"fields": ("name",)}),
        (
            "Its own limits",
            {
                "fields": ("concurrency", ("rate_limit", "rate_period"), ("throttle_limit", "throttle_period")),
                "description": "In force from the next admission on. What is empty is not limited.",
            },
        ),
    ]

    @property
    def media(self) -> Any:
        """Add the style sheet."""
        return super().media + looks.STYLE

    def has_delete_permission(self, request: HttpRequest, obj: RateLimitKey | None = None) -> bool:
        """Refuse: lanes and calls know the key by its id."""
        del request, obj
        return False

    def has_pause_permission(self, request: HttpRequest) -> bool:
        """Whether the person may pause and resume keys."""
        return request.user.has_perm("dispatcher.pause_ratelimitkey")

    def has_override_permission(self, request: HttpRequest) -> bool:
        """Whether the person may override keys."""
        return request.user.has_perm("dispatcher.override_ratelimitkey")

    # The list

    def get_queryset(self, request: HttpRequest) -> QuerySet[RateLimitKey]:
        """Read from the dispatcher's database."""
        return super().get_queryset(request).using(conf().database)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """Report the keys of a page together."""
        del request, kwargs
        return KeyChangeList

    @admin.display(description="state now")
    def state_now(self, key: RateLimitKey) -> SafeString | str:
        """Return what the key lets happen."""
        return _of(key, looks.key_badge)

    @admin.display(description="in use")
    def in_use(self, key: RateLimitKey) -> SafeString | str:
        """Return the cost in flight."""
        return _of(key, words.in_use)

    @admin.display(description="window")
    def window(self, key: RateLimitKey) -> SafeString | str:
        """Return what is used of the window."""
        return _of(key, words.window)

    @admin.display(description="throttle")
    def throttle(self, key: RateLimitKey) -> SafeString | str:
        """Return the throttle in force."""
        return _of(key, words.throttle)

    @admin.display(description="next start")
    def next_start(self, key: RateLimitKey) -> SafeString | str:
        """Return when time lets the next call start."""
        return _of(key, words.next_start)

    @admin.display(description="waiting")
    def waiting(self, key: RateLimitKey) -> SafeString | str:
        """Return how many calls wait."""
        return _of(key, lambda status: f"{status.waiting:,}")

    @admin.display(description="oldest")
    def oldest(self, key: RateLimitKey) -> SafeString | str:
        """Return how long the first in line has waited."""
        return _of(key, words.oldest)

    # The page of one key

    def get_readonly_fields(self, request: HttpRequest, obj: RateLimitKey | None = None) -> tuple[str, ...]:
        """Keep the name once it is given: calls that wait know their costs by it."""
        del request
        return ("name",) if obj else ()

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show how the key stands, who holds it and who waits, and offer what may be done now."""
        key = self.get_object(request, object_id)
        found = reports.rate_limit_status([key.name]) if key is not None else []
        if found and self.has_view_or_change_permission(request, key):
            (status,) = found
            actions = self.get_actions(request)
            extra_context = {
                **(extra_context or {}),
                "badge": looks.key_badge(status),
                "facts": [*words.facts(status)],
                "holding": [(call, looks.badge(State(call.state))) for call in _holding(status)],
                "waiting": [(call, looks.badge(State(call.state))) for call in _waiting(status)],
                "waiting_query": f"?state={State.AVAILABLE}&q={status.name}",
                "holding_query": f"?state={FLYING}&q={status.name}",
                "query": f"?q={status.name}",
                "buttons": [(name, label) for name, label in _buttons(status) if name in actions],
            }
        return super().change_view(request, object_id, form_url, extra_context)

    def save_model(self, request: HttpRequest, obj: RateLimitKey, form: Any, change: bool) -> None:  # noqa: FBT001 -- Django's signature
        """Make the key, or store its limits through the engine: after the commit, since that lets calls go."""
        del request
        limits = limits_of(form.cleaned_data)
        if not change:
            obj.pk = engine.declare(obj.name, limits).pk
        elif form.changed_data:
            transaction.on_commit(partial(engine.limit, obj.name, limits), using=conf().database)

    # Actions

    @transaction.non_atomic_requests(using=conf().database)
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """List keys, or act on them: outside of a transaction, since the engine commits before it publishes."""
        return super().changelist_view(request, extra_context)

    @admin.action(permissions=["pause"], description="Pause: let nothing start")
    def pause(self, request: HttpRequest, keys: QuerySet[RateLimitKey]) -> HttpResponse | None:
        """Pause the chosen keys."""
        return self._act(request, keys, engine.pause, "paused", lambda key: _PAUSED_ALREADY if key.is_paused else None)

    @admin.action(permissions=["pause"], description="Resume after a pause or a block")
    def resume(self, request: HttpRequest, keys: QuerySet[RateLimitKey]) -> HttpResponse | None:
        """Resume the chosen keys."""

        def refuse(key: RateLimitKey) -> str | None:
            is_blocked = key.blocked_until is not None and key.blocked_until > timezone.now()
            return None if key.is_paused or is_blocked else _NOT_STOPPED

        return self._act(request, keys, engine.resume, "resumed", refuse)

    @admin.action(permissions=["override"], description="Override the limits until a time")
    def override(self, request: HttpRequest, keys: QuerySet[RateLimitKey]) -> HttpResponse | None:
        """Ask for limits and a time, then put them in force."""
        form = OverrideForm(request.POST if "apply" in request.POST else None)
        if form.is_valid():
            limits, until = form.override(), form.cleaned_data["until"]
            verb = partial(engine.override, until=until, **limits)
            return self._act(request, keys, verb, f"overridden until {looks.stamp(until)}", lambda _: None)
        return TemplateResponse(
            request, "admin/dispatcher/ratelimitkey/override.html", self._asking(request, keys, form)
        )

    @admin.action(permissions=["override"], description="End the override")
    def end_override(self, request: HttpRequest, keys: QuerySet[RateLimitKey]) -> HttpResponse | None:
        """Put the chosen keys' own limits in force again."""
        return self._act(
            request,
            keys,
            engine.end_override,
            "back to their own limits",
            lambda key: None if key.override_until else _NOT_OVERRIDDEN,
        )

    def _act(
        self,
        request: HttpRequest,
        keys: QuerySet[RateLimitKey],
        verb: Callable[[str], None],
        done: str,
        refuse: Callable[[RateLimitKey], str | None],
    ) -> HttpResponse | None:
        """Do something to the keys one by one; say to how many, and why not to the others."""
        tally = Tally(request, RateLimitKey, noted=f"{done.capitalize()}.")
        for ids in batches(keys, BATCH):
            for key in RateLimitKey.objects.using(conf().database).filter(pk__in=ids).order_by("pk"):
                if tally.is_late():
                    return tally.tell(self, done)
                if reason := refuse(key):
                    tally.left[reason] += 1
                    continue
                try:
                    verb(key.name)
                except KeyNotFound:
                    tally.left["gone"] += 1
                else:
                    tally.add({key.pk: key.name})
        return tally.tell(self, done)

    def _asking(self, request: HttpRequest, keys: QuerySet[RateLimitKey], form: OverrideForm) -> dict[str, Any]:
        """Return what the page shows that asks for an override; what was chosen goes on with it."""
        chosen = list(keys.order_by("name")[:SHOWN])
        number = keys.order_by()[: CappedPaginator(keys, 1).count].count()
        found = reports.rate_limit_status([key.name for key in chosen])
        kept = [
            ("action", "override"),
            ("select_across", request.POST.get("select_across", "0")),
            *((ACTION_CHECKBOX_NAME, pk) for pk in request.POST.getlist(ACTION_CHECKBOX_NAME)),
            *((OBJECT, pk) for pk in request.POST.getlist(OBJECT)),
        ]
        return {
            **self.admin_site.each_context(request),
            "title": "Override limits until a time",
            "opts": self.opts,
            "chosen": [(key.name, looks.key_badge(key), words.limits(key.policy)) for key in found],
            "more": number - len(chosen),
            "form": form,
            "media": self.media + form.media,
            "kept": kept,
        }


def _of(key: RateLimitKey, say: Callable[[reports.KeyStatus], SafeString | str]) -> SafeString | str:
    """Return something of how a key of the list stands; one that is gone says nothing."""
    status: reports.KeyStatus | None = getattr(key, "status", None)
    return looks.NOTHING if status is None else say(status) or looks.NOTHING


def _holding(status: reports.KeyStatus) -> list[reports.KeyCall]:
    return reports.calls_in_flight(status.name, most=SHOWN)


def _waiting(status: reports.KeyStatus) -> list[reports.KeyCall]:
    return reports.waiting_calls(status.name, most=SHOWN) if status.waiting else []


def _buttons(status: reports.KeyStatus) -> list[tuple[str, str]]:
    """Return what may be done to a key as it stands: (action, label) each."""
    is_stopped = status.is_paused or status.blocked_until is not None
    return [
        *([("resume", "Resume")] if is_stopped else []),
        *([] if status.is_paused else [("pause", "Pause")]),
        ("override", "Override"),
        *([("end_override", "End override")] if status.overridden_until else []),
    ]
