"""Checks of what callers pass in, shared by the built-in cache managers.

Each function returns the value in the form the manager works with, or raises `ValueError` or
`KeyError` that says what was given and what was expected. They run before a manager touches its
state, so that a misuse changes nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Mapping, Sequence
from operator import index
from sys import byteorder
from typing import Any, TypeVar

Live = TypeVar("Live")


def whole(value: Any, name: str, low: int, high: int | None = None) -> int:
    """`value` as an int with low <= value <= high; bools are not numbers here."""
    number: int | None = value
    if type(value) is not int:
        try:
            number = None if isinstance(value, bool) else index(value)
        except TypeError:
            number = None
    if number is None or number < low or (high is not None and number > high):
        bound = f">= {low}" if high is None else f"in {low}..{high}"
        raise ValueError(f"{name}: expected an int {bound}, got {value!r}")
    return number


def token_array(tokens: Sequence[int]) -> array[int]:
    """The tokens as a new array of unsigned 64-bit numbers, at least one, none above 2**63 - 1.

    The conversion itself refuses what is no integer and what is negative, in one pass over the
    Python objects. A bool counts as the integer that it is.
    """
    try:
        values = array("Q", list(tokens) if isinstance(tokens, _BYTES) else tokens)
    except OverflowError:
        raise ValueError(f"tokens: expected ints in 0..2**63 - 1, got {_outside(tokens)}") from None
    except TypeError:
        raise ValueError(f"tokens: expected a sequence of ints, got {tokens!r}") from None
    if not values:
        raise ValueError("tokens: expected at least one token, got none")
    # No byte with the highest bit set among the highest bytes: what ASCII is.
    if not values.tobytes()[_HIGHEST_BYTES].isascii():
        raise ValueError(f"tokens: expected ints in 0..2**63 - 1, got {max(values)}")
    return values


_BYTES = (bytes, bytearray)  # would be taken for the memory of an array
_HIGHEST_BYTES = slice(7 if byteorder == "little" else 0, None, 8)


def one_token(token: int) -> int:
    """The token as `token_array` would hold it."""
    return token_array([token])[0]


def _outside(tokens: Sequence[int]) -> int:
    return next(token for token in map(index, tokens) if not 0 <= token < 1 << 64)


def field_of(key: Any, name: str) -> Any:
    """One field of a `CacheKey` or of whatever looks like one."""
    try:
        return getattr(key, name)
    except AttributeError:
        raise ValueError(f"key: expected a CacheKey, but {key!r} has no {name}") from None


def new_request(request: Any, live: Container[str]) -> str:
    """An id that no live request has."""
    if not isinstance(request, str):
        raise ValueError(f"request: expected a str, got {request!r}")
    if request in live:
        raise ValueError(f"request: {request!r} is live already; expected a new id")
    return request


def new_children(children: Any, live: Container[str]) -> list[str]:
    """At least one id for the children of a fork, each of them new."""
    if isinstance(children, str) or not isinstance(children, Sequence) or not children:
        raise ValueError(f"children: expected a sequence of new ids, got {children!r}")
    names = [new_request(child, live) for child in children]
    if len(set(names)) < len(names):
        raise ValueError(f"children: expected distinct ids, got {names!r}")
    return names


def live_request(request: Any, live: Mapping[str, Live]) -> Live:
    """The state of a live request."""
    try:
        return live[request]
    except (KeyError, TypeError):
        raise KeyError(f"request: {request!r} is not live; expected the id of a live one") from None
