"""System checks: one id per fault, each with its remedy."""

from dispatcher.checks import installed, network, server, settings, tasks

__all__ = ["installed", "network", "server", "settings", "tasks"]
