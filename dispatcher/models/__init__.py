"""The tables."""

from dispatcher.models.calls import CallQueue, NextPosition, Slot
from dispatcher.models.changes import KeyChange
from dispatcher.models.events import EventLogEntry
from dispatcher.models.keys import RateLimitKey, Share, Start
from dispatcher.models.lanes import Lane, LaneSite, Note
from dispatcher.models.queues import Queue
from dispatcher.models.workers import Feed, LeaseCheck, PeriodicRun, ResultCursor, Worker

__all__ = [
    "CallQueue",
    "EventLogEntry",
    "Feed",
    "KeyChange",
    "Lane",
    "LaneSite",
    "LeaseCheck",
    "NextPosition",
    "Note",
    "PeriodicRun",
    "Queue",
    "RateLimitKey",
    "ResultCursor",
    "Share",
    "Slot",
    "Start",
    "Worker",
]
