"""Flows: calls from end to end in real workers. A package, so that its fixtures end with its last test."""
