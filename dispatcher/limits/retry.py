"""When a failed call may try again. Pure."""

import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Final, Self

from dispatcher import validate
from dispatcher.errors import PolicyInvalid
from dispatcher.limits.durations import format_duration, parse_duration
from dispatcher.limits.policy import LARGEST, LONGEST_PERIOD

_STEEPEST: Final = 100

BACKOFF: Final[Mapping[str, Callable[[int, float], float]]] = {
    "exponential": lambda attempt, coefficient: coefficient ** (attempt - 1),
    "linear": lambda attempt, _: attempt,
    "polynomial": lambda attempt, coefficient: attempt**coefficient,
    "constant": lambda _attempt, _coefficient: 1,
    "none": lambda _attempt, _coefficient: 1,
}
"""How many initial intervals to wait after so many failed attempts (Open Job Spec, ojs-retry, section 7)."""
EXHAUSTION: Final = ("discard", "dead_letter")
DECIDED_BY: Final = ("policy", "task")


@dataclass(frozen=True, kw_only=True)
class Retry:
    """When a failed call may try again: exponential back-off with jitter (Open Job Spec, ojs-retry)."""

    max_attempts: int = 3
    initial_interval: timedelta = timedelta(seconds=1)
    backoff_coefficient: float = 2.0
    max_interval: timedelta = timedelta(minutes=5)
    jitter: bool = True
    non_retryable_errors: tuple[str, ...] = ()
    backoff_strategy: str = "exponential"
    """How the interval grows: see BACKOFF."""
    on_exhaustion: str = "discard"
    """`dead_letter` lists it among the dead letters when no attempt is left; `discard` does not."""
    decided_by: str = "policy"
    """`task`: it is tried again only if the task asks for it (`self.retry`, `autoretry_for`), as in Celery.

    The policy then counts the attempts whose process was lost.
    """

    @classmethod
    def parse(cls, value: Mapping[str, Any], field: str = "retry") -> Self:
        """Read a retry policy, durations as ISO 8601. Raises PolicyInvalid naming the field."""
        known = [f.name for f in fields(cls)]
        if not isinstance(value, Mapping):
            raise PolicyInvalid(field, f'{value!r} is not a retry policy; give {{"max_attempts": 5}}, say.')
        if unknown := sorted(set(value) - set(known)):
            raise PolicyInvalid(f"{field}.{unknown[0]}", f"unknown; a retry policy has {', '.join(known)}.")
        given = dict(value)
        for name in ("initial_interval", "max_interval"):
            if name in given:
                given[name] = parse_duration(given[name], f"{field}.{name}")
                if not timedelta(0) <= given[name] <= LONGEST_PERIOD:
                    raise PolicyInvalid(f"{field}.{name}", "must be from 0 to 366 days.")
        attempts = given.get("max_attempts", 1)
        validate.whole(f"{field}.max_attempts", attempts, 1, LARGEST, error=PolicyInvalid)
        coefficient = given.get("backoff_coefficient", 1)
        if (
            isinstance(coefficient, bool)
            or not isinstance(coefficient, int | float)
            or not 1 <= coefficient <= _STEEPEST
        ):
            raise PolicyInvalid(f"{field}.backoff_coefficient", f"{coefficient!r} must be a number from 1 to 100.")
        if not isinstance(given.get("jitter", True), bool):
            raise PolicyInvalid(f"{field}.jitter", "must be true or false.")
        names = given.get("non_retryable_errors", ())
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
            raise PolicyInvalid(
                f"{field}.non_retryable_errors", 'must be a list of class names, such as ["ValueError"].'
            )
        given["non_retryable_errors"] = tuple(names)
        _check_word(given, field, "backoff_strategy", tuple(BACKOFF))
        _check_word(given, field, "on_exhaustion", EXHAUSTION)
        _check_word(given, field, "decided_by", DECIDED_BY)
        return cls(**given)

    def as_json(self) -> dict[str, Any]:
        """Write it with ISO 8601 durations, as it is stored."""
        return {
            "max_attempts": self.max_attempts,
            "initial_interval": format_duration(self.initial_interval),
            "backoff_coefficient": self.backoff_coefficient,
            "max_interval": format_duration(self.max_interval),
            "jitter": self.jitter,
            "non_retryable_errors": list(self.non_retryable_errors),
            **{
                name: value
                for name in ("backoff_strategy", "on_exhaustion", "decided_by")
                if (value := getattr(self, name)) != getattr(Retry, name)
            },
        }

    def is_final(self, name: str) -> bool:
        """Whether an error of this class is not tried again: named itself, or by a prefix such as `auth.*`."""
        return any(
            name == final or (final.endswith(".*") and name.startswith(final[:-1]))
            for final in self.non_retryable_errors
        )

    def delay(self, attempt: int, rng: random.Random | None = None) -> timedelta:
        """Return the wait after failed attempt number `attempt` (from 1); jitter takes 50 to 100 % of it."""
        try:
            growth = BACKOFF[self.backoff_strategy](attempt, float(self.backoff_coefficient))
        except OverflowError:
            growth = sys.float_info.max
        seconds = min(self.initial_interval.total_seconds() * growth, self.max_interval.total_seconds())
        if self.jitter and rng is not None:
            seconds *= rng.uniform(0.5, 1.0)
        return timedelta(seconds=seconds)


def _check_word(given: Mapping[str, Any], field: str, name: str, known: Sequence[str]) -> None:
    if given.get(name, known[0]) not in known:
        raise PolicyInvalid(f"{field}.{name}", f"{given[name]!r} is unknown; give one of {', '.join(known)}.")
