"""Threads of the operating system, also where gevent replaces them."""

import sys
from collections.abc import Callable
from threading import Thread


def start(work: Callable[[], None], *, name: str) -> None:
    """Start a thread that ends with its process; a real one, also where gevent replaces threads by greenlets."""
    gevent = sys.modules.get("gevent")
    if gevent is not None and gevent.monkey.is_module_patched("threading"):
        gevent.get_hub().threadpool.spawn(work)
    else:
        Thread(target=work, name=name, daemon=True).start()
