"""Reports: how each key stands, which calls hold it or wait for it, why a call waits. They change nothing."""

from dispatcher.reports.declared import Declared, Difference, declared_keys
from dispatcher.reports.explain import KeyCall, calls_in_flight, costs, waiting_calls
from dispatcher.reports.health import Runnable, old_transactions, runnable_calls, unserved_queues, unstarted_tasks
from dispatcher.reports.status import KeyState, KeyStatus, Observed, rate_limit_status
from dispatcher.reports.waiting import Wait, why_in_words, why_waiting

__all__ = [
    "Declared",
    "Difference",
    "KeyCall",
    "KeyState",
    "KeyStatus",
    "Observed",
    "Runnable",
    "Wait",
    "calls_in_flight",
    "costs",
    "declared_keys",
    "old_transactions",
    "rate_limit_status",
    "runnable_calls",
    "unserved_queues",
    "unstarted_tasks",
    "waiting_calls",
    "why_in_words",
    "why_waiting",
]
