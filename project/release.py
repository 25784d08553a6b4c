"""Build the package, check what is in it, and follow the README with it in an empty project (`make release`).

Nothing is uploaded: what is in dist/ afterwards is what was checked.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from zipfile import ZipFile

from packaging.metadata import Metadata

from project.processes import ROOT

DIST = ROOT / "dist"
FIRST_STEPS = "tests/flows/test_first_steps.py"
TYPED = "from dispatcher.errors import DispatcherError\nprice: int = DispatcherError\n"
"""mypy refuses the second line if it reads the types of the first one."""


def main() -> None:
    """Build and check the source distribution and the wheel; exit 1 with what is wrong."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(Path(sys.executable).with_name("uv"), "build", "--quiet", "--out-dir", DIST)
    (source,), (wheel,) = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    faults = [*faults_of_files(source, wheel), *faults_of_metadata(wheel)]
    if faults:
        sys.exit("\n".join(faults))
    with tempfile.TemporaryDirectory() as home:
        python = install(wheel, Path(home))
        check_types(python)
        # The tests start their servers before they read settings; the package `project` has named some.
        env = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
        run(sys.executable, "-m", "pytest", "-n0", "-q", FIRST_STEPS, env=env | {"RELEASE_PYTHON": str(python)})
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


def install(wheel: Path, home: Path) -> Path:
    """Install the wheel as the README says, in an environment of its own; return its Python."""
    readme = (ROOT / "README.md").read_text()
    (extras,) = re.findall(r'^pip install "django-callqueue(\[[\w,]+\])"$', readme, re.MULTILINE)
    (broker,) = re.findall(r'`pip install "(celery\[redis\])"`', readme)
    run(sys.executable, "-m", "venv", home)
    python = home / "bin" / "python"
    pip: list[str | Path] = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    run(*pip, "install", f"{wheel}{extras}", broker)
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
