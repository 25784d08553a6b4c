"""Models of queues: who serves each, and how many calls may wait."""

from typing import Any, ClassVar

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from dispatcher import validate
from dispatcher.limits.turns import MOST_WEIGHT
from dispatcher.models.record import DateTimeField, Record
from dispatcher.states import Delivery, OnFull

_DELIVERY = [(delivery.value, delivery.label) for delivery in Delivery]
_ON_FULL = [(action.value, action.value) for action in OnFull]


class Queue(Record):
    """The configuration of a queue: who serves it, and how many calls may wait in it.

    It is made with the first lane of a queue, or when a worker first serves it (see the setting `delivery`).
    """

    name = models.CharField(max_length=255, primary_key=True)
    delivery = models.CharField(
        max_length=8,
        choices=_DELIVERY,
        default=Delivery.DIRECT,
        db_default=Delivery.DIRECT,
        help_text="How its calls reach workers: published through Celery's broker, taken by Celery workers from "
        "PostgreSQL, or fetched over HTTP by workers in any language.",
    )
    is_undecided = models.BooleanField(default=False, db_default=False, editable=False)
    """No worker serves it yet: the first fetch, or the first Celery worker, decides who does."""
    weight = models.PositiveSmallIntegerField(
        default=1,
        db_default=1,
        validators=[MinValueValidator(1), MaxValueValidator(MOST_WEIGHT)],
        help_text="How many calls of this queue a worker starts for each call of a queue of weight 1, while both have "
        "calls of equal priority that may start. From 1 to 1000; only for direct delivery.",
    )
    max_depth = models.PositiveIntegerField(
        null=True, blank=True, help_text="Maximum number of waiting calls; empty is no bound."
    )
    on_full = models.CharField(
        max_length=16, choices=_ON_FULL, default=OnFull.REJECT, help_text="What happens to a job sent above the bound."
    )
    warn_at = models.FloatField(default=0.8, help_text="The share of the bound from which it counts as nearly full.")
    created_at = DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(
                name="queue_depth_is_positive", condition=Q(max_depth__isnull=True) | Q(max_depth__gte=1)
            ),
            models.CheckConstraint(
                name="queue_delivery_is_known", condition=Q(delivery__in=[d.value for d in Delivery])
            ),
            models.CheckConstraint(name="queue_weight_is_1_to_1000", condition=Q(weight__range=(1, MOST_WEIGHT))),
            models.CheckConstraint(
                name="queue_weight_is_of_direct_delivery", condition=Q(weight=1) | Q(delivery=Delivery.DIRECT)
            ),
            models.CheckConstraint(name="queue_warns_at_a_share", condition=Q(warn_at__range=(0, 1))),
        ]

    def __str__(self) -> str:
        return self.name

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Write it. Raises CallInvalid for a weight out of bounds, or one that would have no effect."""
        validate.queue_weight(self.weight, self.delivery)
        super().save(*args, **kwargs)
