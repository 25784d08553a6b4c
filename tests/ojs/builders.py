"""What a test of jobs needs before it begins."""

from datetime import timedelta

from django.db.models import F

from dispatcher.models import CallQueue
from dispatcher.ojs.models import Job


def date_back(span: timedelta) -> None:
    """Let all calls, and their jobs, have been sent so much earlier."""
    CallQueue.objects.update(created_at=F("created_at") - span)
    Job.objects.update(created_at=F("created_at") - span)
