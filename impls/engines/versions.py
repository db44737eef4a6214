"""What an adapter asks of an engine's release, checked once, when the engine is imported.

An adapter states the releases that it was verified with and the calls that it makes. Any release
that takes these calls is driven; one that does not is refused with a single error, which names the
package and its release, the class and the method, what was asked and what is there, and the
releases that are known to work. A version number decides only what no signature shows.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from kvassay.harness.contract import ContractError


@dataclass(frozen=True)
class Call:
    """One way in which an adapter calls a class of the engine, or a method or function of it."""

    owner: Any
    """A class or a module."""
    name: str
    """Of the method or function; ``__init__`` for a new instance."""
    positional: int = 0
    """How many arguments are given by position, `self` not counted."""
    keywords: tuple[str, ...] = ()
    """Which are given by name."""
    where_known: tuple[str, ...] = ()
    """Which are given by name to the releases that take them (`accepted`)."""

    @property
    def wanted(self) -> str:
        """As a call, to be shown."""
        places = [*("_" * self.positional), *(f"{name}=" for name in self.keywords)]
        return f"{_name(self.owner)}.{self.name}({', '.join(places)})"

    def problem(self) -> str | None:
        """What is there instead; None if the call can be made."""
        found = getattr(self.owner, self.name, None)
        if not callable(found):
            return "there is none"
        signature = _signature(self.owner, self.name)
        if signature is None:
            return None
        try:
            given = [*self.keywords, *(n for n in self.where_known if n in signature.parameters)]
            signature.bind(*range(self.positional), **dict.fromkeys(given))
        except TypeError as error:
            return f"it is {self.name}{signature}: {error}"
        return None


def require(package: str | Sequence[str], verified: Sequence[str], calls: Sequence[Call]) -> None:
    """Raise `ContractError` for the first call that the installed release does not take.

    `package` is a distribution, or several of which one is installed; `verified` are the releases
    that the adapter was run with, in any order.
    """
    for call in calls:
        problem = call.problem()
        if problem is not None:
            raise ContractError(
                f"{installed(package)}: expected {call.wanted}, but {problem}; "
                f"verified with {', '.join(verified)}"
            )


@contextmanager
def importing(package: str | Sequence[str], verified: Sequence[str]) -> Iterator[None]:
    """`ContractError` for a name that is not, or no longer, where the adapter imports it from.

    Every later attempt is refused too: it would find modules of which only a part was executed.
    """
    name = installed(package)
    if name in _not_imported:
        raise ContractError(_not_imported[name])
    try:
        yield
    except ImportError as error:
        _not_imported[name] = f"{name}: {error}; verified with {', '.join(verified)}"
        raise ContractError(_not_imported[name]) from error


_not_imported: dict[str, str] = {}
"""By package and release: why its import failed in this process."""


def installed(package: str | Sequence[str]) -> str:
    """Name and version of the distribution that is installed, for a message."""
    names = [package] if isinstance(package, str) else package
    for name in names:
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return f"{' or '.join(names)} (not installed)"


def at_least(package: str, wanted: str) -> bool:
    """Whether the installed release is this one or newer; true where none is installed."""
    try:
        there = version(package)
    except PackageNotFoundError:
        return True
    return _numbers(there) >= _numbers(wanted)


def _numbers(release: str) -> list[int]:
    return [int(part) for part in release.split(".")[:3]]


def accepted(function: Any, **keywords: Any) -> dict[str, Any]:
    """Those of the keywords that a function or class takes: for what only newer releases ask."""
    known = inspect.signature(function).parameters
    return {name: value for name, value in keywords.items() if name in known}


def _signature(owner: Any, name: str) -> inspect.Signature | None:
    """Without `self`; None where the engine shows none, as of compiled code."""
    try:
        if name == "__init__":
            return inspect.signature(owner)
        signature = inspect.signature(getattr(owner, name))
    except (TypeError, ValueError):
        return None
    if inspect.isclass(owner) and inspect.isfunction(inspect.getattr_static(owner, name)):
        return signature.replace(parameters=list(signature.parameters.values())[1:])
    return signature


def _name(owner: Any) -> str:
    return getattr(owner, "__qualname__", None) or getattr(owner, "__name__", repr(owner))
