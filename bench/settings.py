"""The project's settings for the benchmarks: a second database for what is compared state by state."""

import os

import dj_database_url

from project.settings import *  # noqa: F403 - all of them, but for what follows
from project.settings import DATABASES, INSTALLED_APPS

# The reference of a comparison between two states of one table lies here: both must exist at the same time.
DATABASES["beside"] = dj_database_url.parse(os.environ["BENCH_BESIDE_URL"], conn_max_age=600)
# No statement outlives its figure.
for database in DATABASES.values():
    timeout = f"-c statement_timeout={int(float(os.environ.get('BENCH_LIMIT', '0')) * 1_000)}"
    database["OPTIONS"] = {**database.get("OPTIONS", {}), "options": timeout}
INSTALLED_APPS = [*INSTALLED_APPS, "bench"]
CELERY_TASK_ROUTES = {"bench.*": {"queue": "bench"}}
# Most of what is measured needs no worker.
DISPATCHER = {"queue_grace": None, "delivery": {"*": "broker"}}
