"""Start the witness as one process of a stack."""

import re
import sys
import time

from project.processes import Stack, logged

LISTENING = r"^listening at (\S+)$"


def start_witness(stack: Stack, *, timeout: float = 30.0) -> str:
    """Start the witness, tell the later children of the stack its address (WITNESS_URL), and return it."""
    witness = stack.start("witness", [sys.executable, "-m", "project.witness"], ready=logged(LISTENING))
    witness.wait_ready(time.monotonic() + timeout)
    url = re.findall(LISTENING, witness.output(), re.MULTILINE)[-1]
    stack.env["WITNESS_URL"] = url
    return str(url)
