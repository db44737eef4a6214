"""The far side of kvassay's `exec:` bridge. Copy this one file beside your cache manager.

It needs the standard library and Python 3.8 or later, and nothing of kvassay::

    # adapter.py
    from kvassay_adapter import OutOfBlocks, serve

    class Manager:
        def __init__(self, num_blocks, block_size): ...
        def admit(self, request, key): ...     # key.tokens, .salt, .adapter, .spans
        def append(self, request, tokens): ...
        def block_table(self, request): ...
        def release(self, request, outcome="finished"): ...

    if __name__ == "__main__":
        serve(Manager, name="mine", declaration={"capabilities": []})

and then ``pytest suites/ --impl exec:"python adapter.py"``. The methods are those of kvassay's
contract, with plain data: counters are ``{"free": 1, "cached": 2, "used": 3}``, events and tree
nodes are dicts, copies are pairs; objects with attributes of those names do as well. `ValueError`,
`KeyError` and `OutOfBlocks` (any `RuntimeError` whose text starts with ``OOM``) mean what the
contract says. What is printed goes to stderr: stdout belongs to the protocol, which is described
in the README beside this file.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections import namedtuple

CONTRACT_VERSION = 1
CHUNK = 1 << 16

CacheKey = namedtuple("CacheKey", "tokens salt adapter spans", defaults=(None, None, ()))
Span = namedtuple("Span", "start length content")


class OutOfBlocks(RuntimeError):
    """The pool cannot serve this operation."""

    def __init__(self, detail="no block is free or can be evicted"):
        super().__init__("OOM: " + detail)


class ContractError(ValueError):
    """The factory's product does not do what its declaration says it does."""


def serve(factory, name="", kind="CacheManager", declaration=None, version="unversioned"):
    """Answer on stdin and stdout until stdin ends.

    `factory` is called as ``factory(num_blocks=..., block_size=...)``; a `ValueError` of it says
    that this shape is not offered. `declaration` has the fields of kvassay's `Declaration`.
    """
    hello = {
        "contract": CONTRACT_VERSION,
        "name": name or getattr(factory, "__name__", "").lower(),
        "kind": kind,
        "declaration": _plain_declaration(declaration or {}),
        "version": version,
    }
    incoming, outgoing = _take_streams()
    far = _Far(factory, hello)
    for line in _lines(incoming):
        _write(outgoing, (_encode(far.answer(json.loads(line))) + "\n").encode())


class _Far:
    """The manager that is being tested, and what the other side knows of its tables."""

    def __init__(self, factory, hello):
        self.factory = factory
        self.hello = hello
        self.manager = None
        self.known = {}

    def answer(self, message):
        """The reply to one message."""
        op, reply = message["op"], {"id": message["id"]}
        try:
            if op == "hello":
                reply.update(self.hello)
            elif op == "new":
                reply.update(self.new(message))
            else:
                reply["result"] = self.operate(op, message)
        except Exception as error:
            reply["error"] = _described(error)
        if self.manager is not None:
            for name in message.get("look", ()):
                reply[name] = self.seen(name)
            tables = self.changed_tables()
            if tables:
                reply["tables"] = tables
        return reply

    def new(self, message):
        """Build a manager; the one before is forgotten."""
        self.manager, self.known = None, {}
        shape = {name: message[name] for name in ("num_blocks", "block_size")}
        manager = self.factory(**shape)
        for method in message.get("methods", ()):
            if not callable(getattr(manager, method, None)):
                raise ContractError(f"what is declared needs the method {method}()")
        self.manager = manager
        return {name: getattr(manager, name) for name in shape}

    def operate(self, op, message):
        """Call one method, and keep track of which requests are live."""
        if self.manager is None:
            raise RuntimeError(f"{op} before new")
        arguments = message["args"]
        if op in _WITH_KEY:
            arguments = [*arguments[:-1], _key(arguments[-1])]
        named = message.get("named")
        method = getattr(self.manager, op)
        result = method(*arguments, **named) if named else method(*arguments)
        if op == "admit" or op == "begin":
            self.known.setdefault(arguments[0], None)
        elif op == "fork":
            for child in arguments[1]:
                self.known.setdefault(child, None)
        elif op == "release":
            self.known.pop(arguments[0], None)
        return _shown(op, result)

    def seen(self, name):
        """What a method shows; None if it cannot be had (asking for it tells why)."""
        try:
            return _shown(name, getattr(self.manager, name)())
        except Exception:
            return None

    def changed_tables(self):
        """Tables of live requests that are not as the other side knows them."""
        changed, known, read = {}, self.known, self.manager.block_table
        for request, before in known.items():
            try:
                table = list(read(request))
            except Exception:
                table = None
            if table != before or table is None:
                changed[request] = known[request] = table
        return changed


