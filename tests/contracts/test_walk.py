"""The page of the walk and the code agree: files, steps, folders of statements, and their order."""

import re

import dispatcher
from tests.contracts.source import PACKAGE, ROOT

PAGE = (ROOT / "docs" / "explanation" / "how-it-works.md").read_text()
WALK = re.findall(r"^\| \*\*(.+?)\*\* \|(.*)$", PAGE, re.MULTILINE)
PATHS = set(re.findall(r"`([\w/]+(?:\.py|/))`", PAGE)) - {"dispatcher/"}


def modules(folder: str) -> set[str]:
    """Return the modules and packages of a folder."""
    found = [path for path in (PACKAGE / folder).iterdir() if not path.name.startswith("__")]
    return {f"{folder}/{path.name}" if path.is_file() else f"{folder}/{path.name}/" for path in found}


def test_every_file_that_the_page_names_exists() -> None:
    assert {path for path in PATHS if not (PACKAGE / path).exists()} == set()


def test_the_page_names_every_step_and_every_folder_of_statements() -> None:
    assert modules("lifecycle") - PATHS == set()
    assert modules("sql") - PATHS == set()


def test_the_order_of_the_walk_is_the_one_that_the_package_lists() -> None:
    listed = re.findall(r"^(\w+) {2,}\S", dispatcher.__doc__ or "", re.MULTILINE)
    walked = [step for step, _ in WALK]
    assert walked == ["send", "wait", "take", "run", "retention", "publish", "claim"]
    assert [step for step in listed if step in walked] == [step for step in walked if step in listed]
    assert {"send", "take", "run", "publish", "claim"} <= set(listed)


def test_each_step_of_the_walk_names_its_module() -> None:
    for step, line in WALK:
        assert re.search(r"`[\w/]+(\.py|/)`", line), f"{step} names no file"
        if (PACKAGE / "lifecycle" / f"{step}.py").exists():
            assert f"`lifecycle/{step}.py`" in line
