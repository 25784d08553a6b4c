"""Touch a file while this process does its work; the health checks of worker, dispenser and beat look at its age.

Unlike `celery inspect ping`, such a check opens no connection to the broker, and it works for beat, too.
"""

from pathlib import Path
from typing import Any

from celery import signals


def touch_while_working(path: Path) -> None:
    """Touch the file with every heartbeat of a worker (2 s), and with every message that beat has sent."""

    def touch(**_: Any) -> None:
        path.touch()

    def touch_with_messages(**_: Any) -> None:
        signals.after_task_publish.connect(touch, weak=False)

    signals.heartbeat_sent.connect(touch, weak=False)
    signals.beat_init.connect(touch_with_messages, weak=False)
