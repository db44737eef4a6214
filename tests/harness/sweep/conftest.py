"""A small trace in Mooncake's format: chats that grow, and system prompts that they share."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

REQUESTS, BLOCK = 120, 512


@pytest.fixture
def trace(tmp_path: Path) -> str:
    rng, fresh = Random(0), iter(range(10, 10**6))
    chats = [[n % 3] for n in range(12)]
    rows = []
    for number in range(REQUESTS):
        chat = chats[rng.randrange(len(chats))]
        chat += [next(fresh) for _ in range(rng.randint(1, 3))]
        # The last block is a partial one, and is another one once it is full.
        rows.append(
            {
                "timestamp": 1000 * number,
                "input_length": BLOCK * len(chat) + 100,
                "output_length": 5,
                "hash_ids": [*chat, next(fresh)],
            }
        )
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return f"mooncake:{path}"
