"""The near side of `exec:`: cache managers in another process, another interpreter, any language.

``--impl exec:"python adapter.py"`` starts the command and talks JSON lines over its stdin and
stdout, one reply to one message, each with the ``id`` of its message::

    > {"id":0,"op":"hello","contract":1}
    < {"id":0,"contract":1,"name":"mine","kind":"CacheManager","declaration":{...}}
    > {"id":1,"op":"new","num_blocks":8,"block_size":4,"methods":["admit",...]}
    < {"id":1,"num_blocks":8,"block_size":4}
    > {"id":2,"op":"admit","args":["a",{"tokens":[1,2,3]}],"look":["take_copies","counters"]}
    < {"id":2,"result":0,"tables":{"a":[0]},"take_copies":[],"counters":{"free":7,...}}
    > {"id":3,"op":"append","args":["a",[4,5]]}
    < {"id":3,"error":{"type":"OutOfBlocks","text":"OOM: ..."}}

A reply carries the tables that have changed since the last one (or all), and what ``look`` asks
for: so a checked operation is one round trip. What a reply leaves out, or holds as null, is asked
for by itself when it is wanted. Nothing is looked at before the harness itself looks for the first
time, so that a run without inspection is one on the far side too. The whole protocol, for authors
in other languages, is in ``impls/bridge/README.md``.

Whatever goes wrong with the process (it dies, hangs, prints something else, answers another
message, speaks another version) is a `BridgeError`, which a run reports as the error of that
operation; the process is ended, and the next instance gets a new one.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import index
from pathlib import Path
from typing import Any

from kvassay.harness.contract import (
    CAPABILITY_METHODS,
    CONTRACT_VERSION,
    METHODS,
    CacheEvent,
    CacheKey,
    CacheManager,
    Capability,
    ContractError,
    Counters,
    Declaration,
    EventKind,
    Node,
    OutOfBlocks,
    Span,
)
from kvassay.harness.far import BridgeError, Far, end_all, short
from kvassay.harness.registry import Registration, UnknownImplementation, add

PREFIX = "exec:"
NOT_CARRIED = frozenset({Capability.GROUPS, Capability.ATTEND})
"""Capabilities with more to say than the protocol has words for."""
LIMIT = 10.0
"""Seconds for one operation."""
LIMIT_AFTER_HANG = 1.0
"""The same for a command that has hung before: shrinking it would take minutes otherwise."""
START_LIMIT = 60.0
"""Seconds until a new process says hello; they are not part of any operation."""


class FarError(Exception):
    """An error of a type that the contract does not know, raised in the process."""


# ------------------------------------------------------------------------------------------- data


def _plain(value: Any) -> Any:
    """What JSON does not know."""
    if isinstance(value, CacheKey):
        parts = {"tokens": value.tokens, "salt": value.salt, "adapter": value.adapter}
        key = {name: part for name, part in parts.items() if part is not None}
        return {**key, "spans": value.spans} if value.spans else key
    if isinstance(value, Span):
        return [value.start, value.length, value.content]
    return list(value) if hasattr(value, "__iter__") else index(value)


_encode = json.JSONEncoder(separators=(",", ":"), default=_plain).encode


def _frozen(value: Any) -> Any:
    """An opaque id; a list stands for a tuple."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _event(raw: Mapping[str, Any]) -> CacheEvent:
    return CacheEvent(
        EventKind(raw["kind"]),
        tuple(map(_frozen, raw.get("entries") or ())),
        _frozen(raw.get("parent")),
        tuple(raw.get("tokens") or ()),
        raw.get("salt"),
        raw.get("adapter"),
        tuple(Span(*span) for span in raw.get("spans") or ()),
    )


def _node(raw: Mapping[str, Any]) -> Node:
    values = tuple(raw["tokens"]), tuple(raw["values"])
    return Node(_frozen(raw["id"]), _frozen(raw.get("parent")), *values, raw.get("locks", 0))


