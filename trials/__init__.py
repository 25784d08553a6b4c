"""Trials by the hour: what tests are too short for."""
