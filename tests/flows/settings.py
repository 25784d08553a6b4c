"""The settings of the workers in the flows: the project's, with a queue of this run alone and short leases."""

import json
import os
from dataclasses import replace
from datetime import timedelta
from typing import Any

from dispatcher import conf
from project.settings import *  # noqa: F403 -- all of them, but for what follows

QUEUE = os.environ.setdefault("FLOWS_QUEUE", f"flows-{os.getpid()}")
"""The Celery queue of this run: other workers may be at the same broker."""
DISPENSER_QUEUE = f"{QUEUE}-dispenser"
ELSEWHERE = f"{QUEUE}-elsewhere"
"""A queue that no worker serves."""

CELERY_TASK_DEFAULT_QUEUE = QUEUE
# Broadcasts and events go through exchanges: those of this run reach no worker of another run at the same broker.
CELERY_CONTROL_EXCHANGE = QUEUE
CELERY_EVENT_EXCHANGE = f"{QUEUE}-events"
CELERY_WORKER_SEND_TASK_EVENTS = CELERY_TASK_SEND_SENT_EVENT = "FLOWS_EVENTS" in os.environ
if "FLOWS_BEAT_SCHEDULE" in os.environ:
    # Beat as Celery has it, without django-celery-beat.
    CELERY_BEAT_SCHEDULER = "celery.beat:PersistentScheduler"
    CELERY_BEAT_SCHEDULE = json.loads(os.environ["FLOWS_BEAT_SCHEDULE"])
CELERY_TASK_TRACK_STARTED = "FLOWS_TRACKED" in os.environ
# How long Celery waits for a word of a process that is gone; its own 10 s are patient.
CELERY_WORKER_LOST_WAIT = 0.2
CELERY_WORKER_SOFT_SHUTDOWN_TIMEOUT = float(os.environ.get("FLOWS_SOFT_SHUTDOWN", "0"))
HEARTBEAT = timedelta(seconds=float(os.environ.get("FLOWS_HEARTBEAT", "0.3")))
CONSTANTS: dict[str, Any] = {"publish_pause": timedelta(seconds=0.3)}
if os.environ.get("DJANGO_SETTINGS_MODULE") == __name__:
    conf.TUNING = replace(conf.TUNING, **CONSTANTS)
DISPATCHER: dict[str, Any] = {
    "dispenser_queue": DISPENSER_QUEUE,
    "delivery": {"*": "broker"},
    "run_lease": 5 * HEARTBEAT,
    # A broker may hand a message to a worker that is frozen.
    "dispatch_lease": timedelta(seconds=4),
    "heartbeat": HEARTBEAT,
    "publish_after": timedelta(seconds=0.3),
    "retry": {"initial_interval": 0.05},
    "retention": {"completed": timedelta(hours=1)},
    # The flows tick by themselves, but for those of workers that do.
    # The providers of the tests are on this machine.
    "http_allowed_hosts": ["127.0.0.1"],
    "fallback_schedule": "FLOWS_FALLBACK" in os.environ,
    "queue_order": os.environ.get("FLOWS_QUEUE_ORDER", "weights"),
}
if "FLOWS_FALLBACK" in os.environ:
    DISPATCHER["recover_every"] = timedelta(seconds=1)