_FORMS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "block_table": ("[block, ...]", lambda value: [*_listed(value)]),
    "take_copies": ("[[source, destination], ...]", lambda v: [(s, d) for s, d in _listed(v)]),
    "counters": ('{"free": 1, "cached": 2, "used": 3}', lambda value: Counters(**value)),
    "refcounts": ("[[block, count], ...]", lambda value: dict(_listed(value))),
    "take_events": ("a list of events", lambda value: [_event(raw) for raw in _listed(value)]),
    "walk": ("a list of nodes", lambda value: [_node(raw) for raw in _listed(value)]),
}
"""Method -> what its result looks like in the protocol, and how to read it."""


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("no list")
    return value


def _read(method: str, value: Any) -> Any:
    """A result as the contract has it."""
    if method not in _FORMS:
        return value
    form, read = _FORMS[method]
    try:
        return read(value)
    except (TypeError, ValueError, KeyError, AttributeError):
        raise BridgeError(f"{method}: expected {form}, got {short(value)}") from None


def _error(raw: Any) -> Exception:
    """The contract's error for one that was sent."""
    if not isinstance(raw, dict) or not isinstance(raw.get("type"), str):
        return BridgeError(f'error: expected {{"type": ..., "text": ...}}, got {short(raw)}')
    kind, text = raw["type"], str(raw.get("text", ""))
    if kind == "OutOfBlocks" or (kind == "RuntimeError" and text.startswith("OOM")):
        return OutOfBlocks(text.removeprefix("OOM").lstrip(": "))
    known = {"ValueError": ValueError, "KeyError": KeyError, "ContractError": ContractError}
    return known[kind](text) if kind in known else FarError(f"{kind}: {text}")


# ---------------------------------------------------------------------------------------- manager


def _operation(name: str) -> Callable[..., Any]:
    def call(self: FarManager, *args: Any, **named: Any) -> Any:
        return _read(name, self.operate(name, args, named))

    call.__name__ = name
    return call


