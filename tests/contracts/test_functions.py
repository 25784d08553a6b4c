import pytest
from django.db import connection
from tests.clock import stopped_clock, T0
from dispatcher.sql import functions, statements


@pytest.mark.django_db
def test_a_function_sees_the_stopped_clock():
    with connection.cursor() as c:
        c.execute(statements.expand("SELECT {{@clock}}()"))
        print(c.fetchone())
        with stopped_clock():
            c.execute(statements.expand("SELECT {{@clock}}()"))
            assert c.fetchone()[0] == T0
        c.execute("SELECT proconfig, proacl from pg_proc where proname=%s", [functions.installed_name("clock")])
        print(c.fetchone())
