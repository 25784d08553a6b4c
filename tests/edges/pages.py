"""The pages of the admin, as the tests read and use them."""

from typing import Any

from django.db.models import Model
from django.test import Client
from django.urls import reverse


def url_of(model: str, page: str = "changelist", *args: object) -> str:
    """Return the URL of a page of the admin."""
    return reverse(f"admin:dispatcher_{model}_{page}", args=args)


CALLS, KEYS = url_of("callqueue"), url_of("ratelimitkey")


def url_of_row(row: Model) -> str:
    """Return the URL of a row's page."""
    return url_of(str(row._meta.model_name), "change", row.pk)


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
