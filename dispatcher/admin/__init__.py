"""The Django admin: monitor and control calls, keys, queues and workers."""

from dispatcher.admin import calls, event_log, http, keys, workers

__all__ = ["calls", "event_log", "http", "keys", "workers"]
