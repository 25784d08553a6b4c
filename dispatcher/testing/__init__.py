"""For the tests of projects: run calls in the test's own process, see what was sent, set the clock of calls.

Plain context managers and functions; `dispatcher.testing.plugin` has them as fixtures of pytest. Nothing here needs a
broker, and all but `worker` also work within Django's `TestCase`.
"""

from dispatcher.testing.running import at, drain, inline, perform
from dispatcher.testing.sends import Captured, Sent, capture
from dispatcher.testing.workers import worker

__all__ = ["Captured", "Sent", "at", "capture", "drain", "inline", "perform", "worker"]
