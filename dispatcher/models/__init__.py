"""The tables."""

from dispatcher.models.calls import CallQueue, NextPosition, Slot
from dispatcher.models.changes import KeyChange
from dispatcher.models.keys import RateLimitKey, Window
from dispatcher.models.lanes import Lane
from dispatcher.models.queues import Queue
from dispatcher.models.workers import Feed, LeaseCheck, PeriodicRun, ResultCursor, Worker

__all__ = [
    "CallQueue",
    "Feed",
    "KeyChange",
    "Lane",
    "LeaseCheck",
    "NextPosition",
    "PeriodicRun",
    "Queue",
    "RateLimitKey",
    "ResultCursor",
    "Slot",
    "Window",
    "Worker",
]
