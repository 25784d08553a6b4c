"""Reports: how each key stands, which calls hold it or wait for it, why a call waits. They change nothing."""

from dispatcher.reports.explain import KeyCall, Wait, calls_in_flight, costs, waiting_calls, why_waiting
from dispatcher.reports.health import old_transactions, unserved_queues, unstarted_tasks
from dispatcher.reports.status import KeyState, KeyStatus, rate_limit_status

__all__ = [
    "KeyCall",
    "KeyState",
    "KeyStatus",
    "Wait",
    "calls_in_flight",
    "costs",
    "old_transactions",
    "rate_limit_status",
    "unserved_queues",
    "unstarted_tasks",
    "waiting_calls",
    "why_waiting",
]
