"""The Django admin: monitor and control calls, keys, queues and workers."""

from dispatcher.admin import calls, keys, queues, workers

__all__ = ["calls", "keys", "queues", "workers"]
