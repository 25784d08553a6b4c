"""Reports: how each key stands, which calls hold it or wait for it, why a call waits. They change nothing."""

from dispatcher.reports.explain import (
    MANY,
    Cost,
    KeyCall,
    Place,
    Wait,
    calls_in_flight,
    costs,
    waiting_calls,
    why_waiting,
)
from dispatcher.reports.health import (
    OLD_TRANSACTION,
    OldTransaction,
    Unserved,
    Unstarted,
    old_transactions,
    unserved_queues,
    unstarted_tasks,
)
from dispatcher.reports.status import KeyState, KeyStatus, rate_limit_status
from dispatcher.reports.words import brief, in_words

__all__ = [
    "MANY",
    "OLD_TRANSACTION",
    "Cost",
    "KeyCall",
    "KeyState",
    "KeyStatus",
    "OldTransaction",
    "Place",
    "Unserved",
    "Unstarted",
    "Wait",
    "brief",
    "calls_in_flight",
    "costs",
    "in_words",
    "old_transactions",
    "rate_limit_status",
    "unserved_queues",
    "unstarted_tasks",
    "waiting_calls",
    "why_waiting",
]
