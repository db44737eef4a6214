"""Facts about `KVCacheManager` and `Request`: who gets which block when, and what is read back.

Solutions may keep their memory in lists, numpy arrays or torch tensors.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from kvassay.harness.textbook import Exercise
from kvassay.suites.textbook.checks import Check, Problem, Trial, counted, entered, problems

FACTS: list[Check] = []
HEAD_DIM = 2
fact = partial(entered, FACTS)


def check_pool(pool_class: type, request_class: type, *, beyond: bool = False) -> list[Problem]:
    """What is wrong with a pool; `beyond` also asks for what the usual solution gets wrong."""
    return problems(FACTS, Exercise(pool_class, request_class, None), beyond=beyond)


class Pool(Trial):
    """A pool of the solution's class, and its requests by name."""

    def __init__(self, exercise: Exercise, num_blocks: int, block_size: int = 4) -> None:
        super().__init__()
        if exercise.pool_class is None or exercise.request_class is None:
            wanted = "KVCacheManager(num_blocks, block_size, head_dim)"
            wanted += " and Request(request_id, prompt_len)"
            raise Problem(f"the classes {wanted}", "a file without one of them")
        self.num_blocks, self.block_size = num_blocks, block_size
        self._request_class = exercise.request_class
        with self.doing(f"KVCacheManager({num_blocks}, {block_size}, {HEAD_DIM})"):
            self.own: Any = exercise.pool_class(num_blocks, block_size, HEAD_DIM)

    def request(self, name: str, prompt_len: int) -> Any:
        """A request that has nothing yet."""
        with self.doing(f"Request({name!r}, {prompt_len})", looking=True):
            req = self._request_class(name, prompt_len)
            table = list(req.block_table)
            if table:
                hint = "a default value is made once and shared by all: write self.block_table = []"
                raise self.problem("an empty block_table", f"{table}", hint)
        return req

    def prefill(self, name: str, prompt_len: int) -> Any:
        """A request that has got its blocks."""
        req = self.request(name, prompt_len)
        with self.doing(f"prefill of {name} ({counted(prompt_len, 'token')})"):
            self.own.allocate_for_prefill(req)
        return req

    def decode(self, name: str, req: Any) -> None:
        """One token more."""
        with self.doing(f"a decode of {name}"):
            self.own.allocate_for_decode(req)

    def refuses_prefill(self, name: str, prompt_len: int) -> None:
        """A prefill that must say OOM."""
        req = self.request(name, prompt_len)
        step = f"prefill of {name} ({counted(prompt_len, 'token')})"
        self.refuses(step, lambda: self.own.allocate_for_prefill(req))

    def refuses_decode(self, name: str, req: Any) -> None:
        """A decode that must say OOM."""
        self.refuses(f"a decode of {name}", lambda: self.own.allocate_for_decode(req))

    def table(self, name: str, req: Any, length: int) -> list[int]:
        """The table of a request, with as many blocks as `length` tokens fill."""
        with self.doing(f"reading block_table of {name}", looking=True):
            table = [int(block) for block in req.block_table]
        wanted = counted(-(-length // self.block_size), "block")
        if counted(len(table), "block") != wanted:
            got = f"{counted(len(table), 'block')}: {table}"
            raise self.problem(
                f"{wanted} in block_table of {name}, for {counted(length, 'token')}", got
            )
        return table

    def free(self) -> list[int]:
        """The free blocks."""
        with self.doing("reading free_blocks", looking=True):
            return [int(block) for block in self.own.free_blocks]

    def expect_free(self, wanted: int, hint: str = "") -> None:
        """So many blocks are free."""
        left = self.free()
        if len(left) != wanted:
            got = f"{counted(len(left), 'block')}: {left}"
            raise self.problem(f"{counted(wanted, 'block')} in free_blocks", got, hint)

    def expect_length(self, name: str, req: Any, wanted: int, hint: str = "") -> None:
        """`seq_len` is right."""
        with self.doing(f"reading seq_len of {name}", looking=True):
            length = int(req.seq_len)
        if length != wanted:
            raise self.problem(f"seq_len {wanted} of {name}", f"{length}", hint)


AT_BOUNDARY = (
    "a block is needed for the first token that the request's blocks cannot hold; no earlier and "
    "no later"
)


@fact("a prompt of 6 tokens takes 2 of 10 blocks", "needed = prompt_len / block_size, rounded up")
def prompt_takes_blocks(exercise: Exercise) -> None:
    pool = Pool(exercise, 10)
    req = pool.prefill("A", 6)
    pool.table("A", req, 6)
    pool.expect_free(8)


@fact("decoding to 7 and 8 tokens takes no block, to 9 a third", AT_BOUNDARY)
def decode_takes_a_block_at_the_boundary(exercise: Exercise) -> None:
    pool = Pool(exercise, 10)
    req = pool.prefill("A", 6)
    for length in (7, 8, 9):
        pool.decode("A", req)
        pool.table("A", req, length)
    pool.expect_free(7)


@fact("after a prompt that fills its block, one decode takes a second", AT_BOUNDARY)
def full_block_then_decode(exercise: Exercise) -> None:
    pool = Pool(exercise, 10)
    req = pool.prefill("A", 4)
    pool.table("A", req, 4)
    pool.decode("A", req)
    pool.table("A", req, 5)


@fact("whatever the lengths, a request has the blocks that its tokens fill", AT_BOUNDARY)
def every_length(exercise: Exercise) -> None:
    hint = "seq_len is the prompt's length, and one more after each decode"
    for block_size in (2, 3, 5):
        for prompt_len in range(1, 2 * block_size + 2):
            pool = Pool(exercise, 8, block_size)
            req = pool.prefill("A", prompt_len)
            pool.table("A", req, prompt_len)
            for length in range(prompt_len + 1, prompt_len + block_size + 2):
                pool.decode("A", req)
                pool.table("A", req, length)
                pool.expect_length("A", req, length, hint)


@fact(
    "a pool of one block refuses a prompt of 5 tokens with an error that says OOM",
    "if free_blocks has fewer blocks than are needed, raise before you take any",
)
def prompt_out_of_memory(exercise: Exercise) -> None:
    Pool(exercise, 1).refuses_prefill("A", 5)


@fact(
    "a decode that needs a block when none is free says OOM",
    "see whether free_blocks is empty before you take from it",
)
def decode_out_of_memory(exercise: Exercise) -> None:
    pool = Pool(exercise, 1)
    pool.refuses_decode("A", pool.prefill("A", 4))


@fact(
    "a refused prompt keeps no block",
    "blocks taken before the error are lost: no request has them, and free_blocks does not list "
    "them any more. Count before you take, or put them back",
)
def refused_prompt_leaks_nothing(exercise: Exercise) -> None:
    pool = Pool(exercise, 3)
    pool.prefill("A", 4)
    pool.refuses_prefill("B", 12)
    pool.expect_free(2)
    pool.table("C", pool.prefill("C", 8), 8)


@fact(
    "no block belongs to two requests, and none is free and taken at once",
    "the block that goes into block_table must be the very one that leaves free_blocks",
)
def blocks_have_one_owner(exercise: Exercise) -> None:
    pool = Pool(exercise, 5)
    first, second = pool.prefill("A", 6), pool.prefill("B", 6)
    one, other, free = pool.table("A", first, 6), pool.table("B", second, 6), pool.free()
    if sorted([*one, *other, *free]) != list(range(5)):
        expected = "each of the blocks 0 to 4 once: with A, with B or in free_blocks"
        raise pool.problem(expected, f"A has {one}, B has {other}, free are {free}")


@fact(
    "reading back gives the first seq_len rows in order, the last block cut off",
    "token p is in block block_table[p // block_size], row p % block_size. Join the blocks in the "
    "order of the table, keep seq_len rows; and each row must be memory of its own",
)
def reads_back(exercise: Exercise) -> None:
    pool = Pool(exercise, 10)
    req, other = pool.prefill("A", 6), pool.prefill("B", 4)
    pool.decode("B", other)
    for _ in range(3):
        pool.decode("A", req)
    table = pool.table("A", req, 9)
    places = [(table[position // 4], position % 4) for position in range(9)]
    with pool.doing("writing each row [r] of each block [b] as [10 * b + r, 10 * b + r + 0.5]"):
        for block in range(10):
            for row in range(4):
                for dim, value in enumerate(_content(block, row)):
                    pool.own.physical_kv_cache[block][row][dim] = value
    with pool.doing("get_physical_cache of A"):
        rows = [[float(x) for x in row] for row in pool.own.get_physical_cache(req)]
    if len(rows) != 9:
        raise pool.problem("9 rows, as A has 9 tokens", counted(len(rows), "row"))
    for position, (block, row) in enumerate(places):
        if rows[position] != _content(block, row):
            expected = f"as row {position} that of block {block}, row {row}: {_content(block, row)}"
            raise pool.problem(expected, f"{rows[position]}")


def _content(block: int, row: int) -> list[float]:
    return [10.0 * block + row, 10.0 * block + row + 0.5]


@fact(
    "with blocks of one token, every decode takes a block",
    "seq_len % block_size == 1 is never true when block_size is 1. Compare seq_len with the tokens "
    "that the request's blocks can hold instead. (The usual solution has this mistake, too.)",
    beyond=True,
)
def blocks_of_one_token(exercise: Exercise) -> None:
    pool = Pool(exercise, 4, 1)
    req = pool.prefill("A", 2)
    pool.decode("A", req)
    pool.table("A", req, 3)


@fact(
    "a refused decode leaves the length as it was",
    "add 1 to seq_len only when the token has a block. Whoever catches the error will try again, "
    "and then one token has no place. (The usual solution has this mistake, too.)",
    beyond=True,
)
def refused_decode_keeps_the_length(exercise: Exercise) -> None:
    pool = Pool(exercise, 1)
    req = pool.prefill("A", 4)
    pool.refuses_decode("A", req)
    pool.expect_length("A", req, 4)
