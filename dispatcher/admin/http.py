"""The HTTP face in the admin: queues and who serves them, its workers, its tokens."""

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from dispatcher.admin.paging import BoundedList
from dispatcher.errors import CallInvalid
from dispatcher.models import ApiToken, CallQueue, PullWorker, Queue
from dispatcher.states import IN_FLIGHT
from dispatcher.validate import scopes

if TYPE_CHECKING:
    _Queues = admin.ModelAdmin[Queue]
    _Workers = admin.ModelAdmin[PullWorker]
    _Tokens = admin.ModelAdmin[ApiToken]
    _Form = forms.ModelForm[ApiToken]
else:
    _Queues = _Workers = _Tokens = admin.ModelAdmin
    _Form = forms.ModelForm


@admin.register(Queue)
class QueueAdmin(BoundedList, _Queues):
    """Queues: who serves them, and how many calls may wait."""

    fields = ("name", "delivery", "max_depth", "on_full", "warn_at")
    list_display = ("name", "delivery", "max_depth", "on_full", "created_at")
    list_filter = ("delivery",)
    search_fields = ("name",)
    ordering = ("name",)

    def save_model(self, request: HttpRequest, obj: Queue, form: Any, change: Any) -> None:
        """Save a queue; who serves it is decided by the person."""
        obj.is_undecided = False
        super().save_model(request, obj, form, change)

    def get_readonly_fields(self, request: HttpRequest, obj: Queue | None = None) -> tuple[str, ...]:
        """Keep the name of a queue, and who serves it while its calls are with somebody."""
        del request
        if obj is None:
            return ()
        is_busy = CallQueue.objects.filter(queue=obj.name, state__in=IN_FLIGHT).exists()
        return ("name", "delivery") if is_busy else ("name",)


@admin.register(PullWorker)
class PullWorkerAdmin(BoundedList, _Workers):
    """Workers that fetch over HTTP: here they are read, and told to be quiet, to end, or to go on."""

    list_display = ("name", "state", "directive", "queues", "started_at", "seen_at")
    list_filter = ("state", "directive")
    search_fields = ("name",)
    ordering = ("-seen_at", "-id")
    actions = ("go_on", "be_quiet", "terminate")

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Refuse: a worker is known by its fetches."""
        del request
        return False

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> tuple[str, ...]:
        """Let nothing be edited but by the actions."""
        del request, obj
        return ("name", "queues", "state", "directive", "started_at", "seen_at")

    @admin.action(description="Let it go on", permissions=["change"])
    def go_on(self, request: HttpRequest, workers: QuerySet[PullWorker]) -> None:
        """Tell these workers to fetch again."""
        self._tell(request, workers, "running")

    @admin.action(description="Have it fetch nothing more", permissions=["change"])
    def be_quiet(self, request: HttpRequest, workers: QuerySet[PullWorker]) -> None:
        """Tell these workers to finish what they have."""
        self._tell(request, workers, "quiet")

    @admin.action(description="Have it end", permissions=["change"])
    def terminate(self, request: HttpRequest, workers: QuerySet[PullWorker]) -> None:
        """Tell these workers to end."""
        self._tell(request, workers, "terminate")

    def _tell(self, request: HttpRequest, workers: QuerySet[PullWorker], directive: str) -> None:
        count = workers.update(directive=directive)
        self.message_user(request, f"{count} will be told with the next heartbeat: {directive}.")


class TokenForm(_Form):
    """What may be changed of a token."""

    may_grant = False
    """Whether the person may do everything, and so let a token do more than it does."""

    def clean_scopes(self) -> list[str]:
        """Refuse what is no scope, and what the person may not grant."""
        try:
            given = scopes(self.cleaned_data["scopes"])
        except CallInvalid as error:
            raise forms.ValidationError(str(error)) from error
        if not self.may_grant and (more := sorted(set(given).difference(self.instance.scopes))):
            message = f"Only a superuser grants {', '.join(more)}."
            raise forms.ValidationError(message)
        return given

    def clean(self) -> dict[str, Any]:
        """Refuse to revive a token."""
        cleaned = super().clean() or {}
        ends_at, given = self.instance.expires_at, cleaned.get("expires_at")
        is_later = ends_at is not None and (given is None or given > ends_at)
        if not self.may_grant and (is_later or (cleaned.get("is_active") and not self.instance.is_active)):
            message = "Only a superuser lets a token be used again, or for longer."
            raise forms.ValidationError(message)
        return cleaned


@admin.register(ApiToken)
class ApiTokenAdmin(BoundedList, _Tokens):
    """Tokens: switched off here; made by manage.py dispatcher_token, which shows each once."""

    form = TokenForm
    fields = ("name", "scopes", "is_active", "expires_at", "created_at")
    list_display = ("name", "scopes", "is_active", "expires_at", "created_at")
    search_fields = ("name",)
    ordering = ("name",)
    readonly_fields = ("name", "created_at")

    def get_form(self, request: HttpRequest, obj: ApiToken | None = None, change: Any = False, **kwargs: Any) -> Any:  # noqa: FBT002
        """Let only superusers grant what a token does not have."""
        form: Any = super().get_form(request, obj, change, **kwargs)
        form.may_grant = bool(request.user.is_superuser)
        return form

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Refuse: a token is shown once, by the command that makes it."""
        del request
        return False

    def save_model(self, request: HttpRequest, obj: ApiToken, form: Any, change: Any) -> None:
        """Save what may be changed, and never the hash."""
        del request, form, change
        obj.save(update_fields=["scopes", "is_active", "expires_at"])
