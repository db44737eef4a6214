"""K, V and query of a token, as a function of everything that its KV depends on.

The numbers are drawn from a seed that is a hash of namespace (group, epoch, salt, adapter) and of
all elements up to the token. So whatever is served from another prefix, another tenant, another
place or another time differs in every number. Queries are small: the weights of a row are nearly
even, and no key is too light for its loss to be seen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from kvassay.harness.attention.build import dtype_of
from kvassay.harness.pairs.form import Form
from kvassay.reference.tags import TagBook

QUERY_SIZE = 0.5
"""Standard deviation of queries; that of K and V is 1."""
FIRST_ROWS = 256


def fingerprint(book: TagBook, tag: int) -> int:
    """A number that stands for a tag in every run."""
    told = repr(book.path(tag)).encode()
    return int.from_bytes(hashlib.blake2b(told, digest_size=8).digest(), "big", signed=True)


class History:
    """The numbers of all tags of one run, drawn when they are first asked for."""

    def __init__(self, book: TagBook, form: Form) -> None:
        self.book = book
        self.form = form
        self._known: dict[int, int] = {}
        """Row of each tag."""
        per_kv, per_q = form.num_kv_heads * form.head_dim, form.num_q_heads * form.head_dim
        self._widths = (per_kv, per_kv, per_q)
        self._rows = torch.empty(FIRST_ROWS, sum(self._widths), dtype=dtype_of(form.dtype))
        self._generator = Generator()

    def keys(self, tags: Sequence[int]) -> Tensor:
        """``[n, num_kv_heads, head_dim]``."""
        return self._of(tags, 0).view(len(tags), self.form.num_kv_heads, self.form.head_dim)

    def values(self, tags: Sequence[int]) -> Tensor:
        """``[n, num_kv_heads, head_dim]``."""
        return self._of(tags, 1).view(len(tags), self.form.num_kv_heads, self.form.head_dim)

    def queries(self, tags: Sequence[int]) -> Tensor:
        """``[n, num_q_heads, head_dim]``."""
        return self._of(tags, 2).view(len(tags), self.form.num_q_heads, self.form.head_dim)

    def named(self, key: Tensor) -> int | None:
        """The tag whose key this is, to the bit, if it is one of this run."""
        flat = key.reshape(-1).cpu()
        same = (self._rows[: len(self._known), : self._widths[0]] == flat).all(dim=1).nonzero()
        tags = list(self._known)
        return tags[int(same[0])] if len(same) else None

    def _of(self, tags: Sequence[int], part: int) -> Tensor:
        rows = torch.tensor([self._row(tag) for tag in tags], dtype=torch.long)
        start = sum(self._widths[:part])
        return self._rows[rows, start : start + self._widths[part]]

    def _row(self, tag: int) -> int:
        row = self._known.get(tag)
        if row is None:
            row = self._known[tag] = len(self._known)
            if row == len(self._rows):
                self._rows = torch.cat([self._rows, torch.empty_like(self._rows)])
            self._generator.manual_seed(fingerprint(self.book, tag))
            numbers = torch.randn(sum(self._widths), generator=self._generator)
            numbers[-self._widths[2] :] *= QUERY_SIZE
            self._rows[row] = numbers.to(self._rows.dtype)
        return row
