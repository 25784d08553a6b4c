"""The project's settings for the soak: what has ended goes soon, so that as much is deleted as is sent."""

import os
from datetime import timedelta
from typing import Any

import dj_database_url

from project.settings import *  # noqa: F403 - all of them, but for what follows
from project.settings import DATABASES, INSTALLED_APPS

# The same tables without a churn: what a trip takes there is the measure of what it takes beside one.
DATABASES["idle"] = dj_database_url.parse(os.environ["SOAK_IDLE_URL"], conn_max_age=600)
_KEPT = timedelta(seconds=30)
# The project's own setting holds policies only.
_RETENTION: Any = {"completed": _KEPT, "cancelled": _KEPT, "discarded": _KEPT}
_RETRY: Any = {"max_attempts": 2, "initial_interval": "PT2S"}
_DELIVERY: Any = {"soak": os.environ.get("SOAK_DELIVERY", "direct"), "soak-probe": "direct"}
DISPATCHER = {"retention": _RETENTION, "retry": _RETRY, "delivery": _DELIVERY}
INSTALLED_APPS = [*INSTALLED_APPS, "trials.soak"]
