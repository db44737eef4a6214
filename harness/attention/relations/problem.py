"""What an attention problem says, apart from where it lies in memory: what a relation changes.

A problem is the tokens of every sequence, as they are before they are stored, and what is given per
head. A relation takes it apart, reorders it or multiplies it, and lays the result into memory. The
same numbers are stored in both versions, so that whatever their results differ by is the kernel's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Generator, Tensor

from kvassay.harness.attention.build import Built, build, dtype_of, encode
from kvassay.harness.attention.case import CacheLayout, Case, Scaling
from kvassay.harness.attention.contents import Filling
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.wrong import Refused

LOUD = 4.0
"""Deviation of what is put in the place of tokens that must not matter."""


OPTIONS = {
    "alibi": "alibi_slopes",
    "sinks": "sinks",
    "k_scale": "k_scale",
    "v_scale": "v_scale",
}
"""Fields of a case, and the fields of a batch that they stand for."""


def require(met: bool, precondition: str) -> None:
    """Raise `Refused` for a case that a relation does not speak of."""
    if not met:
        raise Refused(f"the relation speaks of {precondition}")


@dataclass(frozen=True)
class Tokens:
    """One sequence: n keys, the last q of which have a query."""

    query: Tensor
    """``[q, num_q_heads, head_dim]``."""
    key: Tensor
    """``[n, num_kv_heads, head_dim]``."""
    value: Tensor
    """``[n, num_kv_heads, head_dim_v]``."""

    @property
    def first(self) -> int:
        """Position of the first query."""
        return len(self.key) - len(self.query)

    def last(self, count: int) -> Tokens:
        """The same keys for the last `count` queries only."""
        return replace(self, query=self.query[len(self.query) - count :])

    def until(self, stop: int) -> Tokens:
        """As it was when it had `stop` keys."""
        rows = max(0, stop - self.first)
        return Tokens(self.query[:rows], self.key[:stop], self.value[:stop])

    def chunk(self, start: int, stop: int) -> Tokens:
        """The queries at positions start..stop-1, with the keys there were then."""
        return self.until(stop).last(stop - start)

    def keys_at(self, positions: Tensor | slice) -> Tokens:
        """Other keys, in another order, for the same queries."""
        return replace(self, key=self.key[positions], value=self.value[positions])

    def heads(self, query: Sequence[int], kv: Sequence[int]) -> Tokens:
        """Heads picked by number."""
        return Tokens(self.query[:, query], self.key[:, kv], self.value[:, kv])

    def edited(self, positions: Tensor, seed: int) -> Tokens:
        """Loud numbers in place of the keys and values at `positions`, bool ``[n]``, and of the
        queries there."""
        generator = Generator().manual_seed(seed)
        rows = positions[self.first :] if self.first >= 0 else positions[:0]
        query, key, value = self.query.clone(), self.key.clone(), self.value.clone()
        if len(rows) == len(query):
            query[rows] = LOUD * torch.randn(query[rows].shape, generator=generator)
        key[positions] = LOUD * torch.randn(key[positions].shape, generator=generator)
        value[positions] = LOUD * torch.randn(value[positions].shape, generator=generator)
        return Tokens(query, key, value)


Change = Callable[[Tokens], Tokens]


@dataclass(frozen=True)
class Problem:
    """Sequences, what is given per head, and a case that says the rest."""

    case: Case
    """How it is laid out, and what is switched on; its `seqs` are those of `tokens`."""
    tokens: tuple[Tokens, ...]
    options: Mapping[str, Any]
    """`alibi_slopes`, `sinks`, `k_scale` and `v_scale` of the batch, on the CPU. A scale for each
    token is not among them: it is drawn anew, the same while the sequences are."""

    @classmethod
    def of(cls, case: Case) -> Problem:
        """The problem that a case stands for; blocks are not shared."""
        built = build(case)
        names = [name for name in OPTIONS if getattr(case, name) is not Scaling.TOKEN]
        options = {OPTIONS[name]: getattr(built.batch, OPTIONS[name]) for name in names}
        filling = built.filling
        starts = built.batch.query_start.tolist()
        tokens = tuple(
            Tokens(filling.query[start:stop], key, value)
            for (start, stop), key, value in zip(
                pairwise(starts), filling.keys, filling.values, strict=True
            )
        )
        return cls(replace(case, shared_blocks=0), tokens, options)

    # ---------------------------------------------------------------------------------- changes

    def having(self, tokens: Iterable[Tokens]) -> Problem:
        """Other sequences."""
        require(len(self.options) == len(OPTIONS), "what has no scale for each token")
        held = tuple(tokens)
        seqs = tuple((len(each.key), len(each.query)) for each in held)
        return replace(self, case=replace(self.case, seqs=seqs), tokens=held)

    def changed(self, change: Change) -> Problem:
        """Every sequence changed."""
        return self.having(change(each) for each in self.tokens)

    def laid_out(self, **fields: Any) -> Problem:
        """Other fields of the case."""
        return replace(self, case=replace(self.case, **fields))

    def given(self, **options: Any) -> Problem:
        """Other slopes, sinks or scales."""
        return replace(self, options={**self.options, **options})

    # ----------------------------------------------------------------------------------- memory

    def lay(self, kernel: Kernel) -> Built:
        """The problem in memory, where the kernel wants it."""
        built = build(self.case, device=kernel.device, filling=self._filling())
        return built.replaced(**{name: self._option(name, built) for name in self.options})

    def _filling(self) -> Filling:
        case, tokens = self.case, self.tokens
        if case.cache_layout is CacheLayout.V_IN_K:
            apart = [t for t in tokens if not torch.equal(t.key[..., : case.head_dim_v], t.value)]
            require(not apart, "values that are no part of the keys")
        query = torch.zeros(0, case.num_q_heads, case.head_dim)
        return Filling(
            torch.cat([query, *(each.query for each in tokens)]),
            [each.key.clone() for each in tokens],
            [each.value.clone() for each in tokens],
        )

    def _option(self, name: str, built: Built) -> Any:
        """As the kernel gets it; a single scale is written to every slot where the case says so."""
        value, key = self.options[name], built.batch.key_cache
        if isinstance(value, Tensor):
            return value.to(key.device)
        if getattr(self.case, name, None) is Scaling.TOKEN:
            return torch.full(key.shape[:3], value, dtype=torch.float32, device=key.device)
        return value


def multiplied(numbers: Tensor, factor: float | Tensor, stored_as: str) -> Tensor:
    """Numbers times a power of two; raises `Refused` where that is not exact once stored."""
    dtype = dtype_of(stored_as)
    product = numbers * factor
    exact = torch.equal(encode(product, dtype).float(), encode(numbers, dtype).float() * factor)
    require(exact, f"numbers that stay exact in {stored_as} when multiplied by powers of two")
    return product
