"""The functions of the database: how their texts are written, and that a migration installs today's."""

import re
from pathlib import Path

import pytest
from django.apps import apps
from django.db import connection
from django.db.migrations.loader import MigrationLoader

from dispatcher.migrations import _functions
from dispatcher.migrations._functions import FOLDER as FROZEN
from dispatcher.migrations._functions import DropFunctions, InstallFunctions, copy_of, frozen
from dispatcher.sql import functions, statements
from project import functions as project_functions
from tests.contracts.source import place

FILES = sorted(functions.FOLDER.glob("*.sql"))
NOT_WRITTEN = {
    r"(?m)^(?:(?!--)[^'\n]|'[^'\n]*')*'[^'\n]*--": "the loader takes it for a comment: write `'-' || '-'`",
    r"(?i)\bOR REPLACE\b": "a function is never replaced: processes may be calling it",
    r"(?:SELECT|RETURNING)\s+(?:\w+\.)?\*": "name the columns",
    r"[^\n]{121,}": "a line has at most 120 columns",
}
"""What no text has, and what to do about it."""
OF_THE_CODE = [*NOT_WRITTEN][1:3]
"""What comments may have."""
OF_AN_ENTRY = (
    "SET search_path FROM CURRENT",
    "SET plan_cache_mode = 'force_generic_plan'",
    "SET enable_seqscan = 'off'",
    "SET jit = 'off'",
)


def written(file: Path) -> str:
    """Return what a file holds, without its comments."""
    return re.sub(r" *--.*$", "", file.read_text(), flags=re.MULTILINE)


def called() -> set[str]:
    """Return the functions that statements and fragments name."""
    texts = [file.read_text() for root in statements.roots() for file in root.glob("*/*.sql")]
    return {name for text in texts for name in re.findall(r"\{\{@(\w+)\}\}", text)}


def within() -> set[str]:
    """Return the functions and types that other functions name."""
    return {name for file in FILES for name in functions.used(written(file)) if name != file.stem}


def stripped(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("--")]


def installed() -> list[str]:
    """Return the versions that the database has after all migrations, oldest first."""
    loader = MigrationLoader(None)
    versions: list[str] = []
    (leaf,) = loader.graph.leaf_nodes("dispatcher")
    for label, name in loader.graph.forwards_plan(leaf):
        for operation in loader.get_migration(label, name).operations:
            if isinstance(operation, InstallFunctions):
                versions.append(operation.version)
            elif isinstance(operation, DropFunctions):
                versions.remove(operation.version)
    return versions


def test_a_migration_installs_the_functions_of_this_code() -> None:
    remedy = "run `make functions` (REPLACE=1 if the last copy was never released), and do what it prints"
    assert installed()[-1] == functions.version(), remedy
    assert stripped(copy_of(functions.version()).read_text()) == stripped(functions.ddl()), remedy


def test_functions_are_dropped_two_releases_later() -> None:
    assert len(installed()) <= 2, "drop those of the release before the last one, as `make functions` prints it"


def test_what_a_new_migration_installs_and_drops_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (project_functions, _functions):
        monkeypatch.setattr(module, "FOLDER", tmp_path)
    version = functions.version()
    first = project_functions.freeze()
    assert f'operations = [InstallFunctions("{version}")] to' in first
    (tmp_path / "0001_initial.py").write_text('InstallFunctions("aaaaaaaa")\nInstallFunctions("bbbbbbbb")\n')
    (tmp_path / "0002_drop.py").write_text('DropFunctions("aaaaaaaa")\n')
    assert "DropFunctions" not in project_functions.freeze()
    (tmp_path / "0003_third.py").write_text('InstallFunctions("cccccccc")\n')
    assert f'operations = [InstallFunctions("{version}"), DropFunctions("bbbbbbbb")] to' in project_functions.freeze()


