"""A plan that was made while the tables were empty, and is kept while they fill up, reads what it touches all the same.

PostgreSQL plans a kept statement again only after the next ANALYZE, which autovacuum starts once a minute. So do the
functions with the plans of their statements, which a session keeps.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import pytest
from django.db import connection
from psycopg.pq import ExecStatus

from tests.contracts.hot import OF_A_CALL, trips
from tests.contracts.large import EMPTY, TABLES, fill, run
from tests.contracts.plans import MARGIN, Hot, buffers, explain, explained, hot, nodes, outline, prepare

pytestmark = [pytest.mark.server, pytest.mark.django_db(transaction=False)]

STATEMENTS: Final = [*trips().values(), *OF_A_CALL]


@contextmanager
def undone() -> Iterator[None]:
    """Take back what is changed inside; past psycopg, which would deallocate the kept plans at a rollback."""
    server = connection.connection.pgconn
    server.exec_(b"SAVEPOINT before")
    yield
    assert server.exec_(b"ROLLBACK TO SAVEPOINT before").status == ExecStatus.COMMAND_OK


@pytest.mark.parametrize(
    ("known", "statements"),
    [((), STATEMENTS), ((f"ANALYZE {TABLES}",), [tried for tried in STATEMENTS if tried.name != "ready_queues"])],
    ids=["never analyzed", "analyzed"],
)
def test_a_plan_kept_from_empty_tables_reads_what_it_touches(known: Sequence[str], statements: Sequence[Hot]) -> None:
    run(EMPTY, *known)
    runs = [prepare(Hot(tried.name, 0, (), {}), f"kept_{number}") for number, tried in enumerate(statements)]

    def cost(run: str, tried: Hot) -> str:
        # A run after a change of the tables, or an ANALYZE, reads the catalog, too.
        plans = []
        for _ in range(3):
            with undone(), connection.cursor() as cursor:
                for text in tried.before:
                    cursor.execute(text)
                plans.append(explained(run, tried.values()))
        plan = min(plans, key=buffers)
        return "" if buffers(plan) <= tried.most else f"{tried} reads too much:\n{outline(plan)}"

    for each in zip(runs, statements, strict=True):
        cost(*each)
    fill()
    offenders = [found for each in zip(runs, statements, strict=True) if (found := cost(*each))]
    run("DEALLOCATE ALL")
    assert not offenders, "\n".join(offenders)


def test_a_report_of_all_keys_reads_nothing_once_for_each_of_them() -> None:
    run(EMPTY, f"ANALYZE {TABLES}")
    fill()
    plan = explain(hot("report_keys", 0, names=None, margin=MARGIN))
    scans = [node for node in nodes(plan) if node.get("CTE Name") != "clock"]
    assert max(node["Actual Rows"] * node["Actual Loops"] for node in scans) < 20 * plan["Actual Rows"], outline(plan)
