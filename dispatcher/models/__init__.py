"""The tables."""

from dispatcher.models.calls import CallQueue, NextPosition, Slot
from dispatcher.models.keys import Block, KeyChange, RateLimitKey, Share, Start
from dispatcher.models.lanes import Lane, LaneSite, Note
from dispatcher.models.queues import Queue
from dispatcher.models.record import Clock
from dispatcher.models.workers import LeaseCheck, PeriodicRun, Process, ResultCursor, Worker

__all__ = [
    "Block",
    "CallQueue",
    "Clock",
    "KeyChange",
    "Lane",
    "LaneSite",
    "LeaseCheck",
    "NextPosition",
    "Note",
    "PeriodicRun",
    "Process",
    "Queue",
    "RateLimitKey",
    "ResultCursor",
    "Share",
    "Slot",
    "Start",
    "Worker",
]
