"""The statements: one to a file, each of them used, accepted by the server, and nowhere else any SQL."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from django.apps import apps
from django.db import connection, transaction
from psycopg.pq import ExecStatus

from dispatcher import sql
from dispatcher.sql import functions, statements
from tests.builders import committed
from tests.contracts.source import MODULES, PACKAGE, place, tree

ALL = [file for root in statements.roots() for file in root.glob("*/*.sql") if file.parent != functions.FOLDER]
FRAGMENTS = sorted(file for file in ALL if file.parent.name == statements.FRAGMENTS)
FILES = sorted(set(ALL) - set(FRAGMENTS))
EVERY = [*FILES, *FRAGMENTS]
RUNS = {"ask", "fetch", "change"}
SQL = re.compile(
    r"\b(SELECT\s.+\sFROM|INSERT\s+INTO|UPDATE\s+\w+\s+SET|DELETE\s+FROM|TRUNCATE\s|LOCK\s+TABLE|"
    r"(?:ALTER|CREATE|DROP)\s+(?:TABLE|INDEX|SEQUENCE))\b",
    re.IGNORECASE | re.DOTALL,
)
NO_STATEMENTS = {"engine.execute", "call.execute"}
"""They run a call."""
RAW = {"raw", "extra", "RawSQL", "RunSQL", "executemany", "execute", "callproc"}
NOT_WRITTEN = {
    r";": "a file holds one statement, without its semicolon",
    r"--": "a comment has a line of its own, where the loader leaves it out",
    r"[^\n]{121,}": "a line has at most 120 columns",
    r"(?:SELECT|RETURNING)\s+(?:\w+\.)?\*": "name the columns",
    r"%(?!\(\w+\)s|%)": "name the parameter; a percent sign that is none is written twice",
}
"""What no file has beside its comments, and what to do about it."""
LOOKED_FOR = re.compile(
    r"EXISTS \(SELECT\s+FROM dispatcher_(?:callqueue|lane|slot) AS (?!slot WHERE slot.(?:call|key)_id =)"
)


def written(file: Path) -> str:
    """Return what a file holds; its comments are empty lines."""
    return re.sub(r"^ *--.*$", "", file.read_text(), flags=re.MULTILINE)


def code(file: Path) -> str:
    """Return a statement without its comments, its fragments expanded."""
    return statements.expand(written(file))


def calls(module: Path) -> Iterator[tuple[str, ast.Call]]:
    """Return every call with the last name of what is called."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Call):
            yield getattr(node.func, "attr", getattr(node.func, "id", "")), node


def texts(module: Path) -> list[ast.Constant]:
    """Return every text in the code."""
    return [node for node in ast.walk(tree(module)) if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def test_every_statement_is_used() -> None:
    """A name may be handed to what runs it, so any text may be one."""
    assert set(sql.names()) - {text.value for module in MODULES for text in texts(module)} == set()


def test_every_name_of_a_statement_is_unique() -> None:
    assert sorted(file.stem for file in FILES) == sql.names()


def test_every_statement_that_is_run_is_there() -> None:
    run = [
        (call.args[0].value, place(module), call.lineno)
        for module in MODULES
        for name, call in calls(module)
        if name in RUNS and call.args and isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str)
    ]
    assert len(run) > 30
    assert [each for each in run if each[0] not in sql.names()] == []


def test_a_file_opens_with_its_name_and_what_it_does() -> None:
    offenders = []
    for file in EVERY:
        parameters = r"(\([\w, ]+\))?" if file in FRAGMENTS else ""
        if not re.fullmatch(rf"-- {file.stem}{parameters}: \S.*[.;:,\w]\n.*\n", file.read_text(), re.DOTALL):
            offenders.append(f"{place(file)}: begin with `-- {file.stem}: what it does.`, and end with a line break")
    assert not offenders, "\n".join(offenders)


