"""How the shop reaches its third parties: over one connection that each worker process keeps open."""

import os
from functools import cache

import requests
from celery.signals import worker_process_init
from django.db import connection

TIMEOUT = 30.0


def ask(path: str, *, keys: list[str], call: str, seconds: float, failures: int = 0) -> None:
    """Ask a third party for something that takes `seconds` and spends `keys`; HTTPError if it will not.

    `failures` is how often it shall fail before it does what call number `call` asks for.
    """
    asked = {"keys": keys, "call": call, "seconds": seconds, "failures": failures}
    _session().post(f"{_address()}/{path}", json=asked, timeout=TIMEOUT).raise_for_status()


@worker_process_init.connect
def connect(**_: object) -> None:
    """Connect before the first call starts: a first request that has to connect would arrive late."""
    connection.ensure_connection()
    _session().get(f"{_address()}/limits", timeout=TIMEOUT).raise_for_status()


@cache
def _session() -> requests.Session:
    """Return the session of this process, made at first use, which is after the fork."""
    session = requests.Session()
    # They are on this machine: no proxy of the environment is to be asked.
    session.trust_env = False
    return session


def _address() -> str:
    """Return where the third parties are: all of them are played by the witness."""
    return os.environ["WITNESS_URL"]
