#!/usr/bin/env python
"""Django's command line for the project."""

import os
import sys

from django.core.management import execute_from_command_line
from django.db import OperationalError

HINT = """
DATABASE_URL is not set and no embedded server is up.
Start one with `make run` in another terminal, or set DATABASE_URL=postgresql://user:password@host:5432/name.
"""


def main() -> None:
    """Run a management command; say what to do when there is no database to connect to."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    try:
        execute_from_command_line(sys.argv)
    except OperationalError as error:
        if "database-url-is-not-set" not in str(error):
            raise
        sys.exit(HINT)


if __name__ == "__main__":
    main()
