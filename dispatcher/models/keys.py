"""Models of keys: their limits and state, the starts that count against their rates, and the history of changes."""

from typing import Any, ClassVar

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from dispatcher import validate
from dispatcher.limits.policy import HEAVIEST
from dispatcher.managers import RateLimitKeyManager
from dispatcher.models.record import DateTimeField, Record
from dispatcher.validate import GROUP_PATTERN, STORED_KEY_PATTERN


def _is_whole_or_absent(rate: str) -> Q:
    """Return the condition that a rate has both a limit and a period, or neither; a lone one is not "unknown"."""
    limit, period = f"{rate}_limit", f"{rate}_period"
    absent = Q(**{f"{limit}__isnull": True, f"{period}__isnull": True})
    present = Q(**{f"{limit}__isnull": False, f"{period}__isnull": False})
    return absent | (present & Q(**{f"{limit}__gte": 1, f"{period}__gt": "0"}))


class RateLimitKey(Record):
    """A budget that calls spend: an account, a tenant, a host, a queue (`queue:<name>`)."""

    name = models.CharField(max_length=255, unique=True, help_text="Such as api.stripe.com or tenant:acme.")
    is_group = models.GeneratedField(
        expression=models.ExpressionWrapper(Q(name__endswith="*"), output_field=models.BooleanField()),
        output_field=models.BooleanField(),
        db_persist=True,
    )
    """It stands for any one of the keys whose names begin so: a call spends it and one of them."""
    concurrency = models.PositiveIntegerField(
        null=True, blank=True, help_text="Maximum cost in flight; 0 starts nothing, empty is no limit."
    )
    per_worker = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="Maximum cost in flight in one worker, whose queues are delivered directly or over HTTP.",
    )
    rate_limit = models.PositiveIntegerField(
        null=True, blank=True, help_text="Maximum cost of the starts in any window of the rate period."
    )
    rate_period = models.DurationField(null=True, blank=True)
    throttle_limit = models.PositiveIntegerField(
        null=True, blank=True, help_text="Starts per throttle period, evenly spaced."
    )
    throttle_period = models.DurationField(null=True, blank=True)

    is_paused = models.BooleanField("paused", default=False)
    """Nothing starts until it is resumed."""
    blocked_until = DateTimeField(null=True, blank=True)
    """The provider asked to stop until then."""

    override_until = DateTimeField(null=True, blank=True)
    """The override's limits are in force until then, instead of those above."""
    override_concurrency = models.PositiveIntegerField(null=True, blank=True)
    override_per_worker = models.PositiveIntegerField(null=True, blank=True)
    override_rate_limit = models.PositiveIntegerField(null=True, blank=True)
    override_rate_period = models.DurationField(null=True, blank=True)
    override_throttle_limit = models.PositiveIntegerField(null=True, blank=True)
    override_throttle_period = models.DurationField(null=True, blank=True)

    fair_by = models.CharField(  # noqa: DJ001 -- it is absent: no template is empty
        max_length=255,
        null=True,
        blank=True,
        help_text="The template of the keys that name shares, such as tenant:*:"
        " calls that wait for this key take turns by them.",
    )
    weight = models.PositiveSmallIntegerField(
        default=1,
        db_default=1,
        help_text="How many turns its calls take as a share, beside one of a share of weight 1.",
    )

    is_observed = models.BooleanField(
        "observed",
        default=False,
        db_default=False,
        help_text="Its limits stop nothing: what they would have delayed is counted.",
    )

    is_from_template = models.BooleanField(default=False, db_default=False, editable=False)
    """Created from a template of the settings and never changed by people: deleted when it is unused."""
    slots_from = models.BigIntegerField(default=0, db_default=0, editable=False)
    """It has no slots with a lower id."""
    limited_at = DateTimeField(db_default=Now(), editable=False)
    """When people last changed its limits; earlier limits are unknown."""
    created_at = DateTimeField(db_default=Now(), editable=False)

    objects: ClassVar[RateLimitKeyManager] = RateLimitKeyManager()

    class Meta:
        verbose_name = "rate limit key"
        constraints: ClassVar = [
            models.CheckConstraint(name="key_name_is_well_formed", condition=Q(name__regex=STORED_KEY_PATTERN)),
            *(
                models.CheckConstraint(
                    name=f"key_{limit}_is_positive",
                    condition=Q(**{f"{limit}__isnull": True}) | Q(**{f"{limit}__gte": 1}),
                )
                for limit in ("per_worker", "override_per_worker")
            ),
            models.CheckConstraint(name="key_weight_is_1_to_1000", condition=Q(weight__gte=1, weight__lte=HEAVIEST)),
            models.CheckConstraint(
                name="key_fair_by_is_a_template",
                condition=Q(fair_by__isnull=True) | Q(fair_by__regex=GROUP_PATTERN),
            ),
            *(
                models.CheckConstraint(name=f"key_{rate}_is_whole_or_absent", condition=_is_whole_or_absent(rate))
                for rate in ("rate", "throttle", "override_rate", "override_throttle")
            ),
        ]
        indexes: ClassVar = [
            models.Index(
                name="key_override_ends", fields=["override_until"], condition=Q(override_until__isnull=False)
            ),
            # Empty where no call names a group: to look for the groups of a key then reads nothing.
            models.Index(name="key_group", fields=["name"], condition=Q(is_group=True)),
        ]
        permissions: ClassVar = [
            ("pause_ratelimitkey", "Can pause and resume rate limit keys"),
            ("override_ratelimitkey", "Can override rate limit keys for a time"),
        ]

    def __str__(self) -> str:
        return self.name

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Write it. Raises CallInvalid for a weight out of bounds."""
        validate.whole("weight", self.weight, 1, HEAVIEST)
        super().save(*args, **kwargs)


class Block(Record):
    """A block of a key that another transaction kept locked: the next trip that locks the key writes it there."""

    key_id = models.BigIntegerField()
    until = DateTimeField()

    class Meta:
        indexes: ClassVar = [models.Index(name="block_key", fields=["key_id"])]


class Start(Record):
    """What was started of a key: one row a key and trip, with the running total of all costs so far.

    Only inserted, and deleted when no window can count it any more, except for the newest of a key. Its table has no
    unique index: the migration makes it.
    """

    key_id = models.BigIntegerField(primary_key=True)
    at = DateTimeField(help_text="The latest start time of the trip.")
    total = models.BigIntegerField(help_text="The cost of all starts of the key so far.")
    cost = models.PositiveBigIntegerField(help_text="The cost of the starts of this trip.")
    last_cost = models.PositiveIntegerField(help_text="The cost of its last start: it delays the next one.")
    delayed = models.BigIntegerField(
        null=True, help_text="Of an observed key: how many starts its limits would have delayed so far."
    )
    longest = models.DurationField(null=True, help_text="By how much rate and throttle would have at the most.")
    allowed_at = DateTimeField(null=True, help_text="When they would have let the last start of the trip go.")

    class Meta:
        managed = False
        db_table = "dispatcher_start"


class Share(Record):
    """Where the shares of a fair key are, see the function `shares`: rows only while calls wait for the key.

    The migration makes its table, without a unique index, since it changes with nearly every call of such a key.
    """

    key_id = models.BigIntegerField(primary_key=True)
    priority = models.SmallIntegerField()
    share_id = models.BigIntegerField(
        help_text="The key that names the share; 0: calls without such a key; -1: the clock of the key."
    )
    next = models.BigIntegerField(
        help_text="The turn that its next lane gets; of the clock the turn that started last."
    )

    class Meta:
        managed = False
        db_table = "dispatcher_share"


class KeyChange(Record):
    """A change of a key: only the fields that differ, before and after."""

    key = models.CharField(max_length=255)
    """The name, because the record outlives the key."""
    verb = models.CharField(max_length=16)
    """limit, override, end_override, pause, resume or block."""
    actor = models.CharField(max_length=255, blank=True)
    """A user name, or token:NAME."""
    source = models.CharField(max_length=16)
    """admin, http, python or settings."""
    reason = models.TextField(blank=True)
    before = models.JSONField()
    after = models.JSONField()
    at = DateTimeField(db_default=Now())

    class Meta:
        indexes: ClassVar = [
            models.Index(name="change_at", fields=["at"]),
            models.Index(name="change_key", fields=["key", "at"]),
        ]

    def __str__(self) -> str:
        return f"{self.verb} {self.key} {self.at}"
