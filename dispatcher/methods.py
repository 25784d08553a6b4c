"""The methods that `call_data` may name: those of HTTP, and the handlers that a project registers."""

from collections.abc import Callable, Mapping
from http import HTTPMethod
from typing import Any, Final

from dispatcher.errors import CallInvalid

Handler = Callable[..., Any]

HTTP: Final = frozenset(method.lower() for method in HTTPMethod if method not in {"CONNECT", "TRACE"})
registered: Final[dict[str, Handler]] = {}
_FIELDS: Final = ("url", "params", "data", "json", "headers", "cookies", "files", "timeout", "allow_redirects")
"""What the params of an HTTP request may have: what else `requests` takes reaches files and proxies of the worker."""
LONGEST_S: Final = 3_600
"""The longest `timeout` of an HTTP request."""
_FORM: Final = 'give {"method": "post", "params": {"url": ...}}, or the name of a registered handler as method.'


def check(call_data: object) -> None:
    """Check what can be known at the send: the form, and the address of an HTTP request.

    Raises CallInvalid naming what is missing or unknown. A handler may be registered in the worker alone.
    """
    if not isinstance(call_data, Mapping):
        raise CallInvalid("call_data", f"{type(call_data).__name__} must be a mapping; {_FORM}")
    if unknown := [name for name in call_data if name not in ("method", "params")]:
        raise CallInvalid(f"call_data.{unknown[0]}", f"is not known here; {_FORM}")
    method, params = call_data.get("method"), call_data.get("params", {})
    if not isinstance(method, str) or not method:
        raise CallInvalid("call_data.method", f"{method!r} must be a name; {_FORM}")
    if not isinstance(params, Mapping):
        raise CallInvalid("call_data.params", f"{type(params).__name__} must be a mapping of names to values.")
    is_request = method not in registered and method.lower() in HTTP
    if is_request and not (isinstance(params.get("url"), str) and params["url"]):
        raise CallInvalid("call_data.params.url", f"is missing; {method} is an HTTP request: name its address.")
    if is_request and (unknown := [name for name in params if name not in _FIELDS]):
        raise CallInvalid(f"call_data.params.{unknown[0]}", f"is not known here; known are {', '.join(_FIELDS)}.")
    timeout = params.get("timeout", LONGEST_S)
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if is_request and not (is_number and 0 < timeout <= LONGEST_S):
        raise CallInvalid("call_data.params.timeout", f"{timeout!r} must be a number above 0, up to {LONGEST_S} (s).")
