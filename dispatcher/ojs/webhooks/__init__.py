"""Webhooks: events posted to subscribers (ojs-webhooks)."""
