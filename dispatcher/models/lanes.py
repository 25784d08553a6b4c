"""The model of lanes: calls that wait in one line."""

from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models

from dispatcher.models.record import DateTimeField, Record
from dispatcher.states import OnLimit

ON_LIMIT = [(action.value, action.value) for action in OnLimit]


class Lane(Record):
    """Calls that share queue, priority, at-limit action and exactly the same keys: first in, first out.

    Calls never change its row: who serves or wakes the lane locks it.
    """

    queue = models.CharField(max_length=255)
    priority = models.SmallIntegerField()
    on_limit = models.CharField(max_length=16, choices=ON_LIMIT)
    key_ids = ArrayField(models.BigIntegerField())
    """The keys that its calls name, in order of id."""

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(name="lane_is_one_per_kind", fields=["queue", "priority", "on_limit", "key_ids"])
        ]

    def __str__(self) -> str:
        return f"{self.queue}, priority {self.priority}, keys {self.key_ids}"


class LaneSite(Record):
    """Where a lane is: asleep, ready or parked. One row a lane, made and deleted with it.

    It is a row apart since it changes with nearly every call, and its table has no unique index: while an old snapshot
    is held, a unique index makes each update read all former versions of the row. The migration makes the table.
    """

    lane_id = models.BigIntegerField(primary_key=True)
    queue = models.CharField(max_length=255)
    priority = models.SmallIntegerField()
    place = models.BigIntegerField(
        null=True,
        help_text="Null: asleep, without calls. 0: ready. -1: ready, but a worker holds as much of a key of it as one "
        "worker may. Else the key that it is parked on.",
    )
    served_at = DateTimeField(
        help_text="When a call of it last started, written now and then where it is served alone; in the line of a fair"
        " key, its turn there."
    )
    last_served_at = DateTimeField(
        null=True,
        help_text="In the line of a fair key, when a call of it last started: its share has paid for the turn.",
    )
    kept_until = DateTimeField(
        null=True,
        help_text="Until when the key that it is parked on keeps room for it; infinity: it was passed over once. If it "
        "is ready: until when room was kept in vain, and no worker of its queue has looked at it since.",
    )

    waits_from = models.BigIntegerField(
        help_text="No call of it waits before this position, but for those that are noted."
    )

    class Meta:
        managed = False
        db_table = "dispatcher_lanesite"


class Note(Record):
    """What must be looked at, and when: a lane, or a key with the lanes that are parked on it.

    A note is written by the transaction that knows of it, so it outlasts who wrote it; the next trip that finds it due
    takes it over. The migration makes the table.
    """

    at = DateTimeField(primary_key=True)
    lane_id = models.BigIntegerField(null=True)
    key_id = models.BigIntegerField(null=True)
    is_forced = models.BooleanField(help_text="The first call of the lane has changed: it is ready, parked or not.")
    position = models.BigIntegerField(
        default=-(2**63),
        help_text="The first position of the calls that wait in the lane since; the lowest there is: any.",
    )

    class Meta:
        managed = False
        db_table = "dispatcher_note"
