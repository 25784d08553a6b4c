"""What the models of the dispatcher share: the database that they are in, and times that have a zone."""

from datetime import datetime
from typing import Any

from django.db import models
from django.utils import timezone

from dispatcher.managers import Manager


class DateTimeField(models.DateTimeField):  # type: ignore[type-arg]
    """A time that has its zone also where USE_TZ is False: Django reads it without, and it compares with no other."""

    def from_db_value(self, value: datetime | None, *_: object) -> datetime | None:
        """Return the time in the zone in which the connection has read it."""
        is_local = value is not None and timezone.is_naive(value)
        return timezone.make_aware(value, timezone.get_default_timezone()) if is_local else value  # type: ignore[arg-type]

    def deconstruct(self) -> Any:
        """Be Django's own field to migrations."""
        name, _, *rest = super().deconstruct()
        return name, "django.db.models.DateTimeField", *rest


class Clock(models.Func):
    """The time by the database's clock, read where the statement comes to it: after the locks that it waits for."""

    function = "clock_timestamp"
    output_field = DateTimeField()


class Record(models.Model):
    """A row in the database that DISPATCHER["database"] names."""

    objects = Manager()

    class Meta:
        abstract = True
