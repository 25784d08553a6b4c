"""Take the screenshots of docs/images from the stack that `make run` has brought up (PORT=8000); needs Chromium.

.venv/bin/python -m docs.tools.screenshots
"""

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Final

import django
import requests
from django.conf import settings

if TYPE_CHECKING:
    from collections.abc import Iterator

IMAGES: Final = Path(__file__).resolve().parents[1] / "images"
LOGIN: Final = "demo"
WIDTH: Final = 1280
COLUMNS: Final = 104
PAGES: Final = {
    "admin-keys.png": ("ratelimitkey/", 640),
    "admin-key.png": ("ratelimitkey/{key}/change/", 760),
    "admin-calls.png": ("callqueue/?state=available", 620),
    "admin-call.png": ("callqueue/{call}/change/", 760),
}
"""Each image with its page of the admin and its height."""


def main() -> None:
    """Send calls that wait, take every screenshot, and remove what was sent."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome") or sys.exit("Chromium is needed.")
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    django.setup()
    with calls_that_wait() as ids, served_with(session()) as address:
        for name, (path, height) in PAGES.items():
            shoot(chromium, f"{address}/admin/dispatcher/{path.format(**ids)}", IMAGES / name, height)
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "status.html"
            page.write_text(terminal())
            shoot(chromium, page.as_uri(), IMAGES / "rate-limit-status.png", 350, width=920)


@contextmanager
def calls_that_wait() -> "Iterator[dict[str, object]]":
    """Send more than the limits allow; return the ids of a key and of a call; cancel what is left at the end."""
    from dispatcher import api  # noqa: PLC0415 -- Django must be set up
    from dispatcher.models import CallQueue, RateLimitKey  # noqa: PLC0415
    from dispatcher.request import Call  # noqa: PLC0415
    from project.shop.views import place  # noqa: PLC0415

    place(400)
    email = {"method": "send_email", "params": {"to": "a@example.com", "seconds": 20}}
    sent = CallQueue.objects.send_many(
        [Call(call_data=email, keys=["partner", f"tenant:{tenant}"]) for tenant in ("acme", "bolt") for _ in range(20)]
    )
    api.pause("courier")
    try:
        yield {"key": RateLimitKey.objects.get(name="partner").pk, "call": sent[-1].pk}
    finally:
        api.resume("courier")
        api.cancel(CallQueue.objects.waiting().values_list("id", flat=True))


def session() -> str:
    """Return the key of a session in which the demo's user is logged in."""
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, get_user_model  # noqa: PLC0415
    from django.contrib.sessions.backends.db import SessionStore  # noqa: PLC0415

    user = get_user_model().objects.get(username=LOGIN)
    store = SessionStore()
    store[SESSION_KEY] = str(user.pk)
    store[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[0]
    store[HASH_SESSION_KEY] = user.get_session_auth_hash()
    store.set_expiry(timedelta(minutes=5))
    store.create()
    return str(store.session_key)


@contextmanager
def served_with(key: str) -> "Iterator[str]":
    """Pass requests on to the admin with the session's cookie; give the address."""
    admin = f"http://127.0.0.1:{os.environ.get('PORT', '8000')}"

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = requests.get(admin + self.path, cookies={settings.SESSION_COOKIE_NAME: key}, timeout=30)
            self.send_response(found.status_code)
            self.send_header("Content-Type", found.headers.get("Content-Type", "text/html"))
            self.end_headers()
            self.wfile.write(found.content)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


def terminal() -> str:
    """Return what rate_limit_status prints in a terminal, as a page."""
    from django.utils.termcolors import colorize  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from dispatcher.management import key_table  # noqa: PLC0415
    from dispatcher.reports import rate_limit_status  # noqa: PLC0415

    console = Console(record=True, width=COLUMNS, force_terminal=True, file=StringIO())
    keys = rate_limit_status()
    console.print(Text("$ python manage.py rate_limit_status", style="bold"))
    console.print(Text.from_ansi(key_table.table(keys, COLUMNS, colorize)))
    body = console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
    style = (
        "body{background:#1e1e2e;margin:24px;color:#e0e0e0} span{filter:brightness(1.7)} "
        "pre,code{font:20px/1.5 'DejaVu Sans Mono',monospace}"
    )
    return f"<!doctype html><meta charset=utf-8><style>{style}</style>{body}"


def shoot(chromium: str, address: str, image: Path, height: int, *, width: int = WIDTH) -> None:
    """Write a screenshot of a page."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=3000"]
    subprocess.run(
        [chromium, *options, f"--window-size={width},{height}", f"--screenshot={image}", address],
        check=True,
        capture_output=True,
        timeout=60,
    )
    print(f"{image.name}: {image.stat().st_size / 1000:.0f} KB")


if __name__ == "__main__":
    main()