def test_a_fragment_is_known_and_takes_as_many_arguments_as_it_names() -> None:
    assert statements.expand("{{waits_alone_in(call, lane.id)}}") == (
        "call.lane_id = lane.id AND call.oversized_key_id IS NOT NULL"
    )
    with pytest.raises(KeyError):
        statements.expand("{{nothing}}")
    with pytest.raises(ValueError, match=r"shorter|longer"):
        statements.expand("{{waits_in(call)}}")


@pytest.mark.ojs
def test_a_fragment_is_used_twice_at_least_and_uses_each_of_its_parameters() -> None:
    named = [name for each in EVERY for name in re.findall(r"\{\{(\w+)", written(each))]
    known = statements.fragments()
    offenders = []
    for file in FRAGMENTS:
        parameters = known[file.stem].parameters
        if named.count(file.stem) < 2:
            offenders.append(f"{place(file)}: it is used once: write it there")
        offenders += [
            f"{place(file)}: {name} is not used" for name in parameters if f"{{{{{name}}}}}" not in written(file)
        ]
        offenders += [f"{place(file)}: {name} is a fragment, too: rename it" for name in set(parameters) & set(known)]
    assert not offenders, "\n".join(offenders)


def test_a_file_uses_fragments_that_exist() -> None:
    known = statements.fragments()
    unknown = {
        place(file): statements.used(written(file))
        - set(known)
        - set(known[file.stem].parameters if file in FRAGMENTS else ())
        for file in EVERY
    }
    assert {path: names for path, names in unknown.items() if names} == {}


def test_no_argument_has_the_alias_of_a_table_inside_the_fragment() -> None:
    """It would then name that table, and not the one outside."""
    offenders = []
    for file in EVERY:
        text = written(file)
        for found in re.finditer(r"\{\{(\w+)\(((?:[^{}]|\{\{\w+\}\})*)\)\}\}", text):
            aliases = set(re.findall(r"\bAS (\w+)(?! \()", statements.fragments()[found[1]].text))
            if names := set(re.findall(r"\b(\w+)\.", found[2])) & aliases:
                offenders.append(
                    f"{place(file, text, found.start())}: {found[1]} has {names} of its own: rename it here"
                )
    assert not offenders, "\n".join(offenders)


@pytest.mark.parametrize("pattern", NOT_WRITTEN)
def test_what_no_statement_has(pattern: str) -> None:
    offenders = [
        f"{place(file, text, found.start())}: {NOT_WRITTEN[pattern]}"
        for file, text in ((file, file.read_text() if "121" in pattern else written(file)) for file in EVERY)
        for found in re.finditer(pattern, text)
    ]
    assert not offenders, "\n".join(offenders)


def test_a_move_names_the_states_that_it_comes_from() -> None:
    offenders = [
        f"{place(file)}: name the state in the WHERE of {update}"
        for file in FILES
        for update in re.findall(r"UPDATE dispatcher_callqueue.*?(?:RETURNING|\Z|\n\))", code(file), re.DOTALL)
        if re.search(r"SET\s+state\s*=", update) and not re.search(r"WHERE.*\bstate (=|IN)", update, re.DOTALL)
    ]
    assert not offenders, "\n".join(offenders)


def test_a_statement_looks_for_a_row_in_the_order_of_an_index() -> None:
    """An EXISTS reads a table whole where statistics say that most of its rows would do."""
    offenders = [
        f"{place(file)}: write ORDER BY and LIMIT 1 in place of {found[0]}"
        for file in FILES
        for found in LOOKED_FOR.finditer(" ".join(code(file).split()))
    ]
    assert not offenders, "\n".join(offenders)


@pytest.mark.server
@pytest.mark.pooler
@pytest.mark.django_db
def test_a_statement_prepares_on_the_server() -> None:
    connection.ensure_connection()
    offenders = []
    for name in sql.names():
        with transaction.atomic():
            tried = connection.connection.pgconn.prepare(b"", sql.statement(name).text.encode())
            if tried.status != ExecStatus.COMMAND_OK:
                offenders.append(f"{name}: {tried.error_message.decode()}")
                transaction.set_rollback(True)
    assert not offenders, "\n".join(offenders)


