"""The classroom exercise: a paged KV cache and a prefix cache in a page of Python each.

Written as a course writes it, on purpose with the three mistakes that such exercises have:

* `allocate_for_decode` takes a block when ``seq_len % block_size == 1``; with blocks of one token
  that is never so, and no decode ever gets a block;
* it counts the new token before it knows whether there is room, so a refused decode leaves a
  request that is longer than its block table;
* `SimpleRadixCache` is a list: entries with a common prefix store it once each, no entry is ever
  split, and none ever leaves.

Nothing registers itself here: the harness recognises such classes, in this file as in a student's.
"""

from __future__ import annotations

from collections.abc import Sequence


class Request:
    """A sequence that is being generated: its length, and where its KV lies."""

    def __init__(self, request_id: str, prompt_len: int) -> None:
        self.request_id = request_id
        self.seq_len = prompt_len
        self.block_table: list[int] = []


class KVCacheManager:
    """A pool of KV blocks, which requests take one by one as they grow."""

    def __init__(self, num_blocks: int, block_size: int, head_dim: int) -> None:
        self.block_size = block_size
        self.physical_kv_cache = [
            [[0.0] * head_dim for _ in range(block_size)] for _ in range(num_blocks)
        ]
        self.free_blocks = list(range(num_blocks))

    def allocate_for_prefill(self, req: Request) -> None:
        """Blocks for the whole prompt."""
        needed = (req.seq_len + self.block_size - 1) // self.block_size
        if needed > len(self.free_blocks):
            raise RuntimeError("OOM")
        for _ in range(needed):
            req.block_table.append(self.free_blocks.pop(0))

    def allocate_for_decode(self, req: Request) -> None:
        """Room for one more token: a new block if it is the first one in its block."""
        req.seq_len += 1
        if req.seq_len % self.block_size == 1:
            if not self.free_blocks:
                raise RuntimeError("OOM")
            req.block_table.append(self.free_blocks.pop(0))

    def get_physical_cache(self, req: Request) -> list[list[float]]:
        """The request's KV in order: [seq_len, head_dim]."""
        rows = [row for block in req.block_table for row in self.physical_kv_cache[block]]
        return rows[: req.seq_len]


class SimpleRadixCache:
    """Remembers token sequences, and finds the longest known beginning of another one."""

    def __init__(self) -> None:
        self.entries: list[list[int]] = []

    def insert(self, tokens: Sequence[int]) -> None:
        """From now on, `tokens` is cached."""
        self.entries.append(list(tokens))

    def match_prefix(self, tokens: Sequence[int]) -> int:
        """Number of leading tokens that are cached."""
        longest = 0
        for entry in self.entries:
            length = 0
            while length < min(len(entry), len(tokens)) and entry[length] == tokens[length]:
                length += 1
            longest = max(longest, length)
        return longest

    def split_prompt(self, tokens: Sequence[int]) -> tuple[list[int], list[int], int]:
        """What is cached, what is left to compute, and how many tokens are cached."""
        hit_len = self.match_prefix(tokens)
        return list(tokens[:hit_len]), list(tokens[hit_len:]), hit_len
