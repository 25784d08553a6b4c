"""The project's Celery app."""

import os
from pathlib import Path

from celery import Celery

from project import heartbeat

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")

app = Celery("project", task_cls="dispatcher.celery:DispatchedTask")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()

if path := os.environ.get("HEARTBEAT_FILE"):
    heartbeat.touch_while_working(Path(path))
