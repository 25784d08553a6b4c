"""Authentication and permissions: tokens with scopes, Django sessions, and the rate limits of tokens."""

import hashlib
import secrets
from base64 import b64decode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Final

from django.contrib.auth import get_user_model
from django.http import HttpRequest
from django.middleware.csrf import CsrfViewMiddleware

from dispatcher import sql
from dispatcher.conf import conf
from dispatcher.errors import CallInvalid
from dispatcher.history import Actor
from dispatcher.models import RateLimitKey
from dispatcher.ojs.models import ApiToken
from dispatcher.ojs.wire import Problem

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractUser
from typing import Any

from django.core import checks

from dispatcher.errors import ConfigurationError

_PERMISSIONS: Final = {"send": "dispatcher.add_callqueue", "read": "dispatcher.view_callqueue"}
"""The permission in the admin that a user needs to do the same over HTTP.

Every other verb needs a superuser.
"""
_PAUSED: Final = timedelta(seconds=60)
"""The Retry-After of a token whose key is paused; a pause has no known end."""
SAFE: Final = ("GET", "HEAD", "OPTIONS")
SCOPES: Final = ("send", "fetch", "read", "admin", "key")


@dataclass(frozen=True, kw_only=True)
class Access:
    """The permissions of a request. `headers`: the rate limit headers of its token.

    Two are equal if the same credentials had the same scopes, so that one check of `is_valid` counts for both.
    credentials: the hash of the token, or the user's id; a name can pass from one token to another.
    current_scopes: the scopes that the same credentials have when it is called.
    """

    scopes: tuple[str, ...] = ()
    name: str = ""
    credentials: str = ""
    is_known: bool = False
    headers: dict[str, str] = field(default_factory=dict, compare=False)
    current_scopes: Callable[[], Sequence[str]] = field(default=tuple, compare=False)

    def allows(self, verb: str, queue: str | None = None) -> bool:
        """Return whether this verb is allowed, on this queue if one is given; `admin` allows every verb."""
        wanted = [scope.partition(":") for scope in self.scopes]
        return any(
            name in (verb, "admin") and (not glob or (queue is not None and fnmatchcase(queue, glob)))
            for name, _, glob in wanted
        )

    def require(self, verb: str, *queues: str) -> None:
        """Raise Problem unless this verb is allowed on all these queues."""
        for queue in queues or (None,):
            if not self.allows(verb, queue):
                self._refuse(verb, queue)

    def names(self, key: str) -> bool:
        """Return whether jobs may name this key, or all keys that a name with a * at its end stands for.

        Who sends to some queues only names the keys that its scopes `key:PATTERN` allow.
        """
        if self.allows("send"):
            return True
        prefix = key.removesuffix("*")
        globs = [glob for name, _, glob in (scope.partition(":") for scope in self.scopes) if name == "key"]
        return any(not glob or (fnmatchcase(prefix, glob) and (prefix == key or glob[-1] == "*")) for glob in globs)

    def require_any(self) -> None:
        """Raise Problem if the request has no scope at all."""
        if not self.scopes:
            self._refuse("do anything", None)

    def actor(self, reason: str = "") -> Actor:
        """Return the actor of the request, for the history."""
        return Actor(name=self.name, source="http", reason=reason)

    def is_valid(self) -> bool:
        """Return whether the credentials still have their scopes; a waiting request checks this before each read."""
        return set(self.scopes) <= set(self.current_scopes())

    def _refuse(self, verb: str, queue: str | None) -> None:
        if not self.is_known:
            challenge = {"WWW-Authenticate": "Bearer"}
            raise Problem(401, "unauthenticated", "This request needs credentials.", headers=challenge)
        where = "" if queue is None else f" on queue {queue!r}"
        raise Problem(403, "permission_denied", f"These credentials do not allow to {verb}{where}.")


@dataclass(frozen=True, kw_only=True)
class _Token:
    name: str
    scopes: list[str]
    is_limited: bool


@dataclass(frozen=True, kw_only=True)
class _Spent:
    rate_limit: int | None
    is_closed: bool
    blocked_until: datetime | None
    is_allowed: bool
    remaining: int | None
    resets_at: datetime | None
    now: datetime


