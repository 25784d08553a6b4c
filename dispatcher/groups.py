"""Groups: keys that stand for any one of several identical keys, by the beginning of their names. Pure."""

import re
from collections.abc import Collection
from itertools import permutations
from typing import Final

from dispatcher import validate
from dispatcher.errors import CallInvalid

_QUEUE: Final = "queue:"
_FORM: Final = 'give the beginning that the names share and one * at the end, such as any_of("egress:*").'


class AnyOf(str):
    """The name of a group in the `keys` of a call, made by `any_of`."""

    __slots__ = ()


def any_of(pattern: str) -> AnyOf:
    """Return a name for the `keys` of a call: it spends any one of the keys that match, whichever has room.

    pattern: the beginning of their names and a `*`: "egress:*". The task learns the key from `current_call().key`.
    Raises CallInvalid for another pattern.
    """
    if not isinstance(pattern, str) or re.fullmatch(validate.GROUP_PATTERN, pattern) is None:
        raise CallInvalid("any_of", f"{pattern!r} is not a pattern of key names; {_FORM}")
    if len(pattern) > validate.LONGEST_NAME:
        raise CallInvalid(
            "any_of", f"the pattern has {len(pattern)} characters, over {validate.LONGEST_NAME}; shorten it."
        )
    if has_member(pattern, _QUEUE) or pattern.startswith(_QUEUE):
        raise CallInvalid("any_of", f"{pattern!r} matches the keys of queues, which count for their own calls only.")
    return AnyOf(pattern)


def key_name(name: object) -> str:
    """Return the name of a key, or of a group if `any_of` has made it. Raises CallInvalid."""
    if isinstance(name, AnyOf):
        return str(name)
    if isinstance(name, str) and is_group(name):
        raise CallInvalid("keys", f"{name!r} has a *; for any one of the keys that match give any_of({name!r}).")
    return validate.key_name(name)


def is_group(name: str) -> bool:
    """Return whether this is the name of a group."""
    return name.endswith("*")


def has_member(group: str, name: str) -> bool:
    """Return whether a key with this name is a member of a group."""
    return name.startswith(group[:-1]) and not is_group(name)


def check_apart(names: Collection[str]) -> None:
    """Check that no key which a call names could also be chosen for a group of it. Raises CallInvalid."""
    groups = [name for name in names if is_group(name)]
    for group in groups:
        if named := next((name for name in names if has_member(group, name)), None):
            raise CallInvalid(
                "keys", f"any_of({group!r}) may choose {named!r}, which the call names itself: give one of the two."
            )
    for one, other in permutations(groups, 2):
        if other.startswith(one[:-1]):
            raise CallInvalid(
                "keys", f"any_of({one!r}) and any_of({other!r}) may choose the same key: give one of them."
            )
