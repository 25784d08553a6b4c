"""The process that sends: `python -m trials.soak.churn RATE NOTES`; a worker runs the calls, ticks and cleans up.

Once a second it notes how long the sends took.
"""

import sys
from pathlib import Path
from time import monotonic, sleep

import django

from trials import notes

BURST = 10
"""Calls per second that are sent at once to a key with room for two."""
SLOW = 5
"""Calls per second that are sent at once to a key with a throttle of twice as many."""
LATE_S = 1.0
"""By how much a send that is late is made up for; what a longer halt cost is not: no bursts."""


def main() -> None:
    """Send so many calls per second: one by one, of which those that find room start at once; and some that wait."""
    django.setup()
    from dispatcher import api  # noqa: PLC0415 - Django first
    from trials.soak import fixtures  # noqa: PLC0415

    rate, path = float(sys.argv[1]) - BURST - SLOW, Path(sys.argv[2])
    send_ms: list[float] = []
    turn, due = 0, monotonic()
    burst_at = due
    while True:
        sleep(max(due - monotonic(), 0))
        began = monotonic()
        api.send_many([fixtures.call("api", f"tenant:{turn % fixtures.TENANTS}")])
        send_ms.append((monotonic() - began) * 1_000)
        if began > burst_at:
            # These are let in one by one: by an end, and by time.
            api.send_many([fixtures.call("api", "narrow")] * BURST + [fixtures.call("slow")] * SLOW)
            notes.write(path, "sends", send_ms=send_ms)
            send_ms, burst_at = [], max(burst_at + 1, began)
        turn, due = turn + 1, max(due + 1 / rate, monotonic() - LATE_S)


if __name__ == "__main__":
    main()
