"""How values look: states as badges, times with how long ago, JSON indented."""

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from django.contrib import admin
from django.forms import Media
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from dispatcher.models import CallQueue
from dispatcher.reports import KeyState, KeyStatus
from dispatcher.reports.words import brief, in_words, override
from dispatcher.states import State

NOTHING: Final = "-"
STYLE: Final = Media(css={"all": ["dispatcher/admin.css"]})


def badge(state: State | KeyState) -> SafeString:
    """Return a state as a badge; its colours are the style sheet's."""
    return format_html('<span class="dispatcher-badge {}">{}</span>', state.value, state.label)


def key_badge(status: KeyStatus) -> SafeString:
    """Return how a key stands: its badge, which limits stop it, for how long."""
    notes = [
        *([" and ".join(status.stopped_by)] if status.state is KeyState.AT_LIMIT else []),
        *([f"for {brief(status.blocked_until - status.at)}"] if status.blocked_until else []),
        *([f"overridden for {override(status)}"] if status.overridden_until else []),
    ]
    return format_html('<span class="dispatcher-key">{} {}</span>', badge(status.state), ", ".join(notes))


def stamp(at: datetime | None) -> str:
    """Return a time to the second, in the zone of the page."""
    return f"{timezone.localtime(at):%Y-%m-%d %H:%M:%S}" if at else NOTHING


def when(at: datetime | None) -> str:
    """Return a time and how long ago it was, or how far ahead it is."""
    return f"{stamp(at)} ({ago(at)})" if at else NOTHING


def ago(at: datetime | None) -> str:
    """Return how long ago a time was, or how far ahead it is."""
    return in_words(at, timezone.now()) if at else NOTHING


def pretty(value: object) -> SafeString | str:
    """Return JSON, indented."""
    if value is None or value in ([], {}):
        return NOTHING
    return format_html('<pre class="dispatcher-json">{}</pre>', json.dumps(value, indent=2, ensure_ascii=False))


def table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> SafeString:
    """Return a table; what is in its cells is escaped unless it is safe."""
    head = format_html_join("", "<th>{}</th>", ((title,) for title in titles))
    cells = ((format_html_join("", "<td>{}</td>", ((cell,) for cell in row)),) for row in rows)
    body = format_html_join("", "<tr>{}</tr>", cells)
    return format_html(
        '<table class="dispatcher-table"><thead><tr>{}</tr></thead><tbody>{}</tbody></table>', head, body
    )


def key_link(pk: int, name: str) -> SafeString:
    """Return a link to a key's page."""
    return format_html('<a href="{}">{}</a>', reverse("admin:dispatcher_ratelimitkey_change", args=[pk]), name)


def time_shown(field: str, label: str) -> Callable[[Any, CallQueue], str]:
    """Return a column or field of an admin that shows a time of a call in full."""

    @admin.display(description=label)
    def shown(_: Any, call: CallQueue) -> str:
        return when(getattr(call, field))

    return shown


def json_shown(field: str, label: str) -> Callable[[Any, CallQueue], SafeString | str]:
    """Return a field of an admin that shows JSON of a call."""

    @admin.display(description=label)
    def shown(_: Any, call: CallQueue) -> SafeString | str:
        return pretty(getattr(call, field))

    return shown
