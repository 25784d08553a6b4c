"""Import every module of a package, and print the names that its code uses of other modules and that are not there.

`python -m tests.unit.unknown_names bench`, with the package's settings in the environment. Names in functions count:
an import alone would not find them.
"""

import ast
import inspect
import sys
from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages
from types import ModuleType

import django


def unknown_names(module: ModuleType) -> Iterator[str]:
    """Yield the names that a module's code imports or reads of modules and that these do not have."""
    tree = ast.parse(inspect.getsource(module))
    modules = {name: value for name, value in vars(module).items() if isinstance(value, ModuleType)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            source = import_module(node.module)
            for alias in node.names:
                name = alias.name
                if name != "*" and not hasattr(source, name) and not _is_module(f"{node.module}.{name}"):
                    yield f"{module.__name__}:{node.lineno}: {node.module}.{name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            owner = modules[node.value.id]
            if not hasattr(owner, node.attr):
                yield f"{module.__name__}:{node.lineno}: {owner.__name__}.{node.attr}"


def _is_module(name: str) -> bool:
    try:
        import_module(name)
    except ModuleNotFoundError:
        return False
    return True


def main(package: str) -> int:
    """Look through all modules of a package; return the exit code."""
    django.setup()
    found = [*walk_packages(import_module(package).__path__, f"{package}.")]
    # A package within it may be a Django app with settings of its own.
    inner = tuple(f"{each.name}." for each in found if each.ispkg)
    names = [each.name for each in found if not each.ispkg and not each.name.startswith(inner)]
    unknown = [line for name in names for line in unknown_names(import_module(name))]
    sys.stdout.write("".join(f"{line}\n" for line in unknown))
    return 1 if unknown or not names else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