class FarManager:
    """A cache manager whose every method is one round trip, or none."""

    def __init__(self, far: Far, declared: Declaration, num_blocks: int, block_size: int) -> None:
        self._far = far
        self._look = ""
        self._fresh: dict[str, Any] = {}
        """What the last reply has shown; good until the next operation."""
        self._tables: dict[str, list[int]] = {}
        self._copies: list[tuple[int, int]] = []
        self._events: list[CacheEvent] = []
        folded = {"counters": Capability.COUNTERS, "refcounts": Capability.REFCOUNTS}
        self._inspected = [name for name, needs in folded.items() if declared.has(needs)]
        self._looked_at: list[str] = []
        if declared.has(Capability.COPIES):
            self._look_at("take_copies")
        far.manager = self
        far.forget_words()
        shape = f'"num_blocks":{num_blocks},"block_size":{block_size}'
        reply = far.ask("new", f',{shape},"methods":{_encode(_methods(declared))}')
        if reply.get("error") is not None:
            raise _error(reply["error"])
        self.num_blocks = _size(reply, "num_blocks")
        self.block_size = _size(reply, "block_size")

    admit = _operation("admit")
    begin = _operation("begin")
    reserve = _operation("reserve")
    append = _operation("append")
    commit = _operation("commit")
    accept = _operation("accept")
    fork = _operation("fork")
    truncate = _operation("truncate")
    evict = _operation("evict")
    reset = _operation("reset")
    drain = _operation("drain")
    can_admit = _operation("can_admit")
    peek = _operation("peek")
    walk = _operation("walk")
    take_zeroes = _operation("take_zeroes")
    write = _operation("write")
    read = _operation("read")

    def release(self, request: str, *args: Any) -> Any:
        """The request leaves, and its table with it."""
        answer = self.operate("release", (request, *args), {})
        self._tables.pop(request, None)
        return answer

    def block_table(self, request: str) -> list[int]:
        """As the last replies have it; one that was not sent is asked for, and not kept."""
        try:
            return [*self._tables[request]]
        except (KeyError, TypeError):
            answer: list[int] = _read("block_table", self.operate("block_table", (request,), {}))
            return answer

    def counters(self) -> Counters:
        """Blocks by state."""
        answer: Counters = self._inspect("counters")
        return answer

    def refcounts(self) -> dict[int, int]:
        """Holders of each block in use."""
        answer: dict[int, int] = self._inspect("refcounts")
        return answer

    def take_copies(self) -> list[tuple[int, int]]:
        """Copies since the last call."""
        if self._fresh.get("take_copies") is None:
            self._copies += _read("take_copies", self.operate("take_copies", (), {}))
        copies, self._copies = self._copies, []
        return copies

    def take_events(self) -> list[CacheEvent]:
        """Events since the last call; the first call may start the recording."""
        if self._fresh.get("take_events") is None:
            self._events += _read("take_events", self.operate("take_events", (), {}))
            self._look_at(*self._inspected, "take_events")
        events, self._events = self._events, []
        return events

    def _inspect(self, name: str) -> Any:
        """From the last reply if it is there; else one that shows everything that is declared."""
        value = self._fresh.get(name)
        if value is None:
            self._look_at(*self._inspected)
            value = self.operate(name, (), {})
        return _read(name, value)

    def _look_at(self, *names: str) -> None:
        """From now on, every reply shows what these methods return."""
        self._looked_at += [name for name in names if name not in self._looked_at]
        self._look = f',"look":{_encode(self._looked_at)}' if self._looked_at else ""

    def operate(self, method: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """One round trip; raises the contract's errors."""
        if self._far.manager is not self:
            raise BridgeError(f"{method}: this instance was replaced by a newer one")
        keywords = f',"named":{_encode(named)}' if named else ""
        reply = self._far.ask(method, f',"args":{_encode(args)}{keywords}{self._look}')
        self._fresh = reply
        if reply.get("tables"):
            self._take_tables(reply["tables"])
        if reply.get("take_copies"):
            self._copies += _read("take_copies", reply["take_copies"])
        if reply.get("take_events"):
            self._events += _read("take_events", reply["take_events"])
        if reply.get("error") is not None:
            raise _error(reply["error"])
        return reply.get("result")

    def _take_tables(self, tables: Any) -> None:
        if not isinstance(tables, dict):
            raise BridgeError(f"tables: expected an object, got {short(tables)}")
        for request, table in tables.items():
            if table is None:
                self._tables.pop(request, None)
            else:
                self._tables[request] = _read("block_table", table)


def _methods(declared: Declaration) -> list[str]:
    """The methods that the contract asks for, given a declaration."""
    by_capability = CAPABILITY_METHODS[CacheManager]
    further = [name for entry in sorted(declared.capabilities) for name in by_capability[entry]]
    return [*METHODS[CacheManager], *further]


def _size(reply: Mapping[str, Any], name: str) -> int:
    size = reply.get(name)
    if type(size) is not int or size < 1:
        raise BridgeError(f"new: expected {name} as an int >= 1, got {size!r}")
    return size


# ----------------------------------------------------------------------------------- registration


@dataclass(frozen=True)
class FarRegistration(Registration):
    """A registration that came with a hello."""

    far_version: str = "unversioned"

    @property
    def version(self) -> str:
        """What the hello says, if it says it."""
        return self.far_version


class Bridge:
    """Factory of managers behind one command: one process, a new one when it was lost."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.argv = argv
        self.declared = Declaration()
        self._problem = ""
        self._hello: dict[str, Any] = {}
        self._far: Far | None = None
        self._hung = False

    def hello(self) -> dict[str, Any]:
        """Start a process, and return how it introduces itself."""
        with _clock_stopped():
            self._far = Far(self.argv, START_LIMIT)
            hello = self._far.ask("hello", f',"contract":{CONTRACT_VERSION}')
        self._far.limit = min(LIMIT, LIMIT_AFTER_HANG) if self._hung else LIMIT
        if self._hello and hello != self._hello:
            self._far.end()
            raise BridgeError(f"hello: expected {short(self._hello)} again, got {short(hello)}")
        self._hello = hello
        return hello

    def give_up(self, problem: str) -> None:
        """Build nothing, ever: something is wrong with its hello."""
        self._problem = problem
        if self._far is not None:
            self._far.end()

    def __call__(self, num_blocks: int, block_size: int) -> FarManager:
        """A new instance; the one before cannot be used any more."""
        if self._problem:
            raise BridgeError(self._problem)
        if self._far is None or self._far.ended:
            self._hung = self._hung or (self._far is not None and self._far.hung)
            self.hello()
        assert self._far is not None
        return FarManager(self._far, self.declared, num_blocks, block_size)


@contextmanager
def _clock_stopped() -> Iterator[None]:
    """The alarm of a run waits: starting an interpreter is no part of what is measured."""
    left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield
    finally:
        if left:
            signal.setitimer(signal.ITIMER_REAL, left)


_known: dict[str, list[Registration]] = {}


def registrations(command: str) -> list[Registration]:
    """What a command registers; it is started once, and goes on being used.

    A command that cannot be started is an `UnknownImplementation`; one that starts, but does not
    introduce itself as the contract says, is registered all the same, and every run of it says
    what is wrong.
    """
    argv = _split(command)
    command = shlex.join(argv)
    if command not in _known:
        found = _introduced(command, Bridge(argv))
        for (other,) in _known.values():
            if other.name == found.name:
                taken = f"the name {found.name!r} is taken by {other.reference}"
                raise ContractError(f"{taken}; {found.reference} must choose another")
        add(found)
        _known[command] = [found]
    return _known[command]


def _introduced(command: str, bridge: Bridge) -> Registration:
    origin = _origin(bridge.argv)
    stem = re.sub(r"[^\w.-]+", "-", Path(origin or bridge.argv[0]).stem)
    plain = FarRegistration(
        name=stem,
        kind=CacheManager,
        factory=bridge,
        declaration=bridge.declared,
        reference=f"{PREFIX}{shlex.quote(command)}",
        origin=origin,
    )
    try:
        return _registration(plain, bridge)
    except OSError as error:
        raise UnknownImplementation(f"exec: cannot start {bridge.argv[0]!r}: {error}") from error
    except BridgeError as error:
        bridge.give_up(str(error))
    return plain


def _registration(plain: FarRegistration, bridge: Bridge) -> Registration:
    """What a hello says, checked against the contract."""
    hello = bridge.hello()
    if hello.get("contract") != CONTRACT_VERSION:
        got = hello.get("contract")
        raise BridgeError(f"hello: expected contract version {CONTRACT_VERSION}, got {got!r}")
    if hello.get("kind") != CacheManager.__name__:
        raise BridgeError(f"hello: expected kind 'CacheManager', got {hello.get('kind')!r}")
    name, version = hello.get("name"), str(hello.get("version", "unversioned"))
    if not isinstance(name, str) or not re.fullmatch(r"[^/\\:\[\]\s]+", name):
        raise BridgeError(f"hello: name: expected a word without / \\ : [ ], got {name!r}")
    bridge.declared = _declaration(hello.get("declaration", {}))
    return replace(plain, name=name, declaration=bridge.declared, far_version=version)


def _declaration(raw: Any) -> Declaration:
    try:
        declared = Declaration(**raw)
    except (TypeError, ValueError) as error:
        raise BridgeError(f"hello: declaration: {error}") from None
    foreign = declared.capabilities - set(CAPABILITY_METHODS[CacheManager])
    if foreign:
        listed = ", ".join(sorted(foreign))
        raise BridgeError(f"hello: a CacheManager has no capability {listed}")
    for capability in sorted(declared.capabilities & NOT_CARRIED):
        raise BridgeError(f"hello: exec: does not carry the capability {capability}")
    return declared


def _split(command: str) -> list[str]:
    """The words of a command, also if it was quoted once more than its shell took away."""
    try:
        words = shlex.split(command)
        if len(words) == 1 and shutil.which(words[0]) is None:
            words = shlex.split(words[0])
    except ValueError as error:
        raise UnknownImplementation(f"exec:{command}: {error}") from None
    if not words:
        raise UnknownImplementation('exec: expected a command, such as exec:"python adapter.py"')
    return words


def _origin(argv: Sequence[str]) -> Path | None:
    """The source file, as far as it shows in the command."""
    files = [Path(word) for word in (*argv[1:], argv[0]) if Path(word).is_file()]
    return files[0].resolve() if files else None


def shut_down() -> None:
    """End every process, and forget what the commands registered."""
    _known.clear()
    end_all()
