"""The Django admin: monitor and control calls, keys, queues and workers."""

from dispatcher.admin.calls import CallAdmin
from dispatcher.admin.event_log import EventLogEntryAdmin
from dispatcher.admin.http import ApiTokenAdmin, PullWorkerAdmin, QueueAdmin
from dispatcher.admin.keys import KeyAdmin
from dispatcher.admin.workers import WorkerAdmin

__all__ = [
    "ApiTokenAdmin",
    "CallAdmin",
    "EventLogEntryAdmin",
    "KeyAdmin",
    "PullWorkerAdmin",
    "QueueAdmin",
    "WorkerAdmin",
]
