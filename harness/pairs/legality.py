"""Which operations are legal in the state they meet; others are skipped, as scenarios have it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kvassay.harness.contract import CacheKey, Capability, Declaration
from kvassay.harness.scenario import (
    Accept,
    Admit,
    Append,
    Begin,
    Commit,
    Drain,
    Evict,
    Fork,
    Operation,
    Peek,
    Query,
    Quiesce,
    Release,
    Reserve,
    Reset,
    Truncate,
)
from kvassay.reference.model import Live
from kvassay.reference.tags import spans_fit

OF_KEYS: dict[Capability, Callable[[CacheKey], bool]] = {
    Capability.SALT: lambda key: key.salt is not None,
    Capability.ADAPTER: lambda key: key.adapter is not None,
    Capability.SPANS: lambda key: bool(key.spans),
}
"""Parts of a key that only those are given who honour them."""


def wanted(op: Commit, live: Live) -> int:
    """Tokens that are written after a commit."""
    return live.length if op.num_tokens is None else op.num_tokens


class Legality:
    """Answers for one declaration and the live requests of the moment."""

    def __init__(self, declaration: Declaration, live: Mapping[str, Live], commits: bool) -> None:
        self._has = declaration.has
        self._live = live
        self._commits = commits
        self._rules: dict[type, Callable[[Any], bool]] = {
            Admit: lambda op: op.request not in live and self._key(op.key),
            Begin: self._begin,
            Reserve: self._reserve,
            Commit: self._commit,
            Append: self._append,
            Accept: self._accept,
            Fork: self._fork,
            Truncate: self._truncate,
            Release: lambda op: op.request in live,
            Evict: lambda op: self._has(Capability.EVICT) and op.num_blocks > 0,
            Reset: lambda op: self._has(Capability.RESET) and not live,
            Drain: lambda op: self._has(Capability.DRAIN),
            Query: lambda op: self._has(Capability.QUERY) and self._key(op.key),
            Peek: lambda op: self._has(Capability.PEEK) and self._key(op.key),
            Quiesce: lambda op: True,
        }

    def allows(self, operation: Operation) -> bool:
        """Whether the operation may be done now."""
        return self._rules[type(operation)](operation)

    def _key(self, key: CacheKey) -> bool:
        if not key.tokens or any(has(key) and not self._has(c) for c, has in OF_KEYS.items()):
            return False
        return spans_fit(key.spans, len(key.tokens))

    def _begin(self, op: Begin) -> bool:
        fresh = op.request not in self._live
        return self._has(Capability.CHUNKED) and fresh and self._key(op.key)

    def _reserve(self, op: Reserve) -> bool:
        live = self._live.get(op.request)
        return live is not None and 0 < op.num_tokens <= len(live.tags) - live.length

    def _commit(self, op: Commit) -> bool:
        live = self._live.get(op.request)
        if live is None or not self._commits:
            return False
        return live.committed < wanted(op, live) <= live.length

    def _append(self, op: Append) -> bool:
        live = self._live.get(op.request)
        if live is None or live.pending or live.drafts or not op.tokens:
            return False
        if not 0 <= op.drafts <= len(op.tokens):
            return False
        return not op.drafts or self._has(Capability.DRAFTS)

    def _accept(self, op: Accept) -> bool:
        live = self._live.get(op.request)
        return live is not None and live.drafts > 0 and 0 <= op.num_tokens <= live.drafts

    def _fork(self, op: Fork) -> bool:
        parent = self._live.get(op.parent)
        if not self._has(Capability.FORK) or parent is None or not op.children:
            return False
        if len({*op.children} - self._live.keys()) < len(op.children):
            return False
        written = parent.committed == parent.length
        return written and not parent.pending and not parent.drafts

    def _truncate(self, op: Truncate) -> bool:
        live = self._live.get(op.request)
        if not self._has(Capability.TRUNCATE) or live is None or live.pending:
            return False
        return 1 <= op.num_tokens <= live.length
