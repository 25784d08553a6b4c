"""Limits: the arithmetic of policies, shares of a pass, and retries. It runs no queries."""
