"""Prompts as tokens: what a stream of block ids becomes for a manager that takes tokens.

A block of id i is `BLOCK_SIZE` tokens ``2 * i``, and the prompt ends with one token ``2 * n + 1``
for its number n. So blocks differ from their first token on, whether a manager compares tokens or
blocks; and the last token, which is never counted as a hit, is nobody else's: a prompt can be hit
in all of its blocks. A pool needs one block more than the capacity that it stands for.
"""

from __future__ import annotations

from kvassay.harness.replaying.stream import Prompt

BLOCK_SIZE = 2
"""Tokens per block. With one, the last token would be a block that is cached and never hit."""
EXTRA_BLOCKS = 1
"""Blocks of a pool beside those for the capacity: the last token's."""


def encoded(prompt: Prompt, number: int) -> list[int]:
    """The tokens of prompt `number`."""
    tokens = [2 * id for id in prompt for _ in range(BLOCK_SIZE)]
    tokens.append(2 * number + 1)
    return tokens
