"""The model of lanes: calls that wait in one line."""

from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from dispatcher.models.keys import RateLimitKey
from dispatcher.states import OnLimit

ON_LIMIT = [(action.value, action.value) for action in OnLimit]


class Lane(models.Model):
    """Calls that share queue, priority, at-limit action and exactly the same keys: first in, first out.

    A lane with calls is awake, parked on the key that stopped it, or held by its queue; an empty one sleeps.
    """

    queue = models.CharField(max_length=255)
    priority = models.SmallIntegerField()
    on_limit = models.CharField(max_length=16, choices=ON_LIMIT)
    key_ids = ArrayField(models.BigIntegerField(), help_text="The keys that its calls name, in order of id.")
    is_awake = models.BooleanField(default=False, db_default=False)
    parked_on = models.ForeignKey(
        RateLimitKey, null=True, on_delete=models.PROTECT, related_name="parked", db_index=False
    )
    is_held = models.BooleanField(
        default=False,
        db_default=False,
        help_text="No live worker of its queue has a free process, or enough of its calls are on the way.",
    )
    served_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(name="lane_is_one_per_kind", fields=["queue", "priority", "on_limit", "key_ids"]),
            models.CheckConstraint(
                name="lane_is_in_one_place",
                condition=Q(is_awake=False, is_held=False)
                | Q(parked_on__isnull=True, is_held=False)
                | Q(parked_on__isnull=True, is_awake=False),
            ),
        ]
        indexes: ClassVar = [
            # Awake lanes: of a queue, by priority; and of all queues, in the order in which they are served.
            models.Index("queue", F("priority").desc(), name="lane_awake", condition=Q(is_awake=True)),
            models.Index(F("priority").desc(), "served_at", "id", name="lane_turn", condition=Q(is_awake=True)),
            models.Index(
                "parked_on",
                F("priority").desc(),
                "served_at",
                "id",
                name="lane_parked",
                condition=Q(parked_on__isnull=False),
            ),
            models.Index("queue", F("priority").desc(), "served_at", "id", name="lane_held", condition=Q(is_held=True)),
        ]

    def __str__(self) -> str:
        return f"{self.queue}, priority {self.priority}, keys {self.key_ids}"
