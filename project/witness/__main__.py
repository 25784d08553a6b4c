"""Run the witness: `python -m project.witness MODULE`, for the limits that a module has `published()`.

It prints where it listens, and serves until it gets a signal.
"""

import gc
import signal
import sys
from collections.abc import Mapping
from datetime import timedelta
from importlib import import_module

from django.utils.dateparse import parse_duration

from project.shop.limits import Pace, Policy
from project.witness.ledger import Limits, Window
from project.witness.server import Witness


def serve(published: Mapping[str, Policy]) -> None:
    """Serve what third parties publish until a signal says stop."""
    limits = {
        name: Limits(
            concurrency=policy.get("concurrency"),
            rate=_window(policy.get("rate")),
            throttle=_window(policy.get("throttle")),
        )
        for name, policy in published.items()
    }
    with Witness(limits) as witness:
        _keep_still()
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        print(f"listening at {witness.url}", flush=True)
        try:
            witness.serve_forever()
        except KeyboardInterrupt:
            return


def _window(pace: Pace | None) -> Window | None:
    """Return a published pace with its period in nanoseconds; independent of how the dispatcher reads it."""
    if pace is None:
        return None
    period = parse_duration(pace["period"])
    if period is None:
        message = f"{pace['period']!r} is not an ISO 8601 duration"
        raise ValueError(message)
    return Window(limit=pace["limit"], period=period // timedelta(microseconds=1) * 1000)


def _keep_still() -> None:
    """Take out what would make the witness late for one request, so that the next one seems too early.

    A collection stops all threads; the few cycles of a run may stay. And a thread that waits for the
    interpreter asks for it every half millisecond, not every five.
    """
    gc.freeze()
    gc.disable()
    sys.setswitchinterval(0.0005)


serve(import_module(sys.argv[1]).published())
