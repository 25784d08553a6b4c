"""The arithmetic of limits against plain models that look at every instant."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.errors import PolicyInvalid
from dispatcher.limits.durations import format_duration, parse_duration
from dispatcher.limits.policy import (
    BUCKETS,
    UNLIMITED,
    AdmissionTuning,
    Policy,
    Rate,
    Use,
    next_opening,
    room,
    throttle_room,
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)
TICK = timedelta(microseconds=1)
WITHOUT_MARGIN = AdmissionTuning(horizon=timedelta(0), margin=timedelta(0))
durations = st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=366))
periods = st.timedeltas(min_value=timedelta(milliseconds=1), max_value=timedelta(days=366))
rates = st.builds(Rate, limit=st.integers(1, 2**31 - 1), period=periods)
policies = st.builds(
    Policy, concurrency=st.none() | st.integers(0, 2**31 - 1), rate=st.none() | rates, throttle=st.none() | rates
)
# Small numbers, so that starts meet at the edges of their windows.
short = st.integers(0, 400).map(lambda ms: timedelta(milliseconds=ms))
small_rates = st.builds(
    Rate, limit=st.integers(1, 6), period=st.sampled_from([timedelta(milliseconds=100), timedelta(seconds=1)])
)
paces = st.builds(AdmissionTuning, horizon=short, margin=st.sampled_from([timedelta(0), timedelta(milliseconds=7)]))
starts = st.lists(st.tuples(short.map(lambda ago: NOW - ago), st.integers(1, 3)), max_size=8).map(
    lambda spent: tuple(sorted(spent))
)
uses = st.builds(
    Use,
    held=st.integers(0, 5),
    unstarted=st.integers(0, 4),
    starts=starts,
    next_start_at=st.none() | short.map(lambda ahead: NOW + ahead - timedelta(milliseconds=200)),
)
small_policies = st.builds(
    Policy, concurrency=st.none() | st.integers(0, 6), rate=st.none() | small_rates, throttle=st.none() | small_rates
)


# Durations


@given(durations)
def test_a_duration_survives_being_written_and_read(value: timedelta) -> None:
    assert parse_duration(format_duration(value)) == value


READ: dict[object, float] = {
    **dict.fromkeys(["PT1M", "minute"], 60),
    **dict.fromkeys(["PT1H30M", "PT90M"], 5400),
    **dict.fromkeys(["P1D", "day"], 86_400),
    "PT0.5S": 0.5,
    "P1DT1S": 86_401,
    "P2W": 1_209_600,
    "second": 1,
    "hour": 3600,
    10: 10,
    0.25: 0.25,
    timedelta(seconds=3): 3,
}


@pytest.mark.parametrize("text", READ)
def test_every_way_of_writing_a_duration_is_read(text: object) -> None:
    assert parse_duration(text) == timedelta(seconds=READ[text])


@pytest.mark.parametrize(
    ("seconds", "text"), [(90, "PT1M30S"), (0, "PT0S"), (172_800, "P2D"), (90_000, "P1DT1H"), (0.05, "PT0.05S")]
)
def test_a_duration_is_written_in_the_largest_whole_units(seconds: float, text: str) -> None:
    assert format_duration(timedelta(seconds=seconds)) == text


@pytest.mark.parametrize(
    "value",
    [
        "P1M", "P1Y", "PT", "P", "", "1M", "pt1m", "PT1M ", "-PT1M", "PT-1M", "PT1.5M", "PT0.1234567S",
        "weekly", True, None, [], float("inf"), float("nan"), 1e300, "P999999999999W", b"PT1M",
    ],
)  # fmt: skip
def test_what_is_no_duration_is_refused_by_its_field(value: object) -> None:
    with pytest.raises(PolicyInvalid, match=r"^rate\.period: .*ISO 8601") as caught:
        parse_duration(value, "rate.period")
    assert caught.value.field == "rate.period"


# Policies


@given(policies)
def test_a_policy_survives_being_written_and_read(policy: Policy) -> None:
    assert Policy.parse(policy.as_json()) == policy


@given(rates)
def test_a_rate_is_read_from_a_pair_a_mapping_and_itself(rate: Rate) -> None:
    for form in (rate, (rate.limit, rate.period), [rate.limit, format_duration(rate.period)], rate.as_json()):
        assert Rate.parse(form, "rate") == rate


@given(rates)
def test_spacing_is_never_shorter_than_the_throttle_says(rate: Rate) -> None:
    exact = Fraction(rate.period // TICK, rate.limit)
    assert exact <= rate.spacing // TICK < exact + 1


WRONG: dict[str, list[Any]] = {
    "policy.concurrency": [{"concurrency": value} for value in (-1, 1.0, True, "4", 2**31)],
    "policy.concurency": [{"concurency": 1}],
    "policy.rate": [{"rate": value} for value in (10, {"limit": 10}, {"limit": 10, "period": 1, "burst": 2})],
    "policy.rate.limit": [{"rate": {"limit": value, "period": 1}} for value in (0, 2**31, True)],
    "policy.rate.period": [
        {"rate": (1, period)} for period in ("P1M", 0, timedelta(microseconds=999), timedelta(days=367))
    ],
    "policy.throttle.limit": [{"throttle": {"limit": 0.5, "period": 1}}],
    "policy.throttle.period": [{"throttle": (1, -1)}],
    "policy": ["concurrency", None, 5, [("concurrency", 5)]],
}


@pytest.mark.parametrize(
    ("given_policy", "field"), [(each, field) for field in WRONG for each in WRONG[field]], ids=str
)
def test_a_policy_that_is_wrong_is_refused_by_its_field(given_policy: Any, field: str) -> None:
    with pytest.raises(PolicyInvalid) as caught:
        Policy.parse(given_policy)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")


def test_a_policy_without_limits_limits_nothing() -> None:
    policy = Policy.parse({})
    assert policy.is_unlimited
    assert room(policy, Use(held=10**6), NOW, WITHOUT_MARGIN) == UNLIMITED
    assert throttle_room(policy, Use(unstarted=10**6), NOW, WITHOUT_MARGIN) == UNLIMITED
    assert next_opening(policy, Use(held=10**6), 10**6, NOW, WITHOUT_MARGIN) is None


@given(small_policies.filter(lambda policy: policy.concurrency != 0), st.integers(1, 10))
def test_a_cost_fits_if_an_idle_key_would_let_it_in(policy: Policy, cost: int) -> None:
    assert policy.fits(cost) == (room(policy, Use(), NOW, WITHOUT_MARGIN) >= cost)


# Windows


@dataclass
class Claims:
    """The starts of one key, kept twice: as the claim counts them, in parts of the period, and exactly."""

    period: timedelta
    exact: list[tuple[datetime, int]] = field(default_factory=list)
    parts: dict[int, tuple[datetime, int]] = field(default_factory=dict)

    def start(self, at: datetime, cost: int) -> None:
        part = (at - datetime(1970, 1, 1, tzinfo=UTC)) // (self.period / BUCKETS)
        last, spent = self.parts.get(part, (at, 0))
        self.parts[part] = max(last, at), spent + cost
        self.exact.append((at, cost))

    def use(self, unstarted: int) -> Use:
        return Use(held=unstarted, unstarted=unstarted, starts=tuple(self.parts[part] for part in sorted(self.parts)))

    def most_in_a_window(self, length: timedelta) -> int:
        return max(
            (sum(cost for at, cost in self.exact if begin <= at < begin + length) for begin, _ in self.exact), default=0
        )


margins = st.sampled_from([timedelta(0), timedelta(milliseconds=7)])
tight_rates = st.builds(Rate, limit=st.integers(1, 3), period=st.just(timedelta(milliseconds=100)))
# Time passes by so many thousandths of the period; then all room is taken, or a part of it, or so many start.
histories = st.lists(
    st.tuples(
        st.sampled_from([0, 4, 30, 500, 965, 985, 1000, 1015]),
        st.sampled_from(["fill", "admit", "start", "start"]),
        st.integers(1, 3),
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=400)
@given(tight_rates, margins, histories)
def test_no_window_ever_holds_more_than_the_limit_however_late_the_starts_arrive(
    rate: Rate, margin: timedelta, history: Sequence[tuple[int, str, int]]
) -> None:
    policy, tuning, now = Policy(rate=rate), AdmissionTuning(horizon=timedelta(0), margin=margin), NOW
    claims, waiting = Claims(rate.period), list[int]()
    for passed, event, amount in history:
        now += passed * rate.period / 1000
        free = room(policy, claims.use(sum(waiting)), now, tuning)
        if event == "fill":
            waiting += [1] * free
        elif event == "admit":
            waiting += [amount] if amount <= free else []
        else:
            for cost in waiting[:amount]:
                claims.start(now, cost)
            del waiting[:amount]
    # Admitted calls may start all at once, at the worst moment.
    for cost in waiting:
        claims.start(now, cost)
    # A start may be under way for as long as the margin, and a later one arrive at once.
    assert claims.most_in_a_window(rate.period + margin) <= rate.limit


@given(small_policies, uses, paces)
def test_room_is_what_the_concurrency_and_the_window_both_leave(
    policy: Policy, use: Use, tuning: AdmissionTuning
) -> None:
    left = room(policy, use, NOW, tuning)
    assert left >= 0
    if policy.concurrency is not None:
        assert left <= max(0, policy.concurrency - use.held)
    assert left == min(
        room(Policy(concurrency=policy.concurrency), use, NOW, tuning), room(Policy(rate=policy.rate), use, NOW, tuning)
    )


@given(small_policies, uses, paces, st.integers(1, 3))
def test_a_reservation_takes_its_cost_from_the_room(
    policy: Policy, use: Use, tuning: AdmissionTuning, cost: int
) -> None:
    before, after = room(policy, use, NOW, tuning), room(policy, use.reserve(cost), NOW, tuning)
    assert after == (UNLIMITED if before == UNLIMITED else max(0, before - cost))


# Throttles


@given(small_rates, uses, paces)
def test_a_throttle_admits_what_starts_before_the_horizon_and_no_more(
    rate: Rate, use: Use, tuning: AdmissionTuning
) -> None:
    left = throttle_room(Policy(throttle=rate), use, NOW, tuning)
    first = max(NOW, use.next_start_at or NOW)
    ahead = [first + number * rate.spacing for number in range(use.unstarted + left + 1)]
    assert all(at <= NOW + tuning.horizon for at in ahead[use.unstarted : -1])
    assert ahead[-1] > NOW + tuning.horizon or left == UNLIMITED


# Openings


@given(small_policies, uses, st.integers(1, 6), paces)
def test_a_key_opens_at_once_exactly_if_it_has_room(
    policy: Policy, use: Use, cost: int, tuning: AdmissionTuning
) -> None:
    assert (next_opening(policy, use, cost, NOW, tuning) is None) == _lets_in(policy, use, cost, NOW, tuning)


@given(small_policies, uses, st.integers(1, 6), paces)
def test_nothing_fits_before_the_opening(policy: Policy, use: Use, cost: int, tuning: AdmissionTuning) -> None:
    at = next_opening(policy, use, cost, NOW, tuning)
    assert at is None or (at > NOW and not _lets_in(policy, use, cost, at - TICK, tuning))


@given(small_policies, uses, st.integers(1, 6), paces)
def test_what_waits_fits_at_the_opening(policy: Policy, use: Use, cost: int, tuning: AdmissionTuning) -> None:
    """What is admitted and has not started has no time of its own: with it, the opening is an estimate."""
    use = replace(use, unstarted=0)
    cost = min(cost, policy.rate.limit) if policy.rate else cost
    assert _lets_in(policy, use, cost, next_opening(policy, use, cost, NOW, tuning) or NOW, tuning)


@given(small_rates, uses, st.integers(1, 6), paces)
def test_what_waits_behind_reservations_fits_when_enough_starts_have_left(
    rate: Rate, use: Use, cost: int, tuning: AdmissionTuning
) -> None:
    policy, cost = Policy(rate=rate), min(cost, rate.limit)
    use = replace(use, unstarted=min(use.unstarted, rate.limit - cost))
    assert _lets_in(policy, use, cost, next_opening(policy, use, cost, NOW, tuning) or NOW, tuning)


def test_an_opening_is_a_century_away_at_the_most_however_far_a_limit_was_lowered_below_a_cost() -> None:
    rate = Rate(limit=1, period=timedelta(days=366))
    century = NOW + timedelta(days=36_525)
    assert NOW < (next_opening(Policy(rate=rate), Use(), 2**31, NOW, WITHOUT_MARGIN) or NOW) <= century
    assert NOW < (next_opening(Policy(throttle=rate), Use(unstarted=2**31), 1, NOW, WITHOUT_MARGIN) or NOW) <= century


def _lets_in(policy: Policy, use: Use, cost: int, at: datetime, tuning: AdmissionTuning) -> bool:
    """Whether the window and the throttle let this cost in, whatever runs."""
    timed = Policy(rate=policy.rate, throttle=policy.throttle)
    return room(timed, use, at, tuning) >= cost and throttle_room(timed, use, at, tuning) >= 1
