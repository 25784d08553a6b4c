"""Keys in the admin: how they stand, their limits, and pause, resume, override."""

from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.widgets import AdminSplitDateTime
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from dispatcher import api, reports, sql
from dispatcher.admin.base import BoundedAdmin
from dispatcher.admin.limits import ConfirmedForm, LimitsForm, limits_of
from dispatcher.errors import CallInvalid, PolicyInvalid, RowLocked
from dispatcher.history import Actor
from dispatcher.lanes import mixture
from dispatcher.limits.policy import HEAVIEST, Policy
from dispatcher.models import RateLimitKey
from dispatcher.validate import key_name, moment

_PASSED = "Give a time to come."
_SHOWN = 20
"""How many calls a key's page shows that hold it, and that wait for it."""


class KeyForm(ConfirmedForm, ModelForm):  # type: ignore[type-arg]
    """A key with its own limits."""

    weight = forms.IntegerField(
        min_value=1,
        max_value=HEAVIEST,
        required=False,
        help_text="How many turns its calls take as a share, beside one of a share of weight 1.",
    )

    class Meta:
        model = RateLimitKey
        fields = (
            *("name", "concurrency", "per_worker", "rate_limit", "rate_period", "throttle_limit", "throttle_period"),
            *("fair_by", "weight", "is_observed"),
        )

    def clean_name(self) -> str:
        """Refuse an invalid key name, with the remedy."""
        try:
            return key_name(self.cleaned_data["name"])
        except CallInvalid as error:
            raise ValidationError(str(error)) from error

    def clean(self) -> dict[str, Any]:
        """Refuse a limit per worker that can't be kept; ask for confirmation before waiting calls become oversized."""
        cleaned = super().clean()
        if not self.errors:
            try:
                mixture.check_policy(cleaned.get("name") or self.instance.name, Policy.parse(limits_of(cleaned)))
            except PolicyInvalid as error:
                self.add_error("per_worker", str(error))
        if self.instance.pk is not None and not self.errors:
            self.ask_to_confirm(api.count_oversized(self.instance.name, limits_of(cleaned)))
        return cleaned


class OverrideForm(ConfirmedForm):
    """Limits until a time; initially those that all selected keys share."""

    until = forms.SplitDateTimeField(widget=AdminSplitDateTime(), help_text="When the key's own limits apply again.")

    def clean_until(self) -> Any:
        """Refuse a time in the past, or beyond the calendar."""
        until = self.cleaned_data["until"]
        if timezone.is_naive(until):  # without USE_TZ
            until = timezone.make_aware(until)
        if until <= sql.now():
            raise ValidationError(_PASSED)
        try:
            return moment("until", until)
        except CallInvalid as error:
            raise ValidationError(str(error)) from error


def _shown(at: datetime) -> str:
    """Return a time in the user's time zone, with its date unless that is today."""
    here = timezone.localtime(at)
    return f"{here:%H:%M:%S}" if here.date() == datetime.now(here.tzinfo).date() else f"{here:%Y-%m-%d %H:%M:%S}"


def _shared_limits(keys: Iterable[RateLimitKey]) -> dict[str, Any]:
    """Return the limits that all of these keys share, by field of the form."""
    chosen = list(keys)
    found = {name: [getattr(key, name) for key in chosen] for name in LimitsForm.base_fields}
    return {name: values[0] for name, values in found.items() if values and all(value == values[0] for value in values)}


def _fields(strategy: str) -> set[str]:
    """Return the form's fields of a limit."""
    return {name for name in LimitsForm.base_fields if name.startswith(strategy)}


def _actor(request: HttpRequest) -> Actor:
    """Return the user, for the history."""
    return Actor(name=request.user.get_username(), source="admin")


