"""The tables."""

from dispatcher.models.calls import CallQueue, NextPosition, Slot
from dispatcher.models.changes import KeyChange
from dispatcher.models.http import ApiToken, EventLogEntry, Part, Subscription, Workflow
from dispatcher.models.keys import RateLimitKey, Window
from dispatcher.models.lanes import Lane
from dispatcher.models.queues import Pool, Queue
from dispatcher.models.workers import Feed, LeaseCheck, PeriodicRun, PullWorker, ResultCursor, Worker

__all__ = [
    "ApiToken",
    "CallQueue",
    "EventLogEntry",
    "Feed",
    "KeyChange",
    "Lane",
    "LeaseCheck",
    "NextPosition",
    "Part",
    "PeriodicRun",
    "Pool",
    "PullWorker",
    "Queue",
    "RateLimitKey",
    "ResultCursor",
    "Slot",
    "Subscription",
    "Window",
    "Worker",
    "Workflow",
]
