"""Models of calls, and of the slots that calls in flight hold. Fields, constraints and filters; no transitions."""

from typing import Any, ClassVar

import uuid_utils.compat as uuid7
from django.contrib.postgres.fields import ArrayField
from django.db import models, router, transaction
from django.db.models import Func, Q
from django.db.models.fields.json import KT
from django.db.models.functions import Now

from dispatcher.managers import CallQueueManager, check_has_ended, check_is_sent
from dispatcher.models.keys import RateLimitKey
from dispatcher.models.lanes import ON_LIMIT, Lane
from dispatcher.models.record import DateTimeField, Record
from dispatcher.states import DUE, IN_FLIGHT, TERMINAL, WAITING, OnLimit, Reason, State

_STATES = [(state.value, state.label) for state in State]
_REASONS = [(reason.value, reason.label) for reason in Reason]


class NextPosition(Func):
    """The next position in the order of sending, over all calls."""

    template = "nextval('dispatcher_call_position')"
    output_field = models.BigIntegerField()
    allowed_default = True


class CallQueue(Record):
    """One call: a task with its arguments, from the send to its terminal state."""

    id = models.UUIDField(primary_key=True, default=uuid7.uuid7, editable=False)
    position = models.BigIntegerField(db_default=NextPosition(), editable=False)
    lane = models.ForeignKey(
        Lane, null=True, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="+"
    )
    placement = models.JSONField(null=True, editable=False)
    """What its keys and its lane are created from, while it has no lane."""
    task = models.CharField(max_length=255)
    args = models.JSONField(default=list)
    kwargs = models.JSONField(default=dict)
    call_data = models.JSONField(null=True)
    """A method and its params, instead of arguments."""
    meta = models.JSONField(default=dict)
    queue = models.CharField(max_length=255)
    priority = models.SmallIntegerField(default=0)
    on_limit = models.CharField(max_length=16, choices=ON_LIMIT, default=OnLimit.WAIT)
    costs = models.JSONField(default=dict)
    """Its cost by key name, where that is not 1."""
    key_costs = ArrayField(models.PositiveIntegerField(), null=True, editable=False)
    """Its cost of each key of its lane, in their order; null: 1 of each."""
    state = models.CharField(max_length=16, choices=_STATES)
    retry = models.JSONField(null=True)
    """Its retry policy; empty uses the setting."""
    scheduled_at = DateTimeField(null=True, help_text="The earliest start; of a retryable call, of its next attempt.")
    expires_at = DateTimeField(null=True, help_text="Discarded if it has not started by then.")
    headers = models.JSONField(null=True)
    """Headers of its message: the sender's, and those that instrumentation added at the send."""
    options = models.JSONField(null=True)
    """Options of its message, as for apply_async: time limits, the broker's priority, and so on."""
    oversized_key = models.ForeignKey(
        RateLimitKey,
        null=True,
        editable=False,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        related_name="+",
    )
    """The key whose limits in force never allow its cost: it waits alone until they do."""
    oversized_cost = models.IntegerField(null=True, editable=False)
    """Its cost for that key."""
    chosen_keys = models.JSONField(null=True, editable=False)
    """The key that its latest take chose of each group."""
    attempt = models.IntegerField(default=0)
    crashes = models.SmallIntegerField(
        default=0, db_default=0, help_text="Consecutive attempts that crashed their process."
    )
    returns = models.SmallIntegerField(default=0, db_default=0)
    """How many times in a row it was published and came back without a start."""
    is_revoked = models.BooleanField(default=False, db_default=False)
    """It was revoked while it ran: no further attempt starts."""
    ticket = models.UUIDField(null=True, editable=False)
    claim = models.UUIDField(null=True, editable=False)
    """The claim that won the ticket."""
    created_at = DateTimeField(db_default=Now())
    dispatched_at = DateTimeField(null=True)
    published_at = DateTimeField(null=True)
    started_at = DateTimeField(null=True)
    finished_at = DateTimeField(null=True)
    reason = models.CharField(max_length=16, null=True, choices=_REASONS, help_text="Why it was discarded.")  # noqa: DJ001 -- absent is not a text
    result = models.JSONField(null=True)
    error = models.JSONField(null=True)
    """The latest failure: type, message, attempt, occurred_at."""
    errors = models.JSONField(default=list)
    """The first 5 failures and the last 20, oldest first."""
    error_count = models.IntegerField(default=0, db_default=0)
    """The number of all failures, including those that are not kept."""

    objects: ClassVar[CallQueueManager] = CallQueueManager()

    class Meta:
        verbose_name = "call"
        indexes: ClassVar = [
            models.Index(
                name="call_waiting",
                fields=["lane", "position"],
                condition=Q(state=State.AVAILABLE, oversized_key__isnull=True),
            ),
            # Two of these name their column as not null, which any query by it implies: a plan made while there are few
            # calls would else read this index whole, and keep doing so, to find those of a lane.
            models.Index(
                name="call_of_queue",
                fields=["queue", "position"],
                condition=Q(state=State.AVAILABLE, queue__isnull=False),
            ),
            models.Index(
                name="call_unplaced", fields=["position"], condition=Q(lane__isnull=True, finished_at__isnull=True)
            ),
            # All calls except those in flight, which are few: whether a lane has any.
            models.Index(name="call_of_lane", fields=["lane"], condition=Q(state__in=[State.PENDING, *DUE, *TERMINAL])),
            # Oversized calls: by lane, as above, and by key, cheapest first.
            models.Index(name="call_aside", fields=["lane", "position"], condition=Q(oversized_key__isnull=False)),
            models.Index(
                name="call_oversized",
                fields=["oversized_key", "oversized_cost", "position"],
                condition=Q(oversized_key__isnull=False),
            ),
            models.Index(name="call_due", fields=["scheduled_at"], condition=Q(state__in=DUE)),
            models.Index(
                name="call_expires",
                fields=["expires_at"],
                condition=Q(expires_at__isnull=False, state__in=[*DUE, State.AVAILABLE, State.PENDING]),
            ),
            # Without `published_at`, so that recording a publication is a heap-only update.
            models.Index(name="call_unpublished", fields=["dispatched_at"], condition=Q(state=State.DISPATCHED)),
            models.Index(name="call_in_flight", fields=["queue", "state"], condition=Q(state__in=IN_FLIGHT)),
            models.Index(
                name="call_returned", fields=["queue", "task"], condition=Q(returns__gt=0, finished_at__isnull=True)
            ),
            models.Index(name="call_reason", fields=["reason", "finished_at"], condition=Q(reason__isnull=False)),
            models.Index(name="call_ended", fields=["state", "finished_at"], condition=Q(finished_at__isnull=False)),
            # Queries for one queue: the calls in each state, and the latest or oldest of them.
            models.Index(
                name="call_ended_queue",
                fields=["queue", "state", "finished_at"],
                condition=Q(finished_at__isnull=False),
            ),
            models.Index(
                name="call_due_queue", fields=["state", "queue", "scheduled_at", "id"], condition=Q(state__in=DUE)
            ),
            models.Index(name="call_pending", fields=["queue", "id"], condition=Q(state=State.PENDING)),
            # Events: waiting calls that were sent lately, and calls with a failed attempt.
            models.Index(
                name="call_sent", fields=["created_at"], condition=Q(state__in=WAITING, created_at__isnull=False)
            ),
            models.Index(
                KT("error__occurred_at"), name="call_failed", condition=Q(error__isnull=False, finished_at__isnull=True)
            ),
        ]
        permissions: ClassVar = [
            ("cancel_callqueue", "Can cancel calls"),
            ("retry_callqueue", "Can retry ended calls"),
            ("run_callqueue", "Can move calls to the front"),
        ]

    def __str__(self) -> str:
        return f"{self.task} {self.id}"

    def save(self, **options: Any) -> None:
        """Save an existing call, or send a new one. Raises CallInvalid for a new call with a state."""
        check_is_sent(self)
        super().save(**options)

    def delete(self, using: str | None = None, keep_parents: bool = False) -> tuple[int, dict[str, int]]:  # noqa: FBT001, FBT002 -- Django's
        """Delete a call that has ended. Raises CallNotEnded if it has not."""
        using = using or router.db_for_write(type(self), instance=self)
        with transaction.atomic(using=using):
            check_has_ended(CallQueue.objects.using(using).filter(pk=self.pk))
            return super().delete(using=using, keep_parents=keep_parents)


