"""Releases that an adapter cannot drive are refused with one error; those that it can are not."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from kvassay.harness.contract import ContractError
from kvassay.impls.engines import versions
from kvassay.impls.engines.versions import Call, accepted, importing, installed, require

VERIFIED = ("9.2.0", "9.1.0")


class Pool:
    """An engine's class, as the adapter knows it."""

    def __init__(self, size: int, *, page_size: int = 1) -> None:
        self.size, self.page_size = size, page_size

    def alloc(self, count: int, zero: bool = False) -> int:
        return count

    @staticmethod
    def shared(count: int) -> int:
        return count


@dataclass
class Event:
    hashes: list[int]
    salt: str | None = None


GOOD = [
    Call(Pool, "__init__", 1, ("page_size",)),
    Call(Pool, "alloc", 1, ("zero",)),
    Call(Pool, "shared", 1),
    Call(Event, "__init__", 0, ("hashes", "salt")),
    Call(SimpleNamespace(hash=Pool.shared), "hash", 1),
    Call(sys, "getsizeof", 1),  # compiled, shows no signature of use
]


def test_what_takes_every_call_is_driven() -> None:
    require("pytest", VERIFIED, GOOD)


@pytest.mark.parametrize(
    ("call", "there"),
    [
        (Call(Pool, "free", 1), "there is none"),
        (Call(Pool, "size", 1), "there is none"),
        (Call(Pool, "alloc", 0), "missing a required argument: 'count'"),
        (Call(Pool, "alloc", 3), "too many positional arguments"),
        (Call(Pool, "alloc", 1, ("fill",)), "unexpected keyword argument 'fill'"),
        (Call(Pool, "shared", 0), "missing a required argument"),
        (Call(Pool, "__init__", 2), "too many positional arguments"),
        (Call(Event, "__init__", 0, ("hashes", "name")), "unexpected keyword argument 'name'"),
    ],
)
def test_a_changed_signature_is_one_error(call: Call, there: str) -> None:
    with pytest.raises(ContractError) as caught:
        require(("not-a-package", "pytest"), VERIFIED, [*GOOD, call])
    said = str(caught.value)
    assert said.startswith(f"{installed('pytest')}: expected {call.owner.__name__}.{call.name}(")
    assert there in said
    assert said.endswith("verified with 9.2.0, 9.1.0")
    assert "\n" not in said


def test_the_signature_that_is_there_is_shown() -> None:
    with pytest.raises(ContractError, match=r"it is alloc\(count: 'int', zero: 'bool' = False\)"):
        require("pytest", VERIFIED, [Call(Pool, "alloc", 1, ("fill",))])


def test_a_keyword_of_newer_releases_is_passed_where_it_is_known() -> None:
    newer = Call(Pool, "alloc", 1, where_known=("zero", "fill"))
    assert newer.problem() is None
    assert accepted(Pool.alloc, zero=True, fill=3) == {"zero": True}
    assert accepted(Pool, page_size=4, pages=2) == {"page_size": 4}


def test_a_name_that_is_gone_is_one_error_and_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "_not_imported", {})
    for _ in range(2):
        with (
            pytest.raises(ContractError, match=r"^pytest \S+: .*no_such.*; verified with 9\.2\.0"),
            importing("pytest", VERIFIED),
        ):
            import kvassay.no_such  # noqa: F401
    with pytest.raises(ContractError), importing("pytest", VERIFIED):
        import json  # noqa: F401  the module is there, but the attempt before broke off


def test_an_import_that_works_raises_nothing() -> None:
    with importing("hypothesis", VERIFIED):
        import json  # noqa: F401


def test_a_package_that_is_missing_is_said() -> None:
    assert installed(("no-such-one", "no-such-two")) == "no-such-one or no-such-two (not installed)"
