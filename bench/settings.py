"""The project's settings for the benchmarks: calls go through the broker, unless a queue says otherwise."""

import os

from project.settings import *  # noqa: F403 - all of them, but for what follows
from project.settings import DATABASES, INSTALLED_APPS

# No statement outlives its figure.
for database in DATABASES.values():
    timeout = f"-c statement_timeout={int(float(os.environ.get('BENCH_LIMIT', '0')) * 1_000)}"
    database["OPTIONS"] = {**database.get("OPTIONS", {}), "options": timeout}
INSTALLED_APPS = [*INSTALLED_APPS, "bench"]
CELERY_TASK_ROUTES = {"bench.*": {"queue": "bench"}}
# Most of what is measured needs no worker.
DISPATCHER = {
    "queue_grace": None,
    "delivery": {"*": "broker"},
    "event_retention": int(os.environ.get("BENCH_EVENTS", "0")) or None,
}
