"""A scenario: an engine-neutral list of operations on a cache manager, as a small JSON file.

The same file is counterexample, regression corpus, replay, soak test and benchmark load. An
operation that is not legal in the state it meets (its request is gone, its capability is not
declared) is skipped, so that any sub-list of a scenario is a scenario too: that is what lets
the shrinker drop operations freely. An observation that is an access is itself an operation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, TypeVar, get_args

from kvassay.harness.contract import CacheKey, GroupSpec, Outcome, Span

SCHEMA_VERSION = 1
MOST_BYTES = 64 * 2**20
"""Of a file that is read at all: some million operations."""
MOST_SHOWN = 120
"""Characters of what was found, in a message."""


class BadScenario(ValueError):
    """A file that is not a scenario of this version; says where and why."""


class Step(Protocol):
    """An operation, whatever it is done to."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def op(self) -> str: ...


class Script(Protocol):
    """A scenario, whatever it is for: here, of a cache manager."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def operations(self) -> tuple[Any, ...]: ...

    @property
    def name(self) -> str: ...

    @property
    def note(self) -> str: ...

    @property
    def violates(self) -> str | None: ...

    @property
    def num_counted(self) -> int: ...

    @property
    def shape(self) -> tuple[int, int]: ...


AnyScript = TypeVar("AnyScript", bound=Script)


@dataclass(frozen=True, slots=True)
class Admit:
    """Look up a whole prompt and reserve slots for it."""

    request: str
    key: CacheKey
    op: Literal["admit"] = "admit"


@dataclass(frozen=True, slots=True)
class Begin:
    """Look up a prompt and pin what it hits, without reserving."""

    request: str
    key: CacheKey
    op: Literal["begin"] = "begin"


@dataclass(frozen=True, slots=True)
class Reserve:
    """Slots for the next tokens of a begun prompt."""

    request: str
    num_tokens: int
    op: Literal["reserve"] = "reserve"


@dataclass(frozen=True, slots=True)
class Commit:
    """The KV of the first `num_tokens` is written; all that have slots if None."""

    request: str
    num_tokens: int | None = None
    op: Literal["commit"] = "commit"


@dataclass(frozen=True, slots=True)
class Append:
    """Slots for further tokens, the last `drafts` of them unverified."""

    request: str
    tokens: tuple[int, ...]
    drafts: int = 0
    op: Literal["append"] = "append"


@dataclass(frozen=True, slots=True)
class Accept:
    """Keep the first `num_tokens` of the pending drafts, drop the rest."""

    request: str
    num_tokens: int
    op: Literal["accept"] = "accept"


@dataclass(frozen=True, slots=True)
class Fork:
    """Children that share the parent's KV."""

    parent: str
    children: tuple[str, ...]
    op: Literal["fork"] = "fork"


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut a request back to `num_tokens`."""

    request: str
    num_tokens: int
    op: Literal["truncate"] = "truncate"


@dataclass(frozen=True, slots=True)
class Release:
    """A request leaves."""

    request: str
    outcome: Outcome = Outcome.FINISHED
    op: Literal["release"] = "release"


@dataclass(frozen=True, slots=True)
class Evict:
    """Free cached blocks by request."""

    num_blocks: int
    op: Literal["evict"] = "evict"


@dataclass(frozen=True, slots=True)
class Reset:
    """Forget everything cached (skipped while requests are live)."""

    op: Literal["reset"] = "reset"


@dataclass(frozen=True, slots=True)
class Drain:
    """Finish what was deferred."""

    op: Literal["drain"] = "drain"


@dataclass(frozen=True, slots=True)
class Query:
    """Ask whether a key can be admitted; a yes binds the next operation."""

    key: CacheKey
    op: Literal["query"] = "query"


@dataclass(frozen=True, slots=True)
class Peek:
    """Ask what a key would hit, without an access."""

    key: CacheKey
    op: Literal["peek"] = "peek"


@dataclass(frozen=True, slots=True)
class Quiesce:
    """Release every request, drain, and hand out the whole pool once more."""

    op: Literal["quiesce"] = "quiesce"


Operation: TypeAlias = (
    Admit
    | Begin
    | Reserve
    | Commit
    | Append
    | Accept
    | Fork
    | Truncate
    | Release
    | Evict
    | Reset
    | Drain
    | Query
    | Peek
    | Quiesce
)


@dataclass(frozen=True)
class Scenario:
    """Operations on one pool, with what is known about where they come from."""

    num_blocks: int
    block_size: int
    operations: tuple[Operation, ...]
    name: str = ""
    note: str = ""
    """What it shows: for a person."""
    violates: str | None = None
    """The invariant that it was found to break, and in which implementation."""
    groups: tuple[GroupSpec, ...] | None = None
    """Layer groups of a manager that claims GROUPS; None: the usual ones, with a pool for each."""
    schema: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        if self.num_blocks < 1 or self.block_size < 1:
            raise BadScenario(
                f"a pool of {self.num_blocks} blocks of {self.block_size} tokens: expected >= 1"
            )

    @property
    def num_counted(self) -> int:
        """Operations, commits not counted."""
        return sum(1 for operation in self.operations if not isinstance(operation, Commit))

    @property
    def shape(self) -> tuple[int, int]:
        """Blocks, and tokens per block."""
        return self.num_blocks, self.block_size


# ------------------------------------------------------------------------------------------- JSON


def from_json(text: str, source: str = "scenario") -> Scenario:
    """Parse and validate a scenario; `BadScenario` says what is wrong and where."""
    return parsed(text, source, Scenario, kinds())


def parsed(
    text: str,
    source: str,
    form: type[AnyScript],
    steps: Sequence[type],
    format: str | None = None,
) -> AnyScript:
    """A scenario of one form, whose operations are of these kinds."""
    try:
        return _parsed(json.loads(text), source, form, steps, format)
    except RecursionError:
        raise BadScenario(f"{source}: not a scenario: nested too deeply") from None
    except BadScenario:
        raise
    except ValueError as error:  # numbers of thousands of digits too
        raise BadScenario(f"{source}: not JSON: {error}") from None


def _parsed(
    raw: Any, source: str, form: type[AnyScript], steps: Sequence[type], format: str | None
) -> AnyScript:
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA_VERSION:
        found = raw.get("schema") if isinstance(raw, dict) else type(raw).__name__
        raise BadScenario(f"{source}: expected schema {SCHEMA_VERSION}, got {_shown(found)}")
    if raw.get("format") != format:
        expected, found = (it or "that of a cache manager" for it in (format, raw.get("format")))
        raise BadScenario(f"{source}: expected the format {expected}, got {_cut(str(found))}")
    listed = raw.pop("operations", None)
    if not isinstance(listed, list):
        raise BadScenario(f"{source}: operations: expected a list, got {_shown(listed)}")
    operations = tuple(
        _operation(entry, f"{source}: operation {at}", steps) for at, entry in enumerate(listed)
    )
    scenario: AnyScript = _validated(form, {**raw, "operations": []}, source)
    return replace(scenario, operations=operations)


def _operation(raw: Any, source: str, steps: Sequence[type]) -> Any:
    known = {kind.__dataclass_fields__["op"].default: kind for kind in steps}  # type: ignore[attr-defined]
    name = raw.get("op") if isinstance(raw, dict) else None
    if not isinstance(name, str) or name not in known:
        expected = f"op to be one of {', '.join(known)}"
        raise BadScenario(f"{source}: expected {expected}, got {_shown(raw)}")
    return _checked(_validated(known[name], raw, f"{source} ({name})"), source)


@cache
def _reader(kind: type) -> Any:
    """pydantic reads the dataclass (and is imported only here and below); making it takes long."""
    from pydantic import TypeAdapter

    for strict in (kind, CacheKey, Span, GroupSpec):
        setattr(strict, "__pydantic_config__", {"extra": "forbid"})  # noqa: B010
    return TypeAdapter(kind)


def _validated(kind: type, raw: dict[str, Any], source: str) -> Any:
    """One dataclass; the first complaint is told."""
    from pydantic import ValidationError

    try:
        return _reader(kind).validate_json(json.dumps(raw))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "as a whole"
        found = _shown(first["input"])
        raise BadScenario(f"{source}: {where}: {first['msg']}, got {found}") from None


def _shown(value: Any) -> str:
    return _cut(repr(value))


def _cut(text: str) -> str:
    """One line of a message, whatever the file holds."""
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def _checked(operation: Any, source: str) -> Any:
    """Keys hold tuples, so that operations compare; tokens are what a model could have."""
    key = getattr(operation, "key", None)
    tokens = key.tokens if key is not None else getattr(operation, "tokens", (0,))
    if not tokens or any(token < 0 for token in tokens):
        raise BadScenario(f"{source}: {operation.op}: expected tokens >= 0, got {list(tokens)}")
    if key is None:
        return operation
    key = replace(key, tokens=tuple(key.tokens), spans=tuple(key.spans))
    return replace(operation, key=key)


def load(path: Path | str) -> Scenario:
    """Read a scenario file."""
    return from_json(text_of(path), str(path))


def text_of(path: Path | str) -> str:
    """The text of a scenario file; `BadScenario` if it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise BadScenario(f"{path}: cannot be read: {error.strerror}") from None
    if len(content) > MOST_BYTES:
        raise BadScenario(f"{path}: expected at most {MOST_BYTES} bytes, got more")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadScenario(f"{path}: expected UTF-8, got something else: {error}") from None