def authenticate(request: HttpRequest) -> Access:
    """Return the access of a request, and count the request against its token's rate limit. Raises Problem."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token:
        return _authenticate_token(token.strip())
    # A password that is not a token may be meant for a proxy.
    if scheme.lower() == "basic" and _find_token(_digest(password := _password(token))):
        return _authenticate_token(password)
    user = getattr(request, "user", None)
    if user is not None and user.is_authenticated:
        if request.method not in SAFE:
            check = CsrfViewMiddleware(lambda _: None)  # type: ignore[arg-type]
            check.process_request(request)
            if check.process_view(request, lambda _: None, (), {}) is not None:  # type: ignore[arg-type, return-value]
                raise Problem(403, "permission_denied", "The CSRF token is missing or invalid: send X-CSRFToken.")
        return Access(
            scopes=tuple(_scopes_of(user)),
            name=user.get_username(),
            credentials=f"user:{user.pk}",
            is_known=True,
            current_scopes=partial(_scopes_of_user, user.pk),
        )
    return Access(scopes=tuple(conf().http_anonymous), current_scopes=lambda: conf().http_anonymous)


def make_token(name: str, scopes: Sequence[str], expires_at: datetime | None = None) -> str:
    """Create a token and return it; only its hash is stored. The name of a revoked token can be used again.

    Raises CallInvalid for an unknown scope, IntegrityError for a name that is in use.
    """
    token = secrets.token_urlsafe(32)
    tokens = ApiToken.objects
    made = {"digest": _digest(token), "scopes": check_scopes(scopes), "expires_at": expires_at, "is_active": True}
    if not tokens.filter(name=name, is_active=False).update(**made):
        tokens.create(name=name, **made)
    return token


def _scopes_of(user: "AbstractUser") -> list[str]:
    if not user.is_staff:
        return []
    # All but `key`, which `send` on all queues includes.
    return [
        scope
        for scope in SCOPES[:-1]
        if user.is_superuser or (scope in _PERMISSIONS and user.has_perm(_PERMISSIONS[scope]))
    ]


def check_scopes(given: Sequence[str]) -> list[str]:
    """Return what a token may do. Raises CallInvalid."""
    for scope in given:
        if scope.partition(":")[0] not in SCOPES:
            hint = f"give {', '.join(SCOPES)}, or send:mail* for some queues and key:smtp* for some keys only."
            raise CallInvalid("scopes", f"{scope!r} is not a scope; {hint}")
    return list(given)


def _scopes_of_user(number: int) -> list[str]:
    user = get_user_model().objects.filter(pk=number, is_active=True).first()
    return [] if user is None else _scopes_of(user)


def _authenticate_token(token: str) -> Access:
    digest = _digest(token)
    known = _find_token(digest)
    if known is None:
        message = "This token is unknown or has expired."
        raise Problem(401, "unauthenticated", message, headers={"WWW-Authenticate": "Bearer"})
    name = f"token:{known.name}"
    return Access(
        scopes=tuple(known.scopes),
        name=name,
        credentials=digest,
        is_known=True,
        headers=_spend(name) if known.is_limited else {},
        current_scopes=lambda: found.scopes if (found := _find_token(digest)) else (),
    )


def _password(credentials: str) -> str:
    """Return the password of HTTP Basic (RFC 7617), for tools without bearer tokens; the user name is ignored."""
    try:
        return b64decode(credentials, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def _find_token(digest: str) -> _Token | None:
    """Return the token with this hash, unless it is revoked or has expired by the database's clock."""
    return next(iter(sql.fetch_checked("find_token", _Token, {"digest": digest})), None)


def _spend(name: str) -> dict[str, str]:
    """Count one request against the token's rate limit, if it has one. Raises Problem if it is exhausted or paused."""
    with sql.atomic():
        # Its use is counted by a later statement, whose snapshot is newer than the lock.
        if not RateLimitKey.objects.select_for_update(no_key=True).filter(name=name):
            return {}
        (spent,) = sql.fetch("spend_window", _Spent, {"name": name})
    headers = {}
    if spent.rate_limit is not None and spent.resets_at is not None:
        headers = {
            "X-RateLimit-Limit": str(spent.rate_limit),
            "X-RateLimit-Remaining": str(spent.remaining if spent.is_allowed else 0),
            "X-RateLimit-Reset": str(ceil(spent.resets_at.timestamp())),
        }
    if not spent.is_allowed:
        opens_at = (spent.blocked_until or spent.now + _PAUSED) if spent.is_closed else spent.resets_at or spent.now
        wait = max(1, ceil((opens_at - spent.now).total_seconds()))
        message = f"Too many requests. Try again in {wait} s."
        raise Problem(429, "rate_limited", message, is_retryable=True, headers={**headers, "Retry-After": str(wait)})
    return headers


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


@checks.register("dispatcher")
def check_anonymous(**_: Any) -> list[checks.CheckMessage]:
    """Check the scopes of requests without credentials: E002."""
    try:
        given = conf().http_anonymous
    except ConfigurationError:
        # Which dispatcher.checks reports.
        return []
    return [
        checks.Error(
            f"DISPATCHER['http_anonymous'] has {scope!r}: give scopes of {', '.join(SCOPES)}, such as read or "
            "fetch:mail*.",
            id="dispatcher.E002",
        )
        for scope in given
        if str(scope).partition(":")[0] not in SCOPES
    ]