def test_a_copy_is_there_for_each_version_that_a_migration_names_and_for_no_other() -> None:
    loader = MigrationLoader(None)
    named = {
        operation.version
        for migration in loader.disk_migrations.values()
        for operation in migration.operations
        if isinstance(operation, InstallFunctions | DropFunctions)
    }
    assert {file.name for file in FROZEN.glob("functions_*.sql")} == {copy_of(version).name for version in named}
    for version in named:
        assert [made.name for made in frozen(version) if not made.name.endswith(f"_{version}")] == []


def test_a_comment_or_an_indent_is_no_part_of_the_version_and_all_else_is(tmp_path: Path) -> None:
    texts = {
        "first": "CREATE FUNCTION @one() RETURNS int LANGUAGE sql AS $$\n  SELECT 1\n$$;\n",
        "comment": "-- one: it.\nCREATE FUNCTION @one() RETURNS int LANGUAGE sql AS $$\n\n    SELECT 1  -- So.\n$$;\n",
        "other": "CREATE FUNCTION @one() RETURNS int LANGUAGE sql AS $$\n  SELECT 2\n$$;\n",
    }
    for name, text in texts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "one.sql").write_text(text)
    first, comment, other = (functions.version(tmp_path / name) for name in texts)
    assert first == comment != other
    assert re.fullmatch("[0-9a-f]{8}", first)


def test_a_function_is_created_after_what_it_names_and_is_revoked_from_all(tmp_path: Path) -> None:
    (tmp_path / "all.sql").write_text(
        "CREATE TYPE @pair AS (a int, b @part);\n"
        "CREATE FUNCTION @all() RETURNS @pair LANGUAGE sql AS $$ SELECT 1, @zero() WHERE '{1}' <@'{1}'::int[] $$;\n"
    )
    (tmp_path / "zero.sql").write_text(
        "CREATE TYPE @part AS (c int);\nCREATE FUNCTION @zero() RETURNS @part LANGUAGE sql AS $$ SELECT 1 $$;\n"
    )
    text, version = functions.ddl(tmp_path), functions.version(tmp_path)
    assert [each.name for each in functions.definitions(text)] == [
        f"dispatcher_{name}_{version}" for name in ("part", "zero", "pair", "all")
    ]
    assert text.count("FROM PUBLIC;") == 2
    assert functions.used(text) == set()
    assert functions.installed_names(tmp_path) == sorted(each.name for each in functions.definitions(text))


def test_a_name_that_no_file_defines_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one.sql").write_text("CREATE FUNCTION @one() RETURNS int LANGUAGE sql AS $$ SELECT @two() $$;\n")
    with pytest.raises(KeyError, match="@two"):
        functions.ddl(tmp_path)
    with pytest.raises(KeyError, match="@nothing"):
        statements.expand("SELECT {{@nothing}}()")


def test_a_statement_names_a_function_by_its_installed_name() -> None:
    name = FILES[0].stem
    assert statements.expand(f"SELECT {{{{@{name}}}}}()") == f"SELECT dispatcher_{name}_{functions.version()}()"


def test_a_file_has_one_function_or_type_of_its_name_after_its_types_and_says_what_it_does() -> None:
    offenders = []
    for file in FILES:
        made = [*functions.definitions(written(file))]
        if made[-1].name != file.stem or [each for each in made[:-1] if each.kind == "FUNCTION"]:
            offenders.append(
                f"{place(file)}: one function, {file.stem}, after its types; or types, the last is {file.stem}"
            )
        offenders += [f"{place(file)}: end {each.name} with ;" for each in made if not each.text.endswith(";")]
        if not re.fullmatch(rf"-- {file.stem}: \S.*[.;:,\w]\n.*\n", file.read_text(), re.DOTALL):
            offenders.append(f"{place(file)}: begin with `-- {file.stem}: what it does.`, and end with a line break")
    assert not offenders, "\n".join(offenders)


