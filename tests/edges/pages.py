"""The pages of the admin, as the tests read and use them."""

from typing import Any

from django.db import connection
from django.db.models import Model
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from dispatcher.admin.base import MANY


def url_of(model: str, page: str = "changelist", *args: object, app: str = "dispatcher") -> str:
    """Return the URL of a page of the admin."""
    return reverse(f"admin:{app}_{model}_{page}", args=args)


CALLS, KEYS = url_of("callqueue"), url_of("ratelimitkey")


def url_of_row(row: Model) -> str:
    """Return the URL of a row's page."""
    return url_of(str(row._meta.model_name), "change", row.pk, app=row._meta.app_label)


def read(client: Client, page: str | Model, **query: str) -> str:
    """Return what a page shows: one of this URL, or that of a row."""
    url = url_of_row(page) if isinstance(page, Model) else page
    return client.get(url, query, follow=True).content.decode()


def post(client: Client, page: str | Model, **fields: Any) -> str:
    """Submit a form, and return the page that follows."""
    url = url_of_row(page) if isinstance(page, Model) else page
    return client.post(url, fields, follow=True).content.decode()


def act(client: Client, url: str, action: str, *rows: Model, **more: object) -> str:
    """Choose an action for these rows of a list, and return the page that follows."""
    return post(client, url, action=action, _selected_action=[row.pk for row in rows], **more)


def assert_bounded(client: Client, url: str, table: str) -> None:
    """Assert that a list counts its rows up to a bound, and sorts by no column that a reader chooses."""
    orders = []
    for query in ("", "?o=-1", "?o=2.-3"):
        with CaptureQueriesContext(connection) as queries:
            page = read(client, url + query)
        asked = [each["sql"] for each in queries if f'FROM "{table}"' in each["sql"]]
        counts = [each for each in asked if "COUNT(" in each]
        assert counts
        assert all(f"LIMIT {MANY}" in each for each in counts)
        orders.append([each.partition("ORDER BY")[2] for each in asked])
        assert "sortable" not in page
    assert orders[0] == orders[1] == orders[2]
