"""The HTTP API in the admin: queues, workers that fetch, tokens."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from dispatcher import validate
from dispatcher.admin.base import BoundedAdmin
from dispatcher.errors import CallInvalid
from dispatcher.lanes import mixture
from dispatcher.models import ApiToken, CallQueue, Lane, PullWorker, Queue
from dispatcher.states import IN_FLIGHT, Delivery


class QueueForm(forms.ModelForm):  # type: ignore[type-arg]
    """The configuration of a queue."""

    def clean(self) -> dict[str, Any]:
        """Refuse the broker for calls that spend keys with a limit per worker, and a weight without direct delivery."""
        cleaned = super().clean() or {}
        try:
            validate.queue_weight(cleaned.get("weight", 1), cleaned.get("delivery", self.instance.delivery))
        except CallInvalid as error:
            self.add_error("weight", str(error))
        if cleaned.get("delivery") == Delivery.BROKER:
            try:
                mixture.check_delivery(cleaned.get("name") or self.instance.name)
            except CallInvalid as error:
                self.add_error("delivery", str(error))
        return cleaned


@admin.register(Queue)
class QueueAdmin(BoundedAdmin):
    """Queues: who serves them, how often, and how many calls may wait."""

    fields = ("name", "delivery", "weight", "max_depth", "on_full", "warn_at")
    list_display = ("name", "delivery", "weight", "max_depth", "on_full", "created_at")
    list_filter = ("delivery",)
    search_fields = ("name",)
    ordering = ("name",)

    form = QueueForm

    def save_model(self, request: HttpRequest, obj: Queue, form: Any, change: Any) -> None:
        """Save a queue; the user has decided who serves it."""
        obj.is_undecided = False
        super().save_model(request, obj, form, change)
        if change and request.POST.get("delivery", obj.delivery) != obj.delivery:
            self.message_user(
                request,
                "The delivery was not changed: calls of the queue are in flight. Pause its keys until none is.",
                messages.WARNING,
            )

    def has_delete_permission(self, request: HttpRequest, obj: Queue | None = None) -> bool:
        """Refuse it for a queue with lanes: its calls would have no delivery any more."""
        is_used = obj is not None and Lane.objects.filter(queue=obj.name).exists()
        return not is_used and super().has_delete_permission(request, obj)

    def get_readonly_fields(self, request: HttpRequest, obj: Queue | None = None) -> tuple[str, ...]:
        if obj is None:
            return ()
        is_busy = CallQueue.objects.filter(queue=obj.name, state__in=IN_FLIGHT).exists()
        return ("name", "delivery") if is_busy else ("name",)


@admin.register(PullWorker)
class PullWorkerAdmin(BoundedAdmin):
    """Workers that fetch over HTTP, registered by their fetches: view them, and set their directives."""

    list_display = ("name", "state", "directive", "queues", "started_at", "seen_at")
    list_filter = ("state", "directive")
    search_fields = ("name",)
    ordering = ("-seen_at", "-id")
    actions = ("resume", "quiet", "terminate")

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Refuse: a worker registers with its first fetch."""
        return False

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> tuple[str, ...]:
        return ("name", "queues", "state", "directive", "started_at", "seen_at")

    @admin.action(description="Resume", permissions=["change"])
    def resume(self, request: HttpRequest, workers: QuerySet[PullWorker]) -> None:
        self._set_directive(request, workers, "running")

    @admin.action(description="Quiet (finish current jobs)", permissions=["change"])
    def quiet(self, request: HttpRequest, workers: QuerySet[PullWorker]) -> None:
        self._set_directive(request, workers, "quiet")

    @admin.action(description="Terminate", permissions=["change"])
    def terminate(self, request: HttpRequest, workers: QuerySet[PullWorker]) -> None:
        self._set_directive(request, workers, "terminate")

    def _set_directive(self, request: HttpRequest, workers: QuerySet[PullWorker], directive: str) -> None:
        count = workers.update(directive=directive)
        self.message_user(request, f"{count} workers get this directive with their next heartbeat: {directive}.")


class TokenForm(forms.ModelForm):  # type: ignore[type-arg]
    """The editable fields of a token."""

    may_grant = False
    """Whether the user is a superuser, who may extend what a token can do."""

    def clean_scopes(self) -> list[str]:
        """Refuse unknown scopes, and scopes that the user may not grant."""
        try:
            given = validate.scopes(self.cleaned_data["scopes"])
        except CallInvalid as error:
            raise forms.ValidationError(str(error)) from error
        if not self.may_grant and (more := sorted(set(given).difference(self.instance.scopes))):
            message = f"Only a superuser can grant {', '.join(more)}."
            raise forms.ValidationError(message)
        return given

    def clean(self) -> dict[str, Any]:
        """Refuse to reactivate or extend a token, except by a superuser."""
        cleaned = super().clean() or {}
        ends_at, given = self.instance.expires_at, cleaned.get("expires_at")
        is_later = ends_at is not None and (given is None or given > ends_at)
        if not self.may_grant and (is_later or (cleaned.get("is_active") and not self.instance.is_active)):
            message = "Only a superuser can reactivate a token or extend it."
            raise forms.ValidationError(message)
        return cleaned


@admin.register(ApiToken)
class ApiTokenAdmin(BoundedAdmin):
    """Tokens, created by manage.py dispatcher_token, which shows each once; here they are deactivated."""

    form = TokenForm
    fields = ("name", "scopes", "is_active", "expires_at", "created_at")
    list_display = ("name", "scopes", "is_active", "expires_at", "created_at")
    search_fields = ("name",)
    ordering = ("name",)
    readonly_fields = ("name", "created_at")

    def get_form(self, request: HttpRequest, obj: ApiToken | None = None, change: Any = False, **kwargs: Any) -> Any:  # noqa: FBT002
        """Let only superusers add scopes."""
        form: Any = super().get_form(request, obj, change, **kwargs)
        form.may_grant = bool(request.user.is_superuser)
        return form

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Refuse: the command that creates a token shows it once."""
        return False

    def save_model(self, request: HttpRequest, obj: ApiToken, form: Any, change: Any) -> None:
        """Save the editable fields, never the hash."""
        obj.save(update_fields=["scopes", "is_active", "expires_at"])
