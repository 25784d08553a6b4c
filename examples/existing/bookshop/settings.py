"""The settings: the addresses of the servers come from the environment."""

import os

import dj_database_url

SECRET_KEY = "an example"  # noqa: S105 -- it protects nothing
USE_TZ = True
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django.contrib.postgres",
    "orders",
]
DATABASES = {"default": dj_database_url.parse(os.environ["DATABASE_URL"], conn_max_age=600)}

CELERY_BROKER_URL = os.environ["CELERY_BROKER_URL"]
CELERY_RESULT_BACKEND = os.environ["CELERY_RESULT_BACKEND"]
CELERY_TASK_DEFAULT_QUEUE = os.environ.get("QUEUE", "celery")
CELERY_BEAT_SCHEDULE = {"remind": {"task": "orders.tasks.remind", "schedule": 1.0}}
