"""Solutions of the exercise by students who saw only its description: right and wrong ones.

Each wrong one is `SOLUTION` with one spot changed, as a slip would.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvassay.harness.campaign import Budget, Campaign
from kvassay.harness.contract import CacheKey, CacheManager, Counters, OutOfBlocks
from kvassay.harness.registry import Registration
from kvassay.harness.textbook import (
    AdaptedPool,
    Exercise,
    NotAnExercise,
    exercise_in,
    find_exercise,
    recognise,
)
from kvassay.suites.textbook import checks
from kvassay.suites.textbook import pool as pool_facts
from kvassay.suites.textbook.checks import Problem
from kvassay.suites.textbook.pool import check_pool
from kvassay.suites.textbook.radix import check_radix

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.usefixtures("own_registry")

SOLUTION = """
class Request:
    def __init__(self, request_id, prompt_len):
        self.request_id = request_id
        self.seq_len = prompt_len
        self.block_table = []


class KVCacheManager:
    def __init__(self, num_blocks, block_size, head_dim):
        self.block_size = block_size
        self.physical_kv_cache = [[[0] * head_dim for _ in range(block_size)] for _ in range(num_blocks)]
        self.free_blocks = [b for b in range(num_blocks)]

    def allocate_for_prefill(self, req):
        n = -(-req.seq_len // self.block_size)
        if len(self.free_blocks) < n:
            raise RuntimeError("OOM")
        for _ in range(n):
            req.block_table.append(self.free_blocks.pop())

    def allocate_for_decode(self, req):
        if req.seq_len == len(req.block_table) * self.block_size:
            if not self.free_blocks:
                raise RuntimeError("OOM")
            req.block_table.append(self.free_blocks.pop())
        req.seq_len += 1

    def get_physical_cache(self, req):
        out = []
        for b in req.block_table:
            out += self.physical_kv_cache[b]
        return out[:req.seq_len]


class SimpleRadixCache:
    def __init__(self):
        self.entries = []

    def insert(self, tokens):
        self.entries.append(tokens)

    def match_prefix(self, tokens):
        best = 0
        for e in self.entries:
            n = 0
            for a, b in zip(e, tokens):
                if a != b:
                    break
                n += 1
            best = max(best, n)
        return best

    def split_prompt(self, tokens):
        n = self.match_prefix(tokens)
        return tokens[:n], tokens[n:], n
"""  # noqa: E501

OTHERWISE_RIGHT: dict[str, list[tuple[str, str]]] = {
    "as it stands": [],
    "blocks from the other end": [("free_blocks.pop()", "free_blocks.pop(0)")],
    "a set of free blocks": [("[b for b in range(num_blocks)]", "set(range(num_blocks))")],
    "a deque": [
        ("[b for b in range(num_blocks)]", "__import__('collections').deque(range(num_blocks))"),
        ("free_blocks.pop()", "free_blocks.popleft()"),
    ],
    "rows that are arrays": [
        ("[[0] * head_dim for", "[__import__('array').array('d', [0] * head_dim) for")
    ],
    "an error with more words": [('"OOM"', '"KV cache: OOM"')],
    "whole entries only": [("best = max(best, n)", "best = max(best, n if n == len(e) else 0)")],
    "an own release": [
        (
            "    def get_physical_cache",
            "    def free(self, req):\n        self.free_blocks += req.block_table\n"
            "        req.block_table = []\n\n    def get_physical_cache",
        )
    ],
}

WRONG_POOLS: dict[str, tuple[str, str, str]] = {
    "prompt rounded down": (
        "-(-req.seq_len // self.block_size)",
        "req.seq_len // self.block_size",
        "expected: 2 blocks in block_table of A, for 6 tokens",
    ),
    "prompt always one more": (
        "-(-req.seq_len // self.block_size)",
        "req.seq_len // self.block_size + 1",
        "got: 2 blocks",
    ),
    "boundary one early": (
        "if req.seq_len == len(req.block_table) * self.block_size:",
        "if (req.seq_len + 1) % self.block_size == 0:",
        "decoding to 7 and 8 tokens takes no block, to 9 a third",
    ),
    "boundary one late": (
        "if req.seq_len == len(req.block_table) * self.block_size:",
        "if req.seq_len == len(req.block_table) * self.block_size + 1:",
        "expected: 3 blocks in block_table of A, for 9 tokens",
    ),
    "length not counted": ("        req.seq_len += 1\n", "", "expected: seq_len "),
    "taken from one end, struck off at the other": (
        "req.block_table.append(self.free_blocks.pop())",
        "req.block_table.append(self.free_blocks[-1]); self.free_blocks.pop(0)",
        "no block belongs to two requests, and none is free and taken at once",
    ),
    "never struck off": (
        "req.block_table.append(self.free_blocks.pop())",
        "req.block_table.append(self.free_blocks[-len(req.block_table) - 1])",
        "expected: 8 blocks in free_blocks",
    ),
    "one table for all": (
        "        self.block_table = []",
        "        self.block_table = Request.table\n\n    table = []",
        "a default value is made once and shared by all",
    ),
    "leak when refused": (
        '        if len(self.free_blocks) < n:\n            raise RuntimeError("OOM")\n'
        "        for _ in range(n):\n",
        "        for _ in range(n):\n            if not self.free_blocks:\n"
        '                raise RuntimeError("OOM")\n',
        "blocks taken before the error are lost",
    ),
    "no check of the prompt": (
        "if len(self.free_blocks) < n:",
        "if False:",
        "IndexError: pop from empty list (line 20 of student.py)",
    ),
    "no check of the decode": (
        '            if not self.free_blocks:\n                raise RuntimeError("OOM")\n',
        "",
        "a decode that needs a block when none is free says OOM",
    ),
    "another error": (
        'raise RuntimeError("OOM")',
        'raise MemoryError("OOM")',
        'expected: RuntimeError("OOM") got: MemoryError: OOM',
    ),
    "other words": ('"OOM"', '"no block left"', "got: RuntimeError: no block left"),
    "silent": ('raise RuntimeError("OOM")', "return", "got: no error"),
    "last block not cut off": ("out[:req.seq_len]", "out", "expected: 9 rows, as A has 9 tokens"),
    "cut at the wrong end": ("out[:req.seq_len]", "out[-req.seq_len:]", "as row 0 that of block"),
    "in the order of the pool": (
        "for b in req.block_table:",
        "for b in sorted(req.block_table):",
        "Join the blocks in the order of the table",
    ),
    "rows that are one list": (
        "[[0] * head_dim for _ in range(block_size)]",
        "[[0] * head_dim] * block_size",
        "each row must be memory of its own",
    ),
    "nothing read": ("return out[:req.seq_len]", "pass", "TypeError: 'NoneType' object is not"),
    "a loop without end": (
        "        return out[:req.seq_len]",
        "        while True:\n            out = out[: req.seq_len]",
        "no answer within 0.5 s: it hangs",
    ),
    "a method is missing": (
        "def allocate_for_decode",
        "def decode",
        "object has no attribute 'allocate_for_decode'",
    ),
    "no physical cache": ("self.physical_kv_cache =", "self.cache =", "'physical_kv_cache'"),
}
WRONG_RADIXES: dict[str, tuple[str, str, str]] = {
    "the first match": (
        "best = max(best, n)",
        "if n:\n                return n",
        "the first one that fits may be shorter",
    ),
    "the last match": (
        "best = max(best, n)",
        "best = n",
        "in whatever order the entries came",
    ),
    "goes on after a difference": (
        "break",
        "continue",
        "insert([9, 9, 9]), match_prefix([7, 1, 2, 3]) expected: 0 got: 3",
    ),
    "the whole entry counts": ("best = max(best, n)", "best = max(best, n and len(e))", "2 or 0"),
    "the wrong way round": (
        "return tokens[:n], tokens[n:], n",
        "return tokens[n:], tokens[:n], n",
        "expected: ([0, 1, 2, 3, 4], [5], 5) got: ([5], [0, 1, 2, 3, 4], 5)",
    ),
    "one token lost": ("tokens[n:], n", "tokens[n + 1:], n", "got: ([0, 1, 2, 3, 4], [], 5)"),
    "no length": ("tokens[n:], n", "tokens[n:]", "expected: (hit_prefix, miss_suffix, hit_len)"),
    "no answer": ("return best", "best", "expected: 5 got: None"),
    "an index error": (
        "for a, b in zip(e, tokens):",
        "for a, b in [(e[i], tokens[i]) for i in range(len(tokens))]:",
        "IndexError: list index out of range (line ",
    ),
}


def changed(*spots: tuple[str, str]) -> str:
    source = SOLUTION
    for old, new in spots:
        assert old in source
        source = source.replace(old, new)
    return source


def solution(source: str = SOLUTION) -> ModuleType:
    module = ModuleType("student")
    exec(compile(source, "/home/student/student.py", "exec"), module.__dict__)
    return module


def told(problems: list[Problem]) -> str:
    """What a student reads, however the lines are broken."""
    return " ".join(" ".join(str(problem) for problem in problems).split())


def of_pool(module: ModuleType) -> list[Problem]:
    return check_pool(module.KVCacheManager, module.Request, beyond=True)


# ---------------------------------------------------------------------------------- the checks


@pytest.mark.parametrize("name", OTHERWISE_RIGHT)
def test_a_right_solution_has_no_problem(name: str) -> None:
    module = solution(changed(*OTHERWISE_RIGHT[name]))
    assert told(of_pool(module)) == ""
    assert told(check_radix(module.SimpleRadixCache)) == ""


@pytest.mark.parametrize("name", WRONG_POOLS)
def test_a_wrong_pool_is_told_what_is_wrong(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "PATIENCE", 0.5)
    old, new, words = WRONG_POOLS[name]
    story = told(of_pool(solution(changed((old, new)))))
    assert words in story
    assert "kvassay" not in story.lower()


@pytest.mark.parametrize("name", WRONG_RADIXES)
def test_a_wrong_prefix_cache_is_told_what_is_wrong(name: str) -> None:
    old, new, words = WRONG_RADIXES[name]
    story = told(check_radix(solution(changed((old, new))).SimpleRadixCache))
    assert words in story


def test_a_slip_is_told_with_all_that_led_to_it() -> None:
    old, new, _ = WRONG_POOLS["boundary one late"]
    problem = of_pool(solution(changed((old, new))))[0]
    assert str(problem) == (
        "decoding to 7 and 8 tokens takes no block, to 9 a third\n"
        "  after:    KVCacheManager(10, 4, 2), prefill of A (6 tokens), a decode of A (3 times)\n"
        "  expected: 3 blocks in block_table of A, for 9 tokens\n"
        "  got:      2 blocks: [9, 8]\n"
        "  hint:     a block is needed for the first token that the request's blocks cannot hold; "
        "no\n            earlier and no later"
    )


def test_a_tree_that_shares_and_forgets_goes_beyond_the_exercise() -> None:
    class Tree:
        def __init__(self) -> None:
            self.root: dict[int, Any] = {}

        def insert(self, tokens: list[int]) -> None:
            node = self.root
            for token in tokens:
                node = node.setdefault(token, {})

        def evict(self) -> None: ...

        def match_prefix(self, tokens: list[int]) -> int:
            node, length = self.root, 0
            while length < len(tokens) and tokens[length] in node:
                node, length = node[tokens[length]], length + 1
            return length

        def split_prompt(self, tokens: list[int]) -> tuple[list[int], list[int], int]:
            length = self.match_prefix(tokens)
            return tokens[:length], tokens[length:], length

    assert told(check_radix(Tree, beyond=True)) == ""
    assert len(check_radix(solution().SimpleRadixCache, beyond=True)) == 2


# ---------------------------------------------------------------------------------- the adapter


def adapted(source: str = SOLUTION, name: str = "student") -> Registration:
    (registration,) = recognise(solution(source), Path(f"/home/student/{name}.py"))
    return registration


def built(source: str = SOLUTION, num_blocks: int = 4, block_size: int = 2) -> AdaptedPool:
    instance = adapted(source).build(num_blocks=num_blocks, block_size=block_size)
    assert isinstance(instance, AdaptedPool)
    return instance


def test_a_solution_is_a_cache_manager_named_after_its_file() -> None:
    registration = adapted(name="my solution")
    assert (registration.name, registration.kind) == ("my-solution", CacheManager)
    assert registration.origin == Path("/home/student/my solution.py")


def test_an_append_of_several_tokens_is_all_or_nothing() -> None:
    pool = built(num_blocks=3)
    pool.admit("r", CacheKey(range(3)))
    with pytest.raises(OutOfBlocks, match=r"^OOM: 2 blocks needed for 4 decodes"):
        pool.append("r", range(4))
    assert pool.counters() == Counters(free=1, cached=0, used=2)
    pool.append("r", range(3))
    assert pool.counters() == Counters(free=0, cached=0, used=3)


def test_an_error_that_says_oom_somewhere_is_a_refusal() -> None:
    pool = built(changed(('"OOM"', '"pool is OOM"')), num_blocks=1)
    with pytest.raises(OutOfBlocks, match=r"^OOM: pool is OOM"):
        pool.admit("r", CacheKey(range(3)))
    pool = built(changed(('"OOM"', '"no block left"')), num_blocks=1)
    with pytest.raises(RuntimeError, match=r"^no block left"):
        pool.admit("r", CacheKey(range(3)))


@pytest.mark.parametrize("free", [list, set, deque, tuple])
def test_release_puts_the_blocks_back(free: Callable[[list[int]], Any]) -> None:
    pool = built()
    pool.admit("r", CacheKey(range(5)))
    pool.pool.free_blocks = free(pool.pool.free_blocks)
    pool.release("r")
    assert sorted(pool.pool.free_blocks) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("method", "used"),
    [
        ("release(self, request)", True),
        ("free(self, req, late=False)", True),
        ("free(self, block)", False),
        ("free(self)", False),
        ("release(self, req, outcome)", False),
    ],
)
def test_an_own_release_is_used_if_it_takes_a_request(method: str, used: bool) -> None:
    lines = f"    def {method}:\n        self.asked = True\n\n    def get_physical_cache"
    pool = built(changed(("    def get_physical_cache", lines)))
    pool.admit("r", CacheKey(range(5)))
    pool.release("r")
    assert hasattr(pool.pool, "asked") is used
    assert (len(pool.pool.free_blocks) == 4) is not used


@pytest.mark.parametrize("name", OTHERWISE_RIGHT)
def test_the_assay_passes_right_solutions(name: str) -> None:
    registration = adapted(changed(*OTHERWISE_RIGHT[name]))
    outcome = Campaign(registration, "allocator", Budget(60)).run()
    assert {found: str(finding.verdict) for found, finding in outcome.findings.items()} == {}


@pytest.mark.parametrize(
    ("name", "invariants"),
    [
        ("boundary one early", {"A4", "A7"}),
        ("boundary one late", {"A7"}),
        ("leak when refused", {"A1", "A4", "A5"}),
        ("taken from one end, struck off at the other", {"A2", "A3"}),
        ("another error", {"error"}),
    ],
)
def test_the_assay_convicts_wrong_ones(name: str, invariants: set[str]) -> None:
    old, new, _ = WRONG_POOLS[name]
    outcome = Campaign(adapted(changed((old, new))), "allocator", Budget(60)).run()
    assert outcome.findings
    assert set(outcome.findings) <= invariants


# ------------------------------------------------------------------------------------ recognising


def test_only_the_classes_of_the_exercise_are_recognised() -> None:
    assert exercise_in(ModuleType("empty")) is None
    assert exercise_in(solution("class Request: ...")) is None
    assert exercise_in(solution("class KVCacheManager:\n    def free_all(self): ...")) is None
    assert exercise_in(solution("KVCacheManager = SimpleRadixCache = 3")) is None
    half = solution("class SimpleRadixCache:\n    def insert(self, tokens): ...")
    assert exercise_in(half) == Exercise(None, None, half.SimpleRadixCache)
    assert recognise(half, Path("half.py")) == []


def test_a_pool_without_a_request_is_told_so() -> None:
    module = solution(changed(("class Request", "class Sequence")))
    assert recognise(module, Path("student.py")) == []
    exercise = exercise_in(module)
    assert exercise is not None
    problem = checks.problems(pool_facts.FACTS, exercise)[0]
    assert "Request(request_id, prompt_len)" in problem.expected


def test_an_exercise_is_found_by_file_module_and_name(tmp_path: Path) -> None:
    path = tmp_path / "student.py"
    path.write_text(SOLUTION)
    first = find_exercise(str(path))
    assert first.radix_class is not None
    assert find_exercise(str(path)) == first
    assert find_exercise("kvassay.impls.textbook").pool_class is not None
    for reference in ("paged", "nobody", 'exec:"python3 student.py"', "exec:python3 student.py"):
        with pytest.raises(NotAnExercise, match=f"^{reference} is no solution"):
            find_exercise(reference)


# ---------------------------------------------------------------------------------- the command


def assayed(pytester: pytest.Pytester, source: str, *arguments: str) -> pytest.RunResult:
    """`pytest suites/ --impl ./student.py`, as somebody runs it who has kvassay installed."""
    pytester.makepyfile(student=source)
    pytester.makeini("[pytest]")
    return pytester.runpytest_subprocess(
        *("-c", "tox.ini", "-p", "kvassay.harness.plugin", "--import-mode=importlib", "-ra"),
        *("--pyargs", "kvassay.suites", "--examples=60", "--impl=./student.py"),
        *arguments,
        timeout=60,
    )


def test_a_right_solution_passes_all_suites(pytester: pytest.Pytester) -> None:
    result = assayed(pytester, SOLUTION)
    assert result.ret == pytest.ExitCode.OK
    outcomes = result.parseoutcomes()
    assert outcomes["passed"] > 17
    assert outcomes["xfailed"] == 2
    result.stdout.fnmatch_lines(
        ["*7 pass, 16 not claimed*", "student (CacheManager): 240 examples, *"]
    )


def test_a_wrong_solution_fails_with_the_fact(pytester: pytest.Pytester) -> None:
    old, new, _ = WRONG_POOLS["boundary one late"]
    result = assayed(pytester, changed((old, new)), "-k", "textbook")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "decoding to 7 and 8 tokens takes no block, to 9 a third",
            "  after:    KVCacheManager(10, 4, 2), prefill of A (6 tokens), a decode of A *",
            "  expected: 3 blocks in block_table of A, for 9 tokens",
        ]
    )


def test_a_file_with_a_prefix_cache_alone_is_checked(pytester: pytest.Pytester) -> None:
    source = SOLUTION[SOLUTION.index("class SimpleRadixCache") :]
    result = assayed(pytester, source)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*no class KVCacheManager here*"])
    assert result.parseoutcomes()["passed"] == 4