# ------------------------------------------------------------------------------------------- data

_WITH_KEY = frozenset(("admit", "begin", "can_admit", "peek"))
_EVENT = ("kind", "entries", "parent", "tokens", "salt", "adapter", "spans")
_NODE = ("id", "parent", "tokens", "values", "locks")


def _key(given):
    """A key as the manager gets it; what is no key is passed on, to be refused."""
    if not isinstance(given, dict):
        return given
    spans = tuple(Span(*span) for span in given.get("spans", ()))
    return CacheKey(tuple(given["tokens"]), given.get("salt"), given.get("adapter"), spans)


def _shown(method, result):
    """A result in the form of the protocol."""
    if method == "counters":
        return _fields(result, ("free", "cached", "used"))
    if method == "refcounts":
        return list(result.items())
    if method == "take_events":
        return [_fields(event, _EVENT) for event in result]
    if method == "walk":
        return [_fields(node, _NODE) for node in result]
    return result


def _fields(thing, names):
    if isinstance(thing, dict):
        return {name: thing[name] for name in names if name in thing}
    return {name: getattr(thing, name) for name in names if hasattr(thing, name)}


def _plain_declaration(declaration):
    """The fields as JSON: sets as lists; an object's attributes will do as well."""
    fields = declaration if isinstance(declaration, dict) else vars(declaration)
    sets = (set, frozenset, tuple)
    return {k: sorted(v) if isinstance(v, sets) else v for k, v in fields.items()}


def _described(error):
    text = str(error)
    if isinstance(error, RuntimeError) and text.startswith("OOM"):
        return {"type": "OutOfBlocks", "text": text}
    if isinstance(error, KeyError):
        return {"type": "KeyError", "text": str(error.args[0]) if error.args else ""}
    for known in (ContractError, ValueError):
        if isinstance(error, known):
            return {"type": known.__name__, "text": text}
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{os.path.basename(place.filename)}:{place.lineno}"
    return {"type": type(error).__name__, "text": f"{text} ({where})"}


def _plain(value):
    """What JSON does not know: ids, numbers of other libraries, spans as objects."""
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "__index__"):
        return value.__index__()
    if hasattr(value, "content") and hasattr(value, "start"):
        return [value.start, value.length, value.content]
    if hasattr(value, "value") and hasattr(value, "name"):
        return value.value
    return repr(value)


_encode = json.JSONEncoder(separators=(",", ":"), default=_plain).encode


# ---------------------------------------------------------------------------------------- streams


def _take_streams():
    """Stdin and stdout for the protocol alone: whoever else prints, prints to stderr."""
    sys.stdout.flush()
    incoming, outgoing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return incoming, outgoing


def _lines(descriptor):
    """Lines as they come in; the other side waits for an answer to each."""
    rest = b""
    while True:
        chunk = os.read(descriptor, CHUNK)
        if not chunk:
            return
        rest += chunk
        if chunk.endswith(b"\n"):
            line, rest = rest, b""
            yield line.decode()


def _write(descriptor, data):
    while data:
        data = data[os.write(descriptor, data) :]
