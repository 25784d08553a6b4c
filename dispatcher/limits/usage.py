"""Rows of the database that hold the limits of keys."""

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, kw_only=True)
class PolicyRow:
    """The limits that a key stores (see policy.stored)."""

    id: int
    concurrency: int | None
    per_worker: int | None
    rate_limit: int | None
    rate_period: timedelta | None
    throttle_limit: int | None
    throttle_period: timedelta | None
    fair_by: str | None
    weight: int


@dataclass(frozen=True, kw_only=True)
class OverridableRow(PolicyRow):
    """The limits that a key stores, and its override (see policy.in_force)."""

    override_until: datetime | None
    override_concurrency: int | None
    override_per_worker: int | None
    override_rate_limit: int | None
    override_rate_period: timedelta | None
    override_throttle_limit: int | None
    override_throttle_period: timedelta | None
