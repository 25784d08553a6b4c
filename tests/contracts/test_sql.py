"""The statements: one to a file, each of them used, accepted by the server, and nowhere else any SQL."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.apps import apps
from django.db import connection
from psycopg.pq import ExecStatus

from dispatcher import sql
from dispatcher.sql import statements
from tests.builders import committed

PACKAGE = Path(sql.__file__).resolve().parents[1]
FRAGMENTS = sorted((PACKAGE / "sql" / "fragments").glob("*.sql"))
FILES = sorted(set((PACKAGE / "sql").glob("*/*.sql")) - set(FRAGMENTS))
MODULES = [path for path in sorted(PACKAGE.rglob("*.py")) if "migrations" not in path.parts]

every_file = pytest.mark.parametrize("file", [*FILES, *FRAGMENTS], ids=lambda file: file.stem)
every_fragment = pytest.mark.parametrize("file", FRAGMENTS, ids=lambda file: file.stem)
every_statement = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)

RUNS = {"ask", "fetch", "change"}
SQL = re.compile(
    r"\b(SELECT\s.+\sFROM|INSERT\s+INTO|UPDATE\s+\w+\s+SET|DELETE\s+FROM|TRUNCATE\s|LOCK\s+TABLE|"
    r"(?:ALTER|CREATE|DROP)\s+(?:TABLE|INDEX|SEQUENCE))\b",
    re.IGNORECASE | re.DOTALL,
)
RAW = {"raw", "extra", "RawSQL", "RunSQL", "executemany", "execute", "callproc"}


def code(file: Path) -> str:
    """Return a statement without its comments, its fragments expanded."""
    return statements.expand(written(file))


def written(file: Path) -> str:
    """Return what a file holds without its comments."""
    return "\n".join(line for line in file.read_text().splitlines() if not line.lstrip().startswith("--"))


def flat(file: Path) -> str:
    """Return a statement on one line."""
    return " ".join(code(file).split())


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Return every call with the last name of what is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            yield getattr(called, "attr", getattr(called, "id", "")), node


def names_run() -> set[str]:
    """Return what is given by its name to ask, fetch or change."""
    return {
        call.args[0].value
        for module in MODULES
        for name, call in calls(ast.parse(module.read_text()))
        if name in RUNS and call.args and isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str)
    }


def texts() -> set[str]:
    """Return every text in the code: a name may be handed to what runs it."""
    return {
        node.value
        for module in MODULES
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def test_every_statement_is_used() -> None:
    assert set(sql.names()) - texts() == set()


def test_every_name_of_a_statement_is_unique() -> None:
    assert sorted(file.stem for file in FILES) == sql.names()


def test_every_statement_that_is_run_is_there() -> None:
    assert names_run() - set(sql.names()) == set()
    assert len(names_run()) > 30


@every_file
def test_a_file_opens_with_its_name_and_what_it_does(file: Path) -> None:
    first = file.read_text().splitlines()[0]
    parameters = r"(\([\w, ]+\))?" if file in FRAGMENTS else ""
    assert re.fullmatch(rf"-- {file.stem}{parameters}: \S.*[.;:,\w]", first), first
    assert file.read_text().endswith("\n")


def test_a_fragment_is_known_and_takes_as_many_arguments_as_it_names() -> None:
    assert statements.expand("{{waits_alone_in(call, lane.id)}}") == (
        "call.lane_id = lane.id AND call.oversized_key_id IS NOT NULL"
    )
    with pytest.raises(KeyError):
        statements.expand("{{nothing}}")
    with pytest.raises(ValueError, match=r"shorter|longer"):
        statements.expand("{{waits_in(call)}}")


@every_fragment
def test_a_fragment_is_used_by_at_least_two_statements(file: Path) -> None:
    users = [each.stem for each in [*FILES, *FRAGMENTS] if file.stem in statements.used(written(each))]
    assert len(users) > 1, users


@every_fragment
def test_a_fragment_uses_each_of_its_parameters(file: Path) -> None:
    parameters = statements.fragments()[file.stem].parameters
    assert {name for name in parameters if f"{{{{{name}}}}}" not in written(file)} == set()
    assert set(parameters) & set(statements.fragments()) == set(), "a parameter may not have the name of a fragment"


@every_file
def test_a_file_uses_fragments_that_exist(file: Path) -> None:
    known = set(statements.fragments())
    parameters = known & {file.stem} and statements.fragments()[file.stem].parameters
    assert statements.used(written(file)) - known - set(parameters) == set()


@every_file
def test_no_argument_has_the_alias_of_a_table_inside_the_fragment(file: Path) -> None:
    """It would then name that table, and not the one outside."""
    for name, arguments in re.findall(r"\{\{(\w+)\(((?:[^{}]|\{\{\w+\}\})*)\)\}\}", written(file)):
        aliases = set(re.findall(r"\bAS (\w+)(?! \()", statements.fragments()[name].text))
        assert set(re.findall(r"\b(\w+)\.", arguments)) & aliases == set(), name


@every_file
def test_a_line_has_at_most_120_columns(file: Path) -> None:
    assert [line for line in file.read_text().splitlines() if len(line) > 120] == []


@every_file
def test_a_file_holds_one_statement(file: Path) -> None:
    assert ";" not in written(file)
    assert "--" not in written(file), "a comment has a line of its own, where the loader leaves it out"


@every_statement
def test_a_statement_names_its_columns_and_its_parameters(file: Path) -> None:
    assert not re.search(r"SELECT\s+(\w+\.)?\*", code(file))
    assert not re.search(r"RETURNING\s+(\w+\.)?\*", code(file))
    assert "%s" not in code(file)
    assert not re.search(r"%(?!\(\w+\)s|%)", code(file)), "a percent sign that is no parameter is written twice"


@every_statement
def test_a_move_names_the_states_that_it_comes_from(file: Path) -> None:
    for update in re.findall(r"UPDATE dispatcher_callqueue.*?(?:RETURNING|\Z|\n\))", code(file), re.DOTALL):
        if re.search(r"SET\s+state\s*=", update):
            assert re.search(r"WHERE.*\bstate (=|IN)", update, re.DOTALL), update


@every_statement
def test_a_statement_looks_for_a_row_in_the_order_of_an_index(file: Path) -> None:
    """An EXISTS reads a table whole where statistics say that most of its rows would do: write ORDER BY and LIMIT 1."""
    assert not re.search(
        r"EXISTS \(SELECT\s+FROM dispatcher_(?:callqueue|lane|slot) AS (?!slot WHERE slot.(?:call|key)_id =)",
        flat(file),
    )


@every_statement
@pytest.mark.server
@pytest.mark.pooler
@pytest.mark.django_db
def test_a_statement_prepares_on_the_server(file: Path) -> None:
    connection.ensure_connection()
    tried = connection.connection.pgconn.prepare(b"", sql.statement(file.stem).text.encode())
    assert tried.status == ExecStatus.COMMAND_OK, tried.error_message


@every_statement
def test_the_index_that_a_statement_relies_on_exists(file: Path) -> None:
    comment = " ".join(line.removeprefix("-- ") for line in file.read_text().splitlines() if line.startswith("--"))
    named = {word for word in re.findall(r"\b(?:call|key|lane|slot)_[a-z_]+\b", comment) if "_id" not in word}
    options = [model._meta for model in apps.get_app_config("dispatcher").get_models()]
    known = {each.name for option in options for each in (*option.indexes, *option.constraints)}
    assert named <= known | set(sql.names())


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_sql_is_written_in_python(module: Path) -> None:
    tree = ast.parse(module.read_text())
    docstrings = {
        ast.get_docstring(node, clean=False)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    }
    written = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in docstrings
    ]
    assert [text for text in written if SQL.search(text)] == []
    if module != PACKAGE / "sql" / "__init__.py":
        raw = [f"{name}, line {call.lineno}" for name, call in calls(tree) if name in RAW and not _is_engine(call)]
        assert raw == []


def _is_engine(call: ast.Call) -> bool:
    """Whether it is engine.execute, which is no statement."""
    return ast.unparse(call.func) == "engine.execute"


@committed
def test_the_server_compiles_no_statement_of_a_pass() -> None:
    """It would do so at every pass: the estimates that make plans use their indexes count as ruinously dear."""
    with sql.own_transaction(), connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('jit'), current_setting('enable_seqscan')")
        assert cursor.fetchone() == ("off", "off")