class Slot(Record):
    """What one call in flight holds of one key; without a key, only that the call is in flight.

    It has no foreign keys in the database: one statement writes many slots, under the locks of their call and key, and
    checking both parents for every row would cost as much as the row. It has the lease.
    """

    call = models.ForeignKey(
        CallQueue, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, related_name="slots"
    )
    key = models.ForeignKey(
        RateLimitKey, null=True, on_delete=models.PROTECT, db_constraint=False, db_index=False, related_name="slots"
    )
    cost = models.IntegerField()
    started_at = DateTimeField(null=True)
    lease_until = DateTimeField()
    worker_id = models.UUIDField(null=True)
    """The worker that has reported that it holds the call's message."""
    pulled_until = DateTimeField(null=True)
    """The lease of a call fetched over HTTP: it ends then, or at the attempt's timeout."""
    is_confirmed = models.BooleanField(default=False, db_default=False)
    """The worker that fetched the call over HTTP has sent a heartbeat or progress for it."""

    class Meta:
        indexes: ClassVar = [
            models.Index(name="slot_call", fields=["call"]),
            models.Index(name="slot_key", fields=["key", "id"], condition=Q(key__isnull=False)),
            # A separate index: one on `lease_until` would be updated by every heartbeat of Celery's workers.
            models.Index(name="slot_pulled", fields=["pulled_until"], condition=Q(pulled_until__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.cost} of {self.key_id} for {self.call_id}"
