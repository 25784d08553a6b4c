"""The Django admin: monitor and control calls, keys, queues and workers."""

from dispatcher.admin.calls import CallAdmin
from dispatcher.admin.http import ApiTokenAdmin, PullWorkerAdmin, QueueAdmin
from dispatcher.admin.journal import JournalEntryAdmin
from dispatcher.admin.keys import KeyAdmin
from dispatcher.admin.workers import WorkerAdmin

__all__ = [
    "ApiTokenAdmin",
    "CallAdmin",
    "JournalEntryAdmin",
    "KeyAdmin",
    "PullWorkerAdmin",
    "QueueAdmin",
    "WorkerAdmin",
]
