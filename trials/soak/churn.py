"""The process that churns: `python -m trials.soak.churn RATE NOTES`; SIGTERM ends it."""

import signal
import sys
from pathlib import Path
from threading import Event

import django


def main() -> None:
    """Set Django up, and churn until the signal comes."""
    django.setup()
    from trials.soak import traffic  # noqa: PLC0415 - Django first

    stopping = Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    rate, notes = sys.argv[1:]
    traffic.churn(float(rate), Path(notes), stopping)


if __name__ == "__main__":
    main()
