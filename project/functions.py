"""Write the frozen copy of the functions that a migration installs (`make functions`).

A copy that was released is never changed: databases have been migrated with it. REPLACE=1 writes the new one in place
of the last one, which was not.
"""

import re
import sys
from pathlib import Path

from dispatcher.migrations._functions import FOLDER, copy_of
from dispatcher.sql import functions

HEADER = "-- The functions of version {version}, as a migration installs them. Written by `make functions`.\n\n"
_INSTALLED = re.compile(r'InstallFunctions\("(\w+)"\)')


def freeze(*, replaces: bool = False) -> str:
    """Write the copy of today's functions; return what is left to do.

    replaces: it takes the place of the one that the last migration with functions installs.
    """
    version = functions.version()
    copy_of(version).write_text(HEADER.format(version=version) + functions.ddl(), "utf-8")
    if not replaces:
        return f'Add operations = [InstallFunctions("{version}")] to a new migration in {FOLDER.name}/.'
    migration, last = _last()
    if last != version:
        migration.write_text(migration.read_text("utf-8").replace(f'"{last}"', f'"{version}"'), "utf-8")
        copy_of(last).unlink(missing_ok=True)
    return f"{migration.name} installs {version}."


def _last() -> tuple[Path, str]:
    """Return the last migration that installs functions, and their version."""
    found = [
        (file, version) for file in sorted(FOLDER.glob("0*.py")) for version in _INSTALLED.findall(file.read_text())
    ]
    return found[-1]


if __name__ == "__main__":
    sys.stdout.write(f"{freeze(replaces='--replace' in sys.argv[1:])}\n")
