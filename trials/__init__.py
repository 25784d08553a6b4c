"""Trials by the hour: what tests are too short for."""

import argparse


def add_delivery(parser: argparse.ArgumentParser) -> None:
    """Add the option that says how calls reach workers."""
    help_text = "how calls reach workers (default %(default)s)"
    parser.add_argument("--delivery", choices=("direct", "broker"), default="direct", help=help_text)
