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
_OPERATION = re.compile(r'(Install|Drop)Functions\("(\w+)"\)')


def freeze(*, replaces: bool = False) -> str:
    """Write the copy of today's functions; return what is left to do.

    replaces: it takes the place of the one that the last migration with functions installs.
    """
    version = functions.version()
    copy_of(version).write_text(HEADER.format(version=version) + functions.ddl(), "utf-8")
    if not replaces:
        # Those of the last release stay: its processes work beside the new ones.
        dropped = "".join(f', DropFunctions("{each}")' for each in [*_installed()][:-1])
        return f'Add operations = [InstallFunctions("{version}"){dropped}] to a new migration in {FOLDER.name}/.'
    last, migration = [*_installed().items()][-1]
    if last != version:
        migration.write_text(migration.read_text("utf-8").replace(f'"{last}"', f'"{version}"'), "utf-8")
        copy_of(last).unlink(missing_ok=True)
    return f"{migration.name} installs {version}."


def _installed() -> dict[str, Path]:
    """Return the versions that a database has after all migrations, oldest first, with the migration of each."""
    found: dict[str, Path] = {}
    for file in sorted(FOLDER.glob("0*.py")):
        for operation, version in _OPERATION.findall(file.read_text()):
            if operation == "Install":
                found[version] = file
            else:
                del found[version]
    return found


if __name__ == "__main__":
    sys.stdout.write(f"{freeze(replaces='--replace' in sys.argv[1:])}\n")
