"""The settings of the trial's processes: the project's, with queues of this run alone and short leases."""

import os
from dataclasses import replace
from datetime import timedelta
from typing import Any

from dispatcher import conf
from project.settings import *  # noqa: F403 -- all of them, but for what follows
from project.settings import CELERY_BROKER_TRANSPORT_OPTIONS as TRANSPORT_OPTIONS
from project.settings import CELERY_BROKER_URL, DATABASES, INSTALLED_APPS
from trials.chaos.limits import KEYS, SIDE

RUN = os.environ["CHAOS_RUN"]
"""Names the queues of this run: other workers may be at the same broker."""
MAIN = f"{RUN}-main"
SIDE_QUEUE = f"{RUN}-side"
DISPENSER_QUEUE = f"{RUN}-dispenser"

INSTALLED_APPS = [*INSTALLED_APPS, "trials.chaos"]
DATABASES["default"].setdefault("OPTIONS", {})["connect_timeout"] = 3
CELERY_TASK_DEFAULT_QUEUE = MAIN
# How long Celery waits for a word of a process that is gone; its own 10 s are patient.
CELERY_WORKER_LOST_WAIT = 0.5
if CELERY_BROKER_URL.startswith("redis"):
    CELERY_BROKER_TRANSPORT_OPTIONS = {  # type: ignore[assignment]  # the project's have values of one type
        **TRANSPORT_OPTIONS,
        "global_keyprefix": f"{RUN}:",
        # Messages that a dead worker had taken come again, and so do those of a slow one.
        "visibility_timeout": 20,
    }

conf.TUNING = replace(conf.TUNING, publish_pause=timedelta(seconds=0.5))
# The project's own setting holds policies only.
_OURS: dict[str, Any] = {
    "keys": {**KEYS, f"queue:{SIDE_QUEUE}": SIDE},
    "dispenser_queue": DISPENSER_QUEUE,
    "delivery": {
        MAIN: os.environ["CHAOS_DELIVERY"],
        SIDE_QUEUE: os.environ["CHAOS_DELIVERY"],
    },
    "dispatch_lease": timedelta(seconds=15),
    "run_lease": timedelta(seconds=4),
    "heartbeat": timedelta(seconds=1),
    "publish_after": timedelta(seconds=0.5),
    "recover_every": timedelta(seconds=1),
    "queue_grace": timedelta(seconds=3),
    "retry": {"max_attempts": 30, "initial_interval": 0.1, "max_interval": 2},
}
DISPATCHER = _OURS
