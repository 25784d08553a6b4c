"""Read settings from the environment, or from the files that it names, as Docker and Kubernetes mount secrets."""

import os
from pathlib import Path
from urllib.parse import quote, urlsplit

from django.core.exceptions import ImproperlyConfigured


def read(name: str, default: str = "") -> str:
    """Return a variable, or the content of the file that `name`_FILE names; `default` if neither is set.

    Raises ImproperlyConfigured if both are set, or if the file cannot be read or is empty.
    """
    value, path = os.environ.get(name), os.environ.get(f"{name}_FILE")
    if value and path:
        message = f"Both {name} and {name}_FILE are set: unset one."
        raise ImproperlyConfigured(message)
    return _content(f"{name}_FILE", path) if path else value or default


def read_list(name: str, default: str = "") -> list[str]:
    """Return the items of a variable that are separated by commas."""
    return [item.strip() for item in read(name, default).split(",") if item.strip()]


def with_password(url: str, password: str) -> str:
    """Return the URL with this password of its user; unchanged if the password is empty, or the URL has no host."""
    parts = urlsplit(url)
    if not password or not parts.netloc:
        return url
    credentials, _, server = parts.netloc.rpartition("@")
    user = credentials.partition(":")[0]
    return parts._replace(netloc=f"{user}:{quote(password, safe='')}@{server}").geturl()


def _content(name: str, path: str) -> str:
    try:
        content = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        message = f"{name}: cannot read {path}: {error}"
        raise ImproperlyConfigured(message) from error
    if not content:
        message = f"{name}: {path} is empty."
        raise ImproperlyConfigured(message)
    return content
