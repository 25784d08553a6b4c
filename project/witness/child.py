"""The witness as one process of a stack: start it, and read what it publishes."""

import re
import sys
import time
from typing import Any

import requests

from project.processes import Stack, logged

LISTENING = r"^listening at (\S+)$"
TIMEOUT = 30.0


def start_witness(stack: Stack, *, limits: str = "project.shop.limits") -> str:
    """Start a witness of a module's limits; give its address to later children (WITNESS_URL), and return it."""
    command = [sys.executable, "-m", "project.witness", limits]
    witness = stack.start("witness", command, ready=logged(LISTENING))
    witness.wait_ready(time.monotonic() + TIMEOUT)
    url = str(re.findall(LISTENING, witness.output(), re.MULTILINE)[-1])
    stack.env["WITNESS_URL"] = url
    return url


def read(url: str, path: str) -> Any:
    """Return what the witness says at a path: `limits` or `record`."""
    with requests.Session() as session:
        # It is on this machine: no proxy of the environment is to be asked.
        session.trust_env = False
        answer = session.get(f"{url}/{path}", timeout=TIMEOUT)
        answer.raise_for_status()
        return answer.json()
