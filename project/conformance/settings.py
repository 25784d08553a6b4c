"""Settings of the server that the cases run against: open to everybody, and wiped between two cases."""

from datetime import timedelta
from typing import Any

from project import environment
from project.settings import *  # noqa: F403 -- the project's own, with what the cases need in addition
from project.settings import DATABASES

ROOT_URLCONF = "project.conformance.urls"
DATABASES["default"]["CONN_MAX_AGE"] = None
# The cases show no credentials.
DISPATCHER: dict[str, Any] = {  # type: ignore[no-redef]
    "http_anonymous": ["admin"],
    "event_retention": timedelta(hours=1),
    "http_waiters": int(environment.read("HTTP_WAITERS", "6")),
}
