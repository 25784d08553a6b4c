"""Reports in words, for the pages and terminals that people read."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import ClassVar, Final

import arrow
from arrow.locales import EnglishLocale

from dispatcher.policy import Policy, Rate, format_duration
from dispatcher.reports import KeyStatus

_EXACT: Final = 10
"""Shorter spans than so many seconds are told exactly."""


def in_words(at: datetime, now: datetime) -> str:
    """Tell when something is: "in 0.3 s", "in 5 minutes", "2 hours ago"."""
    seconds = (at - now).total_seconds()
    if abs(seconds) >= _EXACT:
        return arrow.get(at).humanize(now)
    return f"in {seconds:.2g} s" if seconds > 0 else "just now"


def brief(span: timedelta) -> str:
    """Tell how long something is in few letters: "0.3 s", "44 s", "5 min", "2 h"."""
    seconds = max(0.0, span.total_seconds())
    if seconds < _EXACT:
        return f"{seconds:.2g} s"
    epoch = arrow.get(0)
    return epoch.shift(seconds=seconds).humanize(epoch, locale=_Brief.names[0], only_distance=True)


def period(rate: Rate) -> str:
    """Write the period of a rate in few letters: 1m30s."""
    return format_duration(rate.period).removeprefix("P").replace("T", "").lower()


def limits(policy: Policy) -> str:
    """Write a policy: concurrency 4, 20 in any 1m, 10 per 1s."""
    concurrency, rate, throttle = policy.concurrency, policy.rate, policy.throttle
    named = [
        *([f"concurrency {concurrency}"] if concurrency is not None else []),
        *([f"{rate.limit} in any {period(rate)}"] if rate else []),
        *([f"{throttle.limit} per {period(throttle)}"] if throttle else []),
    ]
    return ", ".join(named) or "no limits"


def in_use(key: KeyStatus) -> str:
    """Write what is in flight of what may be: 3/4."""
    limit = key.policy.concurrency
    return str(key.in_flight) if limit is None else f"{key.in_flight}/{limit}"


def window(key: KeyStatus) -> str:
    """Write what is used of the window: 97/100 in 1m; nothing without one."""
    rate = key.policy.rate
    return f"{key.used}/{rate.limit} in {period(rate)}" if rate else ""


def throttle(key: KeyStatus) -> str:
    """Write the throttle: 10 per 1s; nothing without one."""
    rate = key.policy.throttle
    return f"{rate.limit} per {period(rate)}" if rate else ""


def frees(key: KeyStatus) -> str:
    """Write how long until the window has room for more; nothing if it is unused."""
    return brief(key.frees_at - key.at) if key.frees_at else ""


def next_start(key: KeyStatus) -> str:
    """Write how long until the next call may start as far as time says; "-" if it takes a release or a person."""
    if key.is_paused or "concurrency" in key.stopped_by:
        return "-"
    at = max(filter(None, (key.opens_at, key.next_start_at)), default=key.at)
    return brief(at - key.at) if at > key.at else "now"


def oldest(key: KeyStatus) -> str:
    """Write how long the first in line has waited; nothing if nobody waits."""
    return brief(key.at - key.waiting_since) if key.waiting_since else ""


def override(key: KeyStatus) -> str:
    """Write how long an override lasts; nothing without one."""
    return brief(key.overridden_until - key.at) if key.overridden_until else ""


def facts(key: KeyStatus) -> Iterator[tuple[str, str]]:
    """Yield all that is known of a key: (title, sentence) each."""
    policy = key.policy
    limit = "without a limit" if policy.concurrency is None else f"of {policy.concurrency}"
    whereof = f": {key.running} running, {key.admitted} on the way to a worker" if key.in_flight else ""
    yield "In flight", f"{key.in_flight} {limit}{whereof}"
    if policy.rate is not None:
        soon = f"; the first frees {in_words(key.frees_at, key.at)}" if key.frees_at else ""
        yield "Window", f"{key.used} of {policy.rate.limit} starts in any {period(policy.rate)}{soon}"
    if policy.throttle is not None and key.next_start_at is not None:
        soon = "now" if key.next_start_at <= key.at else in_words(key.next_start_at, key.at)
        yield "Throttle", f"{policy.throttle.limit} per {period(policy.throttle)}; next start {soon}"
    if key.stopped_by:
        yield "At limit", ", ".join(key.stopped_by)
    if key.opens_at is not None:
        yield "Opens", in_words(key.opens_at, key.at)
    if key.blocked_until is not None:
        yield "Blocked", f"until {key.blocked_until:%Y-%m-%d %H:%M:%S %Z}, by its provider"
    if key.overridden_until is not None:
        yield "Override", f"until {key.overridden_until:%Y-%m-%d %H:%M:%S %Z}; then {limits(key.own_policy)}"
    since = f", the first {in_words(key.waiting_since, key.at)}" if key.waiting_since else ""
    yield "Waiting", f"{key.waiting:,}{since}"


class _Brief(EnglishLocale):
    """English with the signs of the units; arrow knows it by its name."""

    names: ClassVar = ["en-brief"]
    timeframes: ClassVar = {
        "now": "0 s",
        "second": "1 s",
        "seconds": "{0} s",
        "minute": "1 min",
        "minutes": "{0} min",
        "hour": "1 h",
        "hours": "{0} h",
        "day": "1 d",
        "days": "{0} d",
        "week": "7 d",
        "weeks": "{0} wk",
        "month": "1 mo",
        "months": "{0} mo",
        "year": "1 y",
        "years": "{0} y",
    }