@pytest.mark.parametrize("pattern", NOT_WRITTEN)
def test_what_no_function_has(pattern: str) -> None:
    offenders = [
        f"{place(file, text, found.start())}: {NOT_WRITTEN[pattern]}"
        for file, text in ((file, written(file) if pattern in OF_THE_CODE else file.read_text()) for file in FILES)
        for found in re.finditer(pattern, text)
    ]
    assert not offenders, "\n".join(offenders)


def test_a_text_that_the_loader_would_cut_is_found() -> None:
    pattern = re.compile(next(iter(NOT_WRITTEN)))
    assert pattern.search("a := 'b' || 'c--d';")
    assert not pattern.search("a := 'b' || 'c';  -- what another's has -- or not")


def test_no_function_uses_the_row_type_of_a_table() -> None:
    """A column that a later migration adds would change it under code that has the old one."""
    tables = "|".join(model._meta.db_table for model in apps.get_models(include_auto_created=True))
    row_type = re.compile(
        rf"\b(?:{tables})\b\"?\s*(?:\[|%ROWTYPE)"
        rf"|(?:\b[pv]_\w+\s+|::\s*|\bSETOF\s+|\bRETURNS\s+|\bTABLE\s*\(\w+\s+|\bTYPE\s+@\w+\s+AS\s*\(\w+\s+)\"?(?:{tables})\b",
        re.IGNORECASE,
    )
    assert row_type.search("p_rows dispatcher_callqueue[]")
    assert row_type.search("v_call dispatcher_callqueue;")
    assert row_type.search("RETURNS SETOF dispatcher_lane")
    assert not row_type.search("SELECT FROM dispatcher_lane AS lane JOIN dispatcher_slot AS slot ON slot.id = lane.id")
    offenders = [
        f"{place(file, text, found.start())}: {found[0]}: name a type of its own"
        for file, text in ((file, written(file)) for file in FILES)
        for found in row_type.finditer(text)
    ]
    assert not offenders, "\n".join(offenders)


def test_what_statements_alone_call_has_settings_of_its_own_and_what_functions_call_has_none() -> None:
    """A setting costs at every call, and one on a function of SQL keeps the planner from inlining it."""
    offenders = []
    entries = called() - within()
    for file in FILES:
        head = written(file).partition("$$")[0].rpartition("CREATE FUNCTION")[2]
        wanted = OF_AN_ENTRY if file.stem in entries and re.search(r"LANGUAGE\s+plpgsql", head) else ()
        offenders += [f"{place(file)}: {setting} is missing" for setting in wanted if setting not in head]
        if not wanted and re.search(r"\bSET\b", head):
            offenders.append(f"{place(file)}: only PL/pgSQL functions that no other function calls have SET")
    assert not offenders, "\n".join(offenders)


@pytest.mark.server
@pytest.mark.django_db
@pytest.mark.parametrize("name", [file.stem for file in FILES if f"CREATE FUNCTION @{file.stem}(" in file.read_text()])
def test_a_function_as_installed_is_for_those_who_were_granted_it_and_has_the_settings_of_an_entry(name: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT prosecdef, proacl IS NOT NULL AND NOT EXISTS (SELECT FROM aclexplode(proacl) WHERE grantee = 0),"
            " COALESCE(proconfig, '{}'), lanname FROM pg_proc JOIN pg_language ON pg_language.oid = prolang"
            " WHERE proname = %s",
            [functions.installed_name(name)],
        )
        ((has_rights_of_its_own, is_revoked, settings, language),) = cursor.fetchall()
    assert (has_rights_of_its_own, is_revoked) == (False, True)
    values = dict(setting.split("=", 1) for setting in settings)
    if language == "plpgsql" and name in called() - within():
        assert {"search_path", "plan_cache_mode"} <= values.keys()
        assert "$user" not in values["search_path"]
        assert (values["jit"], values["enable_seqscan"]) == ("off", "off")
    else:
        assert values == {}


def test_every_function_is_called() -> None:
    assert {file.stem for file in FILES} - within() - called() == set()
