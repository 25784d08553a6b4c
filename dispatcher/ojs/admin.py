"""The HTTP API in the admin: workers that fetch, tokens, and the event log."""

from typing import Any, ClassVar, Final

from django import forms
from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from dispatcher.admin.base import MANY, BoundedAdmin, ReadOnlyAdmin
from dispatcher.errors import CallInvalid, FieldInvalid
from dispatcher.messages.tickets import uuid_of
from dispatcher.ojs import cron
from dispatcher.ojs.auth import check_scopes
from dispatcher.ojs.models import ApiToken, Cron, EventLogEntry, PullWorker

KINDS: Final = (
    "backpressure.cleared",
    "backpressure.rejected",
    "backpressure.warning",
    "cron.skipped",
    "job.heartbeat",
    "queue.paused",
    "queue.resumed",
    "rate_limit.dynamic_adjusted",
    "rate_limit.exceeded",
    "rate_limit.released",
)
"""The kinds of entries in the event log."""


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


class CronForm(forms.ModelForm):  # type: ignore[type-arg]
    """The editable fields of a cron."""

    overlap = forms.ChoiceField(
        choices=[
            ("skip", "skip this time"),
            ("allow", "send it, too"),
            ("cancel_previous", "cancel the previous call"),
            ("enqueue", "send it, to wait for the previous one"),
        ],
        help_text="While its previous call has not ended.",
    )

    class Meta:
        help_texts: ClassVar = {
            "expression": "Five fields, as in crontab, or a word such as @daily.",
            "timezone": "Of the expression, such as Europe/Berlin.",
        }

    def clean(self) -> dict[str, Any]:
        """Refuse what the HTTP API refuses."""
        cleaned = super().clean() or {}
        given = {name: cleaned[name] for name in ("expression", "timezone", "overlap") if name in cleaned}
        try:
            cron.check_cron(Cron(name=self.instance.name, job=self.instance.job, **given))
        except FieldInvalid as error:
            self.add_error(error.field if error.field in self.fields else None, str(error))
        return cleaned


@admin.register(Cron)
class CronAdmin(BoundedAdmin):
    """Crons, created over HTTP with the job that they send: people see when they run, and change that."""

    form = CronForm
    fields = ("name", "expression", "timezone", "overlap", "is_enabled", "next_run_at", "last_run_at", "job")
    list_display = ("name", "expression", "timezone", "is_enabled", "next_run_at", "last_run_at", "runs")
    list_filter = ("is_enabled",)
    search_fields = ("name",)
    ordering = ("name",)
    readonly_fields = ("name", "next_run_at", "last_run_at", "job")

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Refuse: the HTTP API checks the job."""
        return False

    def save_model(self, request: HttpRequest, obj: Cron, form: Any, change: Any) -> None:
        """Save it with its next run."""
        cron.register_cron(obj)


class TokenForm(forms.ModelForm):  # type: ignore[type-arg]
    """The editable fields of a token."""

    may_grant = False
    """Whether the user is a superuser, who may extend what a token can do."""

    def clean_scopes(self) -> list[str]:
        """Refuse unknown scopes, and scopes that the user may not grant."""
        try:
            given = check_scopes(self.cleaned_data["scopes"])
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


class KindFilter(admin.SimpleListFilter):
    """Filters by kind, from the list of kinds: to find the existing ones would read the whole log."""

    title = "kind"
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:
        return [(kind, kind) for kind in KINDS]

    def queryset(self, request: HttpRequest, queryset: QuerySet[EventLogEntry]) -> QuerySet[EventLogEntry]:
        value = self.value()
        return queryset.filter(kind=value) if value else queryset


@admin.register(EventLogEntry)
class EventLogEntryAdmin(ReadOnlyAdmin):
    """Events, written by the engine and deleted by retention: people view them."""

    list_display = ("at", "kind", "queue", "details")
    list_filter = (KindFilter,)
    search_fields = ("queue", "data__key")
    search_help_text = f"The id of a call; or a queue or a key, among the latest {MANY:,} entries."
    ordering = ("-at", "-id")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[EventLogEntry], search_term: str
    ) -> tuple[QuerySet[EventLogEntry], bool]:
        """Search by the id of a call, which has an index, or among the latest entries."""
        term = search_term.strip()
        if not term:
            return queryset, False
        if (call := uuid_of(term)) is not None:
            return queryset.filter(call_id=call), False
        oldest = EventLogEntry.objects.order_by("-at").values_list("at", flat=True)[MANY : MANY + 1].first()
        latest = queryset if oldest is None else queryset.filter(at__gt=oldest)
        return super().get_search_results(request, latest, term)

    @admin.display(description="details")
    def details(self, entry: EventLogEntry) -> str:
        return ", ".join(f"{name} {value}" for name, value in entry.data.items())
