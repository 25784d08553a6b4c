"""The project's settings, with the calls in a database of their own; ROUTERS=none leaves the routers out."""

import os
from typing import Any

import dj_database_url

from project.settings import *  # noqa: F403 -- all of them, but for what follows

DATABASES = {
    "default": dj_database_url.parse(os.environ["DATABASE_URL"]),
    "calls": dj_database_url.parse(os.environ["CALLS_DATABASE_URL"], conn_max_age=600)
    | {"OPTIONS": DATABASES["default"]["OPTIONS"]},  # noqa: F405 -- the project's
}
DATABASE_ROUTERS = [] if os.environ.get("ROUTERS") == "none" else ["dispatcher.routers.DispatcherRouter"]
DISPATCHER: dict[str, Any] = {
    "database": "calls",
    "queue_grace": None,
    "delivery": {"*": "broker"},
    "keys": {"api": {"concurrency": 1}, "tenant:*": {}},
}
ALLOWED_HOSTS = ["testserver"]
# No process takes what is published here.
SILENCED_SYSTEM_CHECKS = ["dispatcher.W016"]
