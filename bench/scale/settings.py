"""The project's settings for two systems: two databases, of which the dispatcher uses one at a time."""

import os
from datetime import timedelta

import dj_database_url

from project.settings import *  # noqa: F403 - all of them, but for what follows
from project.settings import DATABASES, INSTALLED_APPS

LIMIT_MS = int(float(os.environ["SCALE_LIMIT"]) * 1_000)
DATABASES["large"] = {**DATABASES["default"], **dj_database_url.parse(os.environ["SCALE_LARGE_URL"], conn_max_age=600)}
for database in DATABASES.values():
    database["OPTIONS"] = {**database["OPTIONS"], "options": f"-c statement_timeout={LIMIT_MS}"}
DATABASE_ROUTERS = ["dispatcher.routers.DispatcherRouter"]
INSTALLED_APPS = [*INSTALLED_APPS, "bench.scale"]
ALLOWED_HOSTS = ["*"]
# People log in without a row that a page would have to look up.
SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"
# What is published goes to this process's memory: the broker's time is not what grows.
CELERY_BROKER_URL = "memory://"
CELERY_BROKER_TRANSPORT_OPTIONS = {}
# Nothing claims what is dispatched, and no request needs a token.
DISPATCHER = {
    "queue_grace": None,
    "dispatch_ahead": 1_000_000,
    "event_retention": timedelta(days=7),
    "http_anonymous": ("send", "fetch", "read", "admin"),
}
# What a figure brings about on purpose, calls that are put back say, need not be read.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "loggers": {"dispatcher": {"level": "CRITICAL"}, "django.request": {"level": "CRITICAL"}},
}
