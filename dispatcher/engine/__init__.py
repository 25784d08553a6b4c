"""The steps of `lifecycle`, composed: dispense, run an attempt, put back what a dead process left, tick."""

from dispatcher.engine.attempt import execute, is_held
from dispatcher.engine.dispenser import dispense, dispense_briefly, serve
from dispatcher.engine.ends import fail_unread
from dispatcher.engine.recovery import lose, recover
from dispatcher.engine.ticks import cleanup, place_unplaced, sweep, tick

__all__ = [
    "cleanup",
    "dispense",
    "dispense_briefly",
    "execute",
    "fail_unread",
    "is_held",
    "lose",
    "place_unplaced",
    "recover",
    "serve",
    "sweep",
    "tick",
]
