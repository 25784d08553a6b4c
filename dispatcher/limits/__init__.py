"""Limits: the arithmetic of policies, turns of queues, and retries. It runs no queries."""
