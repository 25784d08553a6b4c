"""Queues in the admin: who serves them, and how many calls may wait."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.http import HttpRequest

from dispatcher import validate
from dispatcher.admin.base import BoundedAdmin
from dispatcher.errors import CallInvalid
from dispatcher.lanes import mixture
from dispatcher.models import CallQueue, Lane, Queue
from dispatcher.states import IN_FLIGHT, Delivery


class QueueForm(forms.ModelForm):  # type: ignore[type-arg]
    """The configuration of a queue."""

    def clean(self) -> dict[str, Any]:
        """Refuse a delivery that the queue can't have, and a weight without direct delivery."""
        cleaned = super().clean() or {}
        try:
            # Of a queue with calls in flight it can't be changed: the form has no such field.
            validate.queue_delivery(cleaned.get("delivery", ""))
        except CallInvalid as error:
            self.add_error("delivery", str(error))
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