def test_the_index_that_a_statement_relies_on_exists() -> None:
    options = [model._meta for model in apps.get_models() if model._meta.app_label.startswith("dispatcher")]
    known = {each.name for option in options for each in (*option.indexes, *option.constraints)} | set(sql.names())
    offenders = []
    for file in FILES:
        comment = " ".join(re.findall(r"^-- (.*)$", file.read_text(), re.MULTILINE))
        named = {word for word in re.findall(r"\b(?:call|job|key|lane|slot)_[a-z_]+\b", comment) if "_id" not in word}
        offenders += [f"{place(file)}: there is no index {name}" for name in sorted(named - known)]
    assert not offenders, "\n".join(offenders)


def test_no_sql_is_written_in_python() -> None:
    offenders = []
    for module in MODULES:
        docstrings = {
            ast.get_docstring(node, clean=False)
            for node in ast.walk(tree(module))
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        }
        found = [node.lineno for node in texts(module) if node.value not in docstrings and SQL.search(node.value)]
        if module not in {PACKAGE / "sql" / "__init__.py", PACKAGE / "sql" / "connections.py"}:
            raw = [each for name, each in calls(module) if name in RAW and ast.unparse(each.func) not in NO_STATEMENTS]
            found += [each.lineno for each in raw]
        offenders += [f"{place(module)[:-1]}{line}: a statement has a file in dispatcher/sql" for line in found]
    assert not offenders, "\n".join(offenders)


WRITES: Final = {
    r"INSERT INTO dispatcher_slot\b": {"take"},
    r"INSERT INTO dispatcher_start\b": {"count_starts"},
    r"@count_starts\b": {"take", "claim", "spend_window"},
    r"UPDATE dispatcher_callqueue\b(?:(?!\bWHERE\b).)*\bstarted_at = (?!NULL)": {"take", "claim"},
    r"UPDATE dispatcher_slot\b(?:(?!\bWHERE\b).)*\bstarted_at = (?!NULL)": {"claim"},
}
"""What starts a call, and the texts that may: `spend_window` counts a request of a client, which is no call."""


@pytest.mark.ojs
@pytest.mark.parametrize("pattern", WRITES)
def test_only_the_functions_take_and_claim_start_a_call(pattern: str) -> None:
    texts = {file.stem: written(file) for file in [*EVERY, *functions.FOLDER.glob("*.sql")]}
    found = {name for name, text in texts.items() if re.search(pattern, text, re.DOTALL) and f"@{name}" != pattern[:-2]}
    assert found == WRITES[pattern]


ORM_WRITES: Final = {"create", "bulk_create", "get_or_create", "update", "update_or_create", "bulk_update"}


def model_of(node: ast.expr) -> str:
    """Return the name that a chain of calls begins with: that of the model."""
    while isinstance(node, ast.Attribute | ast.Call):
        node = node.value if isinstance(node, ast.Attribute) else node.func
    return node.id if isinstance(node, ast.Name) else ""


def test_no_module_starts_a_call_past_the_functions() -> None:
    offenders = [
        f"{place(module)[:-1]}{node.lineno}"
        for module in MODULES
        for name, node in calls(module)
        if name in ORM_WRITES
        and (model_of(node) in {"Slot", "Start"} or "started_at" in [each.arg for each in node.keywords])
    ]
    assert not offenders, "\n".join(offenders)


@committed
def test_the_server_compiles_no_statement_of_a_pass() -> None:
    """It would do so at every pass: the estimates that make plans use their indexes count as ruinously dear."""
    with sql.own_transaction(), connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('jit'), current_setting('enable_seqscan')")
        assert cursor.fetchone() == ("off", "off")
