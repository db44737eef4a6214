"""Block tables and scenarios drawn in text, for people who look at a counterexample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvassay.harness.contract import CacheKey
from kvassay.harness.device import NO_KV
from kvassay.harness.scenario import Step
from kvassay.reference.model import CacheModel, Live

MOST_TOKENS = 12
MOST_BLOCKS = 16


def tokens(values: Sequence[int]) -> str:
    """A token list, shortened in the middle."""
    if len(values) <= MOST_TOKENS:
        return "[" + " ".join(str(value) for value in values) + "]"
    head = " ".join(str(value) for value in values[:5])
    tail = " ".join(str(value) for value in values[-5:])
    return f"[{head} .. {tail}] ({len(values)} tokens)"


def key(value: CacheKey) -> str:
    """A key with whatever it has beside tokens."""
    parts = [tokens(value.tokens)]
    parts += [f"salt={value.salt}"] if value.salt is not None else []
    parts += [f"adapter={value.adapter}"] if value.adapter is not None else []
    parts += [f"{s.content}@{s.start}+{s.length}" for s in value.spans]
    return " ".join(parts)


def operation(value: Step) -> str:
    """One operation in one line."""
    parts: list[str] = [value.op]
    for name in value.__dataclass_fields__:
        content = getattr(value, name)
        if name == "op" or content is None or (name == "drafts" and not content):
            continue
        if isinstance(content, CacheKey):
            parts.append(key(content))
        elif name == "tokens":
            parts.append(tokens(content))
        elif name in ("request", "parent"):
            parts.append(str(content))
        elif name == "children":
            parts.append("-> " + ", ".join(content))
        else:
            parts.append(f"{name}={content}")
    return " ".join(parts)


def tables(live: Mapping[str, Live], model: CacheModel, memory: Mapping[int, list[int]]) -> str:
    """Every live request's table: block id, and the tokens that stand in its slots.

    ``.`` is a slot that was not written since its block was handed out, ``|`` ends the
    request, ``*`` marks a block with more than one holder, ``!`` a slot that is wrong.
    """
    lines = [_table(name, request, model, memory) for name, request in live.items()]
    return "\n".join(lines) if lines else "(no live request)"


def _table(name: str, live: Live, model: CacheModel, memory: Mapping[int, list[int]]) -> str:
    cells = [
        _block(index, block, live, model, memory.get(block))
        for index, block in enumerate(live.table[:MOST_BLOCKS])
    ]
    more = len(live.table) - MOST_BLOCKS
    tail = f" .. {more} more" if more > 0 else ""
    state = f"{live.length} tokens, {live.committed} written, hit {live.hit}"
    return f"{name:>6} {' '.join(cells)}{tail}   ({state})"


def _block(
    index: int, block: int, live: Live, model: CacheModel, content: Sequence[int] | None
) -> str:
    size = model.block_size
    if block in model.declaration.reserved_ids:
        return "null"
    shared = "*" if model.blocks.users.get(block, 0) > 1 else ""
    if content is None:
        return f"#{block}{shared}[?]"
    slots = []
    for offset, tag in enumerate(content[:8]):
        position = index * size + offset
        if position == live.length:
            slots.append("|")
        slots.append(_slot(position, tag, live, model))
    if size > 8:
        slots.append("..")
    return f"#{block}{shared}[{' '.join(slots)}]"


def _slot(position: int, tag: int, live: Live, model: CacheModel) -> str:
    wrong = live.low <= position < live.committed and tag != live.tags[position]
    if tag in NO_KV:
        return ".!" if wrong else "."
    last = model.book.path(tag)[1][-1]
    token = last if isinstance(last, int) else f"{last[0]}:{last[1]}"
    return f"{token}!" if wrong else str(token)