@admin.register(RateLimitKey)
class KeyAdmin(BoundedAdmin):
    """Keys; limits are changed through the engine, so that waiting calls start at once."""

    form = KeyForm
    change_form_template = "admin/dispatcher/ratelimitkey/change_form.html"
    list_display = ("name", "state_now", "limits", "in_flight", "window", "waiting")
    list_filter = ("is_paused", "is_observed")
    search_fields = ("name__startswith",)
    search_help_text = "The start of the key's name."
    ordering = ("name",)
    actions = ("pause", "resume", "override", "end_override", "observe", "enforce")
    fieldsets: ClassVar = [
        (None, {"fields": ("name",)}),
        (
            "Own limits",
            {
                "fields": (
                    ("concurrency", "per_worker"),
                    ("rate_limit", "rate_period"),
                    ("throttle_limit", "throttle_period"),
                    "is_observed",
                )
            },
        ),
        ("Turns of the calls that wait", {"fields": (("fair_by", "weight"),)}),
    ]

    def get_readonly_fields(self, request: HttpRequest, obj: RateLimitKey | None = None) -> tuple[str, ...]:
        # Waiting calls refer to it.
        return ("name",) if obj else ()

    def get_fieldsets(self, request: HttpRequest, obj: RateLimitKey | None = None) -> Any:
        """Add the confirmation field for an existing key."""
        confirms = [("Confirm", {"fields": ("accept_oversized",)})]
        return [*self.fieldsets, *(confirms if obj and self.has_change_permission(request, obj) else ())]

    def has_delete_permission(self, request: HttpRequest, obj: RateLimitKey | None = None) -> bool:
        """Refuse: lanes and calls refer to the key by its id."""
        return False

    def save_model(self, request: HttpRequest, obj: RateLimitKey, form: Any, change: bool) -> None:  # noqa: FBT001
        """Create the key, or store its limits through the engine."""
        limits = limits_of(form.cleaned_data)
        if change:
            self._warn(request, api.limit(obj.name, limits, by=_actor(request)))
        else:
            obj.pk = api.declare(obj.name, limits).pk

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Say on the page that nothing was saved if another transaction has locked the key."""
        try:
            return super().changeform_view(request, *args, **kwargs)
        except RowLocked as error:
            self.message_user(request, str(error), messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Report all keys of the page with one query."""
        response = super().changelist_view(request, extra_context)
        if isinstance(response, TemplateResponse) and response.context_data and "cl" in response.context_data:
            names = [key.name for key in response.context_data["cl"].result_list]
            found = {status.name: status for status in reports.rate_limit_status(names)}
            for key in response.context_data["cl"].result_list:
                key.status = found.get(key.name)
        return response

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the state of the key, its calls in flight and its waiting calls."""
        key = self.get_object(request, object_id)
        if key is not None and self.has_view_permission(request, key):
            extra_context = {
                **(extra_context or {}),
                "status": next(iter(reports.rate_limit_status([key.name])), None),
                "holding": reports.calls_in_flight(key.name, most=_SHOWN),
                "waiting": reports.waiting_calls(key.name, most=_SHOWN),
            }
        return super().change_view(request, object_id, form_url, extra_context)

    @admin.display(description="state")
    def state_now(self, key: RateLimitKey) -> str:
        status = _status(key)
        words = status.state.label
        if status.observed:
            words += f": {status.observed}"
        if status.blocked_until:
            words += f" until {_shown(status.blocked_until)}"
        return words + (f", overridden until {_shown(status.overridden_until)}" if status.overridden_until else "")

    @admin.display(description="limits in force")
    def limits(self, key: RateLimitKey) -> str:
        """Return the limits in force, briefly."""
        policy = _status(key).policy
        parts = [
            f"{policy.concurrency} at once" if policy.concurrency is not None else "",
            f"{policy.per_worker} per worker" if policy.per_worker is not None else "",
            str(policy.rate or ""),
            f"{policy.throttle} spaced" if policy.throttle else "",
        ]
        return ", ".join(filter(None, parts)) or "none"

    @admin.display(description="in flight")
    def in_flight(self, key: RateLimitKey) -> int:
        return _status(key).in_flight

    @admin.display(description="used in window")
    def window(self, key: RateLimitKey) -> str:
        status = _status(key)
        return f"{status.used} of {status.policy.rate.limit}" if status.policy.rate else "-"

    @admin.display(description="waiting")
    def waiting(self, key: RateLimitKey) -> SafeString:
        return format_html("{}", f"{_status(key).waiting:,}")

    def has_pause_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("dispatcher.pause_ratelimitkey")

    def has_override_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("dispatcher.override_ratelimitkey")

    @admin.action(permissions=["pause"], description="Pause")
    def pause(self, request: HttpRequest, keys: QuerySet[RateLimitKey]) -> None:
        self._each(request, keys, partial(api.pause, by=_actor(request)), "paused")

    @admin.action(permissions=["pause"], description="Resume (ends a pause or a block)")
    def resume(self, request: HttpRequest, keys: QuerySet[RateLimitKey]) -> None:
        self._each(request, keys, partial(api.resume, by=_actor(request)), "resumed")

    @admin.action(permissions=["change"], description="Observe: let the limits stop nothing, and count what they would")
    def observe(self, request: HttpRequest, keys: QuerySet[RateLimitKey]) -> None:
        self._each(request, keys.filter(is_observed=False), partial(api.observe, by=_actor(request)), "observed")

    @admin.action(permissions=["change"], description="Enforce the limits of observed keys")
    def enforce(self, request: HttpRequest, keys: QuerySet[RateLimitKey]) -> None:
        """Put the limits of the selected keys in force."""
        self._each(request, keys.filter(is_observed=True), partial(api.enforce, by=_actor(request)), "enforced")

    @admin.action(permissions=["override"], description="End override")
    def end_override(self, request: HttpRequest, keys: QuerySet[RateLimitKey]) -> None:
        """Put the selected keys' own limits in force again."""
        overridden = keys.filter(override_until__isnull=False)
        self._each(request, overridden, partial(api.end_override, by=_actor(request)), "back to their own limits")

    @admin.action(permissions=["override"], description="Override until ...")
    def override(self, request: HttpRequest, keys: QuerySet[RateLimitKey]) -> HttpResponse | None:
        """Ask for limits and a time, then put them in force."""
        shared = _shared_limits(keys)
        form = OverrideForm(request.POST if "apply" in request.POST else None, initial=shared)
        if form.is_valid():
            given, until = limits_of(form.cleaned_data), form.cleaned_data["until"]
            # If the keys differ in a limit and the field is empty, each key keeps its own.
            limits = {
                name: limit for name, limit in given.items() if limit is not None or _fields(name) <= shared.keys()
            }
            form.ask_to_confirm(sum(api.count_oversized(key.name, limits) for key in keys))
        if form.is_valid():
            try:
                for key in keys:
                    mixture.check_policy(key.name, Policy.parse(limits))
            except PolicyInvalid as error:
                form.add_error("per_worker", str(error))
        if form.is_valid():
            override = partial(api.override, until=until, by=_actor(request), **limits)
            self._each(request, keys, override, f"overridden to {until}")
            return None
        context = {
            **self.admin_site.each_context(request),
            "title": "Override until",
            "opts": self.model._meta,
            "keys": keys,
            "form": form,
            "media": self.media + form.media,
            "checkbox": ACTION_CHECKBOX_NAME,
        }
        return TemplateResponse(request, "admin/dispatcher/ratelimitkey/override.html", context)

    def _warn(self, request: HttpRequest, oversized: int) -> None:
        """Warn how many waiting calls the limits never allow."""
        if oversized:
            what = f"{oversized:,} waiting calls cost more than the limits ever allow"
            self.message_user(request, f"{what}: they wait alone until the limits are raised.", messages.WARNING)

    def _each(
        self, request: HttpRequest, keys: QuerySet[RateLimitKey], verb: Callable[[str], int | None], done: str
    ) -> None:
        """Apply an action to the keys, log each change, and show how many there were, and how many calls never fit."""
        chosen, oversized = list(keys), 0
        for count, key in enumerate(chosen):
            try:
                oversized += verb(key.name) or 0
            except RowLocked as error:
                self.message_user(request, str(error), messages.ERROR)
                del chosen[count:]
                break
            self.log_change(request, key, done)
        if chosen:
            self.message_user(request, f"{len(chosen)} key{'' if len(chosen) == 1 else 's'}: {done}.", messages.SUCCESS)
        else:
            self.message_user(request, "No key was changed: the action applied to none.", messages.WARNING)
        self._warn(request, oversized)


def _status(key: RateLimitKey) -> reports.KeyStatus:
    """Return the status of a key: from the page's report, or from a query."""
    status: reports.KeyStatus | None = getattr(key, "status", None)
    return status if status is not None else reports.rate_limit_status([key.name])[0]
