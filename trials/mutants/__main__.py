"""Plant the faults: `python -m trials.mutants [NAME ...]`; exits 0 only if each is caught, or explained.

A name is a rule, or a rule and a place. DATABASE_URL and CELERY_BROKER_URL name servers to use; others are embedded.
Exits 2 where a fault cannot be planted, does not run, or the tests fail without any.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg

from project.run_dirs import ROOT
from project.services import embedded
from trials.mutants.faults import Fault, read

_OPTIONS = ("-q", "--tb=short", "-Wignore", "--timeout=60", "-pno:cacheprovider", "--reuse-db")
_UNFIT = re.compile(r"ProgrammingError|SyntaxError|NameError|ImportError|ended with status")
"""What a fault ends in that does not even run."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """What came of a fault."""

    name: str
    failures: Sequence[str]
    """The test that failed, with its error."""
    seconds: float = 0
    is_unfit: bool = False

    def verdict(self, fault: Fault) -> str:
        """Return it in a word."""
        if self.is_unfit or any(map(_UNFIT.search, self.failures)):
            return "UNFIT"
        return "caught" if self.failures else "explained" if fault.explained else "SURVIVED"


def main() -> int:
    """Plant the faults that are asked for; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m trials.mutants", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="a rule, or a rule and a place (default: all)")
    asked = parser.parse_args()
    known = read()
    faults = [each for each in known if not asked.names or {each.name, each.rule} & {*asked.names}]
    if unknown := {*asked.names} - {each.name for each in known} - {each.rule for each in known}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if misplaced := [text for each in faults for text in each.misplaced(ROOT)]:
        print("\n".join(misplaced))
        return 2
    with embedded(name="mutants") as services, tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        if services.owns_database:
            _stop_waiting_for_the_disk(services.database_url)
        tree = Path(directory) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".*", "__pycache__", "site", "build"))
        if trouble := _fail_without_a_fault(tree, _tests(faults)):
            print("The tests fail without a fault:", trouble, sep="\n")
            return 2
        return _judge(faults, _try_all(faults, tree))


def _judge(faults: Sequence[Fault], results: Iterable[Tried]) -> int:
    """Print what comes of each fault, and return the exit code."""
    named, width = {each.name: each for each in faults}, max(len(each.name) for each in faults)
    found: dict[str, list[str]] = {}
    for tried in results:
        verdict = tried.verdict(named[tried.name])
        why = next(iter(tried.failures), named[tried.name].explained or "")
        print(f"{verdict:9} {tried.name:{width}} {tried.seconds:5.1f} s  {why}", flush=True)
        found.setdefault(verdict, []).append(tried.name)
    print(", ".join(f"{len(names)} {verdict}" for verdict, names in sorted(found.items())))
    print("\n".join(f"  {verdict} {name}" for verdict in ("SURVIVED", "UNFIT") for name in found.get(verdict, [])))
    return 2 if "UNFIT" in found else 1 if "SURVIVED" in found else 0


def _try_all(faults: Sequence[Fault], tree: Path) -> Iterator[Tried]:
    """Try those in statements in one session of tests, and each of those in Python in one of its own."""
    yield from _session([each for each in faults if not each.is_code], tree)
    for fault in faults:
        if fault.is_code:
            before = fault.plant(tree)
            yield from _session([fault], tree)
            for path, text in before.items():
                path.write_text(text)


def _session(faults: Sequence[Fault], tree: Path) -> Iterator[Tried]:
    """Run one session of tests for these faults; yield what comes of each as it does."""
    if not faults:
        return
    reader, writer = os.pipe()
    with tempfile.TemporaryFile("w+") as output:
        session = subprocess.Popen(
            [*_pytest(), "-x", "-ptrials.mutants.session", *_tests(faults)],
            cwd=tree,
            env=_environment(MUTANTS=" ".join(each.name for each in faults), MUTANTS_FD=str(writer)),
            pass_fds=[writer],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        os.close(writer)
        left = {each.name for each in faults}
        with session, os.fdopen(reader) as lines:
            for line in lines:
                tried = Tried(**json.loads(line))
                left.discard(tried.name)
                yield tried
        output.seek(0)
        trouble = output.read()[-2000:] if left else ""
    if trouble:
        print(trouble, file=sys.stderr)
    for name in sorted(left):
        yield Tried(name=name, failures=["the tests did not run"], is_unfit=True)


def _fail_without_a_fault(tree: Path, tests: Sequence[str]) -> str:
    """Run the tests in the tree as it is; return how they fail, nothing if they pass."""
    command = [*_pytest(), "-rfE", "--create-db", *tests]
    done = subprocess.run(command, cwd=tree, env=_environment(), capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else (done.stdout + done.stderr)[-4000:]


def _pytest() -> list[str]:
    return [sys.executable, "-m", "pytest", *_OPTIONS]


def _environment(**more: str) -> dict[str, str]:
    # The name of the settings was set when the project was imported; the tests load them themselves.
    return {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"} | more


def _tests(faults: Iterable[Fault]) -> list[str]:
    return list(dict.fromkeys(f"tests/{test}" for each in faults for test in each.tests))


def _stop_waiting_for_the_disk(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET fsync = off")
        connection.execute("SELECT pg_reload_conf()")


if __name__ == "__main__":
    sys.exit(main())
