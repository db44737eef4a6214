"""Facts about `SimpleRadixCache`: how much of a prompt is known, and what is left to compute."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import permutations
from typing import Any

from kvassay.harness.textbook import Exercise
from kvassay.suites.textbook.checks import Check, Problem, Trial, counted, entered, problems

FACTS: list[Check] = []
ENTRIES = ([0, 1, 2, 3], [0, 1, 2, 3, 4], [9, 9, 9])
REMOVALS = ("evict", "remove", "delete", "clear", "drop", "pop", "free")
fact = partial(entered, FACTS)


def check_radix(radix_class: type, *, beyond: bool = False) -> list[Problem]:
    """What is wrong with a prefix cache; `beyond` also asks for what the usual one lacks."""
    return problems(FACTS, Exercise(None, None, radix_class), beyond=beyond)


class Radix(Trial):
    """A prefix cache of the solution's class with some entries."""

    def __init__(self, exercise: Exercise, entries: Sequence[Sequence[int]]) -> None:
        super().__init__()
        if exercise.radix_class is None:
            raise Problem("the class SimpleRadixCache()", "a file without it")
        with self.doing("SimpleRadixCache()"):
            self.own: Any = exercise.radix_class()
        for entry in entries:
            with self.doing(f"insert({list(entry)})"):
                self.own.insert(list(entry))

    def expect_match(self, tokens: Sequence[int], *wanted: int) -> None:
        """`match_prefix` answers one of `wanted`."""
        with self.doing(f"match_prefix({list(tokens)})", looking=True):
            length = self.own.match_prefix(list(tokens))
            if length not in wanted or isinstance(length, bool):
                raise self.problem(" or ".join(map(str, wanted)), repr(length))

    def expect_split(self, tokens: Sequence[int], hit_len: int) -> None:
        """`split_prompt` cuts after `hit_len` tokens."""
        wanted = (list(tokens[:hit_len]), list(tokens[hit_len:]), hit_len)
        with self.doing(f"split_prompt({list(tokens)})", looking=True):
            answer = self.own.split_prompt(list(tokens))
            if not isinstance(answer, tuple | list) or len(answer) != 3:
                raise self.problem("(hit_prefix, miss_suffix, hit_len)", repr(answer))
            got = (list(answer[0]), list(answer[1]), answer[2])
            if got != wanted:
                raise self.problem(f"{wanted}", f"{got}")


@fact(
    "the longest cached prefix counts, in whatever order the entries came",
    "look at all entries and keep the longest match; the first one that fits may be shorter",
)
def longest_match(exercise: Exercise) -> None:
    for entries in permutations(ENTRIES):
        Radix(exercise, entries).expect_match([0, 1, 2, 3, 4, 5], 5)


@fact(
    "a prompt is split into what is cached and what is left to compute",
    "return tokens[:hit_len], tokens[hit_len:], hit_len",
)
def splits_the_prompt(exercise: Exercise) -> None:
    cache = Radix(exercise, ENTRIES)
    cache.expect_split([0, 1, 2, 3, 4, 5], 5)
    cache.expect_split([0, 1, 2, 3, 4], 5)
    cache.expect_split([7, 6, 5], 0)


@fact(
    "a prompt that begins like no entry matches 0",
    "the first token decides whether anything matches at all",
)
def stranger_matches_nothing(exercise: Exercise) -> None:
    Radix(exercise, ()).expect_match([0, 1], 0)
    cache = Radix(exercise, ENTRIES)
    cache.expect_match([7, 6, 5], 0)
    cache.expect_match([7, 1, 2, 3], 0)


@fact(
    "nothing counts past the first token that differs",
    "the KV of a token depends on all tokens before it: stop at the first difference, even where "
    "later tokens agree again",
)
def stops_at_the_first_difference(exercise: Exercise) -> None:
    # The exercise leaves open whether the beginning of an entry counts; the entry's part and 0 do.
    cache = Radix(exercise, ENTRIES)
    cache.expect_match([0, 1, 7, 3, 4], 2, 0)
    cache.expect_match([0, 7, 2, 3], 1, 0)
    cache.expect_match([9, 9], 2, 0)


@fact(
    "what entries have in common is stored once",
    "a radix tree splits an entry where another one leaves it, and hangs both rests below what "
    "they share. (The usual solution keeps a list and stores it for each.)",
    beyond=True,
)
def entries_share(exercise: Exercise) -> None:
    cache = Radix(exercise, ([70_001, 70_002, 70_003], [70_001, 70_002, 70_004]))
    times = _occurrences(cache.own, 70_002, set())
    if times > 1:
        raise cache.problem("token 70002 in one place", counted(times, "place"))


def _occurrences(held: Any, token: int, seen: set[int]) -> int:
    """How often a token is in whatever an object holds; 0 if it is held in another form."""
    if isinstance(held, int):
        return int(held == token)
    if isinstance(held, str | bytes) or id(held) in seen:
        return 0
    seen.add(id(held))
    if isinstance(held, dict):
        parts = [*held.keys(), *held.values()]
    elif isinstance(held, list | tuple | set | frozenset):
        parts = list(held)
    else:
        parts = list(getattr(held, "__dict__", {}).values())
    return sum(_occurrences(part, token, seen) for part in parts)


@fact(
    "entries can leave",
    "memory is finite: a real cache drops what was not used for the longest time, and needs a "
    "method for it. (The usual solution has none.)",
    beyond=True,
)
def entries_leave(exercise: Exercise) -> None:
    cache = Radix(exercise, ENTRIES)
    offered = [name for name in dir(cache.own) if callable(getattr(cache.own, name))]
    own = [name for name in offered if not name.startswith("_")]
    if not any(word in name for name in own for word in REMOVALS):
        raise cache.problem("a method that removes entries", f"only {', '.join(own)}")