def to_json(scenario: Scenario) -> str:
    """The file form: one operation a line, defaults left out."""
    shape: dict[str, Any] = {
        "num_blocks": scenario.num_blocks,
        "block_size": scenario.block_size,
    }
    if scenario.groups is not None:
        shape["groups"] = [_group_dict(spec) for spec in scenario.groups]
    return written(scenario, {"schema": scenario.schema}, shape)


def written(scenario: Script, form: Mapping[str, Any], shape: Mapping[str, Any]) -> str:
    """The file form of any scenario: what it is, what is known of it, its shape, its operations."""
    known = {"name": scenario.name, "note": scenario.note, "violates": scenario.violates}
    told = {name: text for name, text in known.items() if text}
    head = {**form, **told, **shape}
    fields = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in head.items()]
    operations = ",\n".join(f"    {json.dumps(as_dict(op))}" for op in scenario.operations)
    fields.append('  "operations": [\n' + operations + "\n  ]")
    return "{\n" + ",\n".join(fields) + "\n}\n"


def as_dict(operation: Step) -> dict[str, Any]:
    """Plain data of one operation, the kind first, defaults left out."""
    out: dict[str, Any] = {"op": operation.op}
    for name in operation.__dataclass_fields__:
        value = getattr(operation, name)
        if name == "op" or value is None:
            continue
        if isinstance(value, CacheKey):
            value = _key_dict(value)
        elif isinstance(value, tuple):
            value = list(value)
        if name == "drafts" and value == 0:
            continue
        out[name] = value
    return out


def _group_dict(spec: GroupSpec) -> dict[str, Any]:
    fields = {"name": spec.name, "window": spec.window, "block_size": spec.block_size}
    return {name: value for name, value in fields.items() if value is not None}


def _key_dict(key: CacheKey) -> dict[str, Any]:
    out: dict[str, Any] = {"tokens": list(key.tokens)}
    if key.salt is not None:
        out["salt"] = key.salt
    if key.adapter is not None:
        out["adapter"] = key.adapter
    if key.spans:
        out["spans"] = [
            {"start": span.start, "length": span.length, "content": span.content}
            for span in key.spans
        ]
    return out


def kinds() -> Sequence[type]:
    """All kinds of operation."""
    return get_args(Operation)
