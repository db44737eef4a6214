"""A small engine without a model: scheduler, cache manager, and a worker with its own tables.

It does what engines do that a device inside must not object to: prompts in chunks, prefix hits
published at reservation, duplicates kept, the last token computed again, preemption and admission
anew, blocks behind a window given up for the null block 0, layer groups whose blocks come from one
pool, and a worker that learns of blocks by increments and moves its rows. Every decision is a small
method, so that one of them can be corrupted. The next token is a function of all tokens before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from kvassay.harness.inside.batch import Batch, Ints, LayerGroup
from kvassay.harness.inside.playing import Answer
from kvassay.harness.inside.traffic import Wanted
from kvassay.harness.inside.watch import Watch

NULL = 0
FULL: tuple[int | None, ...] = (None,)
COLUMNS = 64

Key = tuple[int, str | None, tuple[int, ...]]
"""Layer group, salt, and all tokens up to the end of a block."""


@dataclass
class Request:
    """One request as scheduler and manager know it."""

    wanted: Wanted
    tokens: list[int]
    groups: int
    computed: int = 0
    preemptions: int = 0
    blocks: list[list[int]] = field(default_factory=list)
    """Of each layer group."""

    def __post_init__(self) -> None:
        self.blocks = [[] for _ in range(self.groups)]

    @property
    def name(self) -> str:
        """As its caller calls it."""
        return self.wanted.name

    @property
    def done(self) -> bool:
        """Whether it has all its tokens."""
        return len(self.tokens) == len(self.wanted.key.tokens) + self.wanted.max_tokens


class Pool:
    """Blocks of all layer groups: a free queue, references, and keys of full blocks."""

    def __init__(self, num_blocks: int) -> None:
        self.free = deque(range(1, num_blocks))
        self.references = [0] * num_blocks
        self.key_of: dict[int, Key] = {}
        self.found: dict[Key, int] = {}

    def take(self) -> int:
        """A block for new KV; its key is gone."""
        block = self.free.popleft()
        self.forget(block)
        self.references[block] += 1
        return block

    def forget(self, block: int) -> None:
        """No key leads to it any more."""
        key = self.key_of.pop(block, None)
        if key is not None and self.found.get(key) == block:
            del self.found[key]

    def touch(self, block: int) -> None:
        """One more request uses it."""
        if self.references[block] == 0:
            self.free.remove(block)
        self.references[block] += 1

    def give_back(self, block: int) -> None:
        """One request less uses it."""
        self.references[block] -= 1
        if self.references[block] == 0:
            self.free.append(block)

    def publish(self, block: int, key: Key) -> None:
        """A key leads to it; a second block of the same KV keeps its own note."""
        self.key_of[block] = key
        self.found.setdefault(key, block)


class Worker:
    """Rows of block tables, told of new blocks by increments."""

    def __init__(self, groups: int, rows: int) -> None:
        self.rows: list[str | None] = [None] * rows
        self.tables = np.zeros((groups, rows, COLUMNS), dtype=np.int32)
        self.filled = np.zeros((groups, rows), dtype=np.int64)

    def row_of(self, name: str) -> int:
        """Where a request stands."""
        return self.rows.index(name)

    def add(self, name: str, blocks: Sequence[Sequence[int]]) -> None:
        """A request comes (back), with all its blocks."""
        row = self.rows.index(None)
        self.rows[row] = name
        for group, ids in enumerate(blocks):
            self.filled[group, row] = 0
            self.append(group, row, ids)

    def append(self, group: int, row: int, blocks: Sequence[int]) -> None:
        """More blocks of a request."""
        start = int(self.filled[group, row])
        self.tables[group, row, start : start + len(blocks)] = blocks
        self.filled[group, row] += len(blocks)

    def condense(self) -> None:
        """Fill holes with the last rows."""
        while None in self.rows:
            hole = self.rows.index(None)
            last = max((at for at, name in enumerate(self.rows) if name is not None), default=-1)
            if last < hole:
                return
            self.rows[hole], self.rows[last] = self.rows[last], None
            self.move(last, hole)

    def move(self, source: int, target: int) -> None:
        """A request's tables, from one row to another."""
        self.tables[:, target] = self.tables[:, source]
        self.filled[:, target] = self.filled[:, source]

    def slots(self, group: int, row: int, positions: Ints, block_size: int) -> Ints:
        """Where new KV goes."""
        blocks = self.tables[group, row, positions // block_size].astype(np.int64)
        return blocks * block_size + positions % block_size


class PagedEngine:
    """Steps requests; a layer group for each entry of `windows`, None for full attention."""

    pool_type = Pool
    worker_type = Worker

    def __init__(
        self,
        *,
        num_blocks: int = 24,
        block_size: int = 4,
        windows: Sequence[int | None] = FULL,
        budget: int = 24,
        rows: int = 6,
        vocabulary: int = 50,
    ) -> None:
        self.size, self.budget, self.vocabulary = block_size, budget, vocabulary
        self.windows = tuple(windows)
        self.groups = [
            LayerGroup(block_size, num_blocks, window, null=frozenset({NULL})) for window in windows
        ]
        self.watch = Watch(self.groups, self.table)
        self.pool = self.pool_type(num_blocks)
        self.worker = self.worker_type(len(self.groups), rows)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    # ------------------------------------------------------------------------------------- callers

    def submit(self, wanted: Wanted) -> None:
        """Into the queue."""
        tokens = list(wanted.key.tokens)
        self.waiting.append(Request(wanted, tokens, len(self.groups)))

    def abort(self, request: str) -> None:
        """Whatever it is doing."""
        for one in [each for each in self.waiting if each.name == request]:
            self.waiting.remove(one)
        for one in [each for each in self.running if each.name == request]:
            self._leave(one)

    def step(self) -> Iterable[Answer]:
        """Schedule, compute, sample."""
        chosen = self._schedule()
        self.worker.condense()
        if not chosen:
            return []
        self._forward(chosen)
        return self._sample(chosen)

    def close(self) -> None:
        """Nothing has to be let go of."""

    def table(self, request: str, group: int) -> Sequence[int]:
        """The manager's own table of a request."""
        found = [one for one in self.running if one.name == request]
        return found[0].blocks[group] if found else ()

    # ----------------------------------------------------------------------------------- scheduler

    def _schedule(self) -> dict[str, int]:
        """New tokens of each request in the next pass."""
        chosen: dict[str, int] = {}
        budget, free_rows = self.budget, True
        for one in list(self.running):
            count = min(budget, len(one.tokens) - one.computed)
            if one not in self.running or not count:
                continue
            self._pass_window(one)
            budget -= self._room(one, count, chosen)
        while self.waiting and budget and free_rows:
            free_rows = len(self.running) < len(self.worker.rows)
            count = self._admit(self.waiting[0], budget) if free_rows else 0
            if not count:
                break
            one = self.waiting.popleft()
            self.running.append(one)
            self.worker.add(one.name, one.blocks)
            chosen[one.name] = count
            budget -= count
        return chosen

    def _room(self, one: Request, count: int, chosen: dict[str, int]) -> int:
        """Blocks for a running request, others preempted for it; the tokens that it may compute."""
        while not self._reserve(one, count):
            victim = self.running[-1]
            self._preempt(victim)
            chosen.pop(victim.name, None)
            if victim is one:
                return 0
        chosen[one.name] = count
        return count

    def _preempt(self, one: Request) -> None:
        self._leave(one)
        one.computed, one.preemptions = 0, one.preemptions + 1
        one.blocks = [[] for _ in self.groups]
        self.waiting.appendleft(one)

    def _leave(self, one: Request) -> None:
        self.running.remove(one)
        self.worker.rows[self.worker.row_of(one.name)] = None
        for blocks in one.blocks:
            for block in reversed(blocks):
                if block != NULL:
                    self.pool.give_back(block)

    # ------------------------------------------------------------------------------------- manager

    def _admit(self, one: Request, budget: int) -> int:
        """Look up, reserve; the tokens of its first pass, 0 if it must wait."""
        hit = self._longest_hit(one)
        one.blocks = [self._hit_blocks(one, group, hit) for group in range(len(self.groups))]
        for block in (block for blocks in one.blocks for block in blocks if block != NULL):
            self.pool.touch(block)
        one.computed = hit * self.size
        count = min(budget, len(one.tokens) - one.computed)
        if self._reserve(one, count):
            return count
        for blocks in one.blocks:
            for block in reversed(blocks):
                if block != NULL:
                    self.pool.give_back(block)
        one.blocks, one.computed = [[] for _ in self.groups], 0
        return 0

    def _longest_hit(self, one: Request) -> int:
        """Blocks that every layer group has, as far as it can still read them; never all tokens."""
        for hit in range((len(one.tokens) - 1) // self.size, 0, -1):
            if all(
                self.key(one, group, index) in self.pool.found
                for group in range(len(self.groups))
                for index in range(self.first_read(group, hit * self.size), hit)
            ):
                return hit
        return 0

    def _hit_blocks(self, one: Request, group: int, hit: int) -> list[int]:
        first = self.first_read(group, hit * self.size)
        found = [self.pool.found[self.key(one, group, index)] for index in range(first, hit)]
        return [NULL] * min(first, hit) + found

    def first_read(self, group: int, computed: int) -> int:
        """The first block that a query behind so many tokens reads."""
        window = self.windows[group]
        return 0 if window is None else max(0, computed - window + 1) // self.size

    def key(self, one: Request, group: int, index: int) -> Key:
        """Of a full block."""
        return group, one.wanted.key.salt, tuple(one.tokens[: (index + 1) * self.size])

    def _reserve(self, one: Request, count: int) -> bool:
        """Blocks for so many more tokens in every group, or none."""
        stop = one.computed + count
        needed = -(-stop // self.size)
        if sum(max(0, needed - len(blocks)) for blocks in one.blocks) > len(self.pool.free):
            return False
        on_board = one in self.running
        for group, blocks in enumerate(one.blocks):
            new = [self.pool.take() for _ in range(needed - len(blocks))]
            blocks += new
            if on_board:
                self.worker.append(group, self.worker.row_of(one.name), new)
            for index in range(one.computed // self.size, stop // self.size):
                self.pool.publish(blocks[index], self.key(one, group, index))
        return True

    def _pass_window(self, one: Request) -> None:
        """Give up the blocks that nobody of this request reads any more."""
        for group, blocks in enumerate(one.blocks):
            for index in range(self.first_read(group, one.computed)):
                if index < len(blocks) and blocks[index] != NULL:
                    self.pool.give_back(blocks[index])
                    blocks[index] = NULL

    # -------------------------------------------------------------------------------------- worker

    def _forward(self, chosen: dict[str, int]) -> None:
        """One pass over the rows that were chosen, as its attention layers see it."""
        rows = [row for row, name in enumerate(self.worker.rows) if name in chosen]
        requests = {one.name: one for one in self.running}
        batch = [requests[self.worker.rows[row] or ""] for row in rows]
        counts = [chosen[one.name] for one in batch]
        spans = [
            range(one.computed, one.computed + count)
            for one, count in zip(batch, counts, strict=True)
        ]
        self.watch.passes(
            Batch(
                [one.name for one in batch],
                np.cumsum([0, *counts]),
                np.array([span.stop for span in spans]),
                np.concatenate(
                    [self.fed(one, span) for one, span in zip(batch, spans, strict=True)]
                ),
                np.concatenate([np.array(span) for span in spans]),
                [one.preemptions for one in batch],
            )
        )
        self.attend(rows, spans)

    def attend(self, rows: Sequence[int], spans: Sequence[range]) -> None:
        """Every layer group writes, and then reads."""
        for group in range(len(self.groups)):
            places = [
                self.worker.slots(group, row, np.array(span), self.size)
                for row, span in zip(rows, spans, strict=True)
            ]
            self.watch.wrote(group, np.concatenate(places))
            self.watch.reads(group, self.worker.tables[group, rows])

    def fed(self, one: Request, span: range) -> Ints:
        """The tokens that the model is given."""
        return np.array([one.tokens[position] for position in span])

    def _sample(self, chosen: dict[str, int]) -> list[Answer]:
        answers = []
        for one in [each for each in self.running if each.name in chosen]:
            one.computed += chosen[one.name]
            if one.computed < len(one.tokens):
                continue
            token = hash(tuple(one.tokens)) % self.vocabulary
            one.tokens.append(token)
            answers.append(Answer(one.name, (token,), one.done))
            if one.done:
                self._leave(one)
        return answers
