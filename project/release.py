"""Build the package, check it, and follow the README in an empty project and in one on psycopg2 (`make release`).

Nothing is uploaded: what is in dist/ afterwards is what was checked.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Collection
from pathlib import Path
from zipfile import ZipFile

from packaging.metadata import Metadata

from project.run_dirs import ROOT

DIST = ROOT / "dist"
FLOWS = ("tests/flows/test_first_steps.py", "tests/flows/test_psycopg2.py")
TYPED = "from dispatcher.errors import DispatcherError\nprice: int = DispatcherError\n"
"""mypy refuses the second line if it reads the types of the first one."""


def main() -> None:
    """Build and check the source distribution and the wheel; exit 1 with what is wrong."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(Path(sys.executable).with_name("uv"), "build", "--quiet", "--out-dir", DIST)
    (source,), (wheel,) = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    changelog = (ROOT / "CHANGELOG.md").read_text()
    faults = [
        *faults_of_files(source, wheel),
        *faults_of_metadata(wheel),
        *faults_of_changelog(changelog, migrations()),
    ]
    if faults:
        sys.exit("\n".join(faults))
    with tempfile.TemporaryDirectory() as home:
        package, broker = as_the_readme_says(wheel)
        python = environment(Path(home, "new"), package, broker)
        check_types(python)
        # The tests start their servers before they read settings; the package `project` has named some.
        env = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
        env |= {"RELEASE_PYTHON": str(python), "RELEASE_PACKAGE": package}
        env["RELEASE_PSYCOPG2"] = str(environment(Path(home, "old"), "django", "psycopg2-binary"))
        run(sys.executable, "-m", "pytest", "-n0", "-q", *FLOWS, env=env)
    print(f"{source.name} and {wheel.name} are ready in {DIST}.")


def run(*command: str | Path, **options: object) -> None:
    """Run a command in the repository; exit if it fails, since it has said why."""
    done = subprocess.run([*map(str, command)], cwd=ROOT, check=False, **options)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(f"failed: {' '.join(map(str, command))}")


def faults_of_files(source: Path, wheel: Path) -> list[str]:
    """Return what is missing in the distributions, and what does not belong there."""
    package = {path.relative_to(ROOT).as_posix() for path in (ROOT / "dispatcher").rglob("*") if is_part(path)}
    installed = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    with tarfile.open(source) as archive:
        sources = {name.partition("/")[2] for name in archive.getnames()}
    expected = {*package, "LICENSE", "README.md", "pyproject.toml", "setup.py"}
    return [
        *(f"{wheel.name} lacks {name}" for name in sorted(package - installed)),
        *(f"{wheel.name} has {name}" for name in sorted(installed - package)),
        *(f"{source.name} lacks {name}" for name in sorted(expected - sources)),
    ]


def is_part(path: Path) -> bool:
    """Return whether a file belongs to the package."""
    return path.is_file() and path.suffix in {".html", ".py", ".sql", ".typed"}


def faults_of_metadata(wheel: Path) -> list[str]:
    """Return what an index would refuse or show wrongly."""
    archive = ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    metadata = Metadata.from_email(archive.read(name), validate=True)
    page = metadata.description or ""
    relative = re.findall(r"\]\((?!https?://|#)[^)]*\)", page)
    files = re.findall(rf"\]\(https://[^)]*/(?:blob|raw)/v{re.escape(str(metadata.version))}/([^)#]+)", page)
    return [
        *(f"the long description has a relative link: {link}" for link in relative),
        *(f"the long description links to {file}, which is not there" for file in files if not (ROOT / file).exists()),
        *([] if files else ["the long description has no link into the repository"]),
        *([] if metadata.description_content_type == "text/markdown" else ["the long description is not Markdown"]),
        *([] if metadata.license_files else ["there is no licence file"]),
        *([] if metadata.project_urls else ["there are no addresses"]),
    ]


def migrations() -> list[str] | None:
    """Return the files of migrations that have changed since the release before; None: there is none."""
    found = git("describe", "--tags", "--abbrev=0", "--match", "v*", "HEAD^")
    return git("diff", "--name-only", *found, "HEAD", "--", "dispatcher/*migrations/*") if found else None


def git(*words: str) -> list[str]:
    """Return the lines that git answers; none, where it fails."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S607
    return [] if done.returncode else done.stdout.splitlines()


def faults_of_changelog(changelog: str, changed: Collection[str] | None) -> list[str]:
    """Return what the changelog says wrongly of the latest release: one without a migration says so.

    changed: the files of migrations that have changed since the release before; None: there is none.
    """
    latest = changelog.split("\n## ")[1]
    if changed is None or bool(changed) != ("without a migration" in latest.lower()):
        return []
    what = "it has migrations" if changed else "say that it is without a migration"
    return [f"CHANGELOG.md, {latest.splitlines()[0]}: {what}"]


def as_the_readme_says(wheel: Path) -> tuple[str, str]:
    """Return the wheel with its extras, and what a broker takes beside it."""
    readme = (ROOT / "README.md").read_text()
    (extras,) = re.findall(r'^pip install "django-callqueue(\[[\w,]+\])"$', readme, re.MULTILINE)
    (broker,) = re.findall(r'`pip install "(celery\[redis\])"`', readme)
    return f"{wheel}{extras}", broker


def environment(home: Path, *packages: str) -> Path:
    """Install these in an environment of its own; return its Python."""
    run(sys.executable, "-m", "venv", home)
    python = home / "bin" / "python"
    pip: list[str | Path] = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    run(*pip, "install", *packages)
    run(*pip, "check")
    return python


def check_types(python: Path) -> None:
    """Exit unless the types of the installed package are read."""
    command = [sys.executable, "-m", "mypy", "--config-file=", "--python-executable", python, "-c", TYPED]
    with tempfile.TemporaryDirectory() as elsewhere:
        done = subprocess.run([*map(str, command)], cwd=elsewhere, capture_output=True, text=True, check=False)
    if not re.fullmatch(r"<string>:2: error: Incompatible types.*\nFound 1 error .*\n", done.stdout):
        sys.exit(f"the types of the package are not read:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
