"""How large the systems are."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Size:
    """What there is in a system, and how much the variants add to it."""

    tenants: int
    """Keys, each with a lane."""
    waiting: int
    ended: int
    lanes: int = 0
    """Further lanes, in one queue."""
    due: int = 0
    """Calls whose time comes, or is over, at one instant."""
    parked: int = 0
    """Lanes that are parked on one key."""
    more_ended: int = 0
    """Calls that have ended, in addition to the others."""

    def tenth(self) -> "Size":
        """Return a system a tenth of the size."""
        return replace(self, **{name: number // 10 for name, number in vars(self).items()})

    def fill(self, text: str) -> str:
        """Put the numbers in place of their names, such as `:tenants`, in a statement."""
        for name, number in vars(self).items():
            text = text.replace(f":{name}", str(number))
        return text


YARDSTICK = Size(
    tenants=10_000,
    waiting=1_000_000,
    ended=1_000_000,
    lanes=100_000,
    due=400_000,
    parked=10_000,
    more_ended=4_000_000,
)
SMALL = Size(tenants=100, waiting=1_000, ended=10_000, lanes=100, due=5_000, parked=10, more_ended=1)
"""A new user's: just large enough that pages are full, and batches whole."""
