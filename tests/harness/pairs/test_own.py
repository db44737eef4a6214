"""Managers that attend by themselves, paired with their own attention, and judged as kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kvassay.harness.assay import Plan
from kvassay.harness.contract import (
    AttentionBatch,
    AttentionResult,
    CacheKey,
    CacheManager,
    Capability,
    Declaration,
    OutOfBlocks,
    Tail,
)
from kvassay.harness.pairs.assay import PairAssay
from kvassay.harness.pairs.blame import Side
from kvassay.harness.pairs.campaign import Campaign, Effort, Outcome
from kvassay.harness.pairs.form import Form
from kvassay.harness.pairs.own import OwnAttention
from kvassay.harness.pairs.pairing import own_attention
from kvassay.harness.pairs.pool import Garbage, NoPlace, Pool
from kvassay.harness.pairs.session import Pair
from kvassay.harness.registry import Registration
from kvassay.impls.faulty.hashed import DECLARATION, HashedCache
from kvassay.impls.torch_attention import TorchAttention

ATTENDS = replace(
    DECLARATION,
    capabilities=DECLARATION.capabilities | {Capability.ATTEND, Capability.CAUSAL, Capability.LSE},
    tail=Tail.ANY,
)


class Attending(HashedCache):
    """Goes by its own tables, not by that of the batch."""

    def attend(self, requests: Sequence[str], batch: AttentionBatch) -> AttentionResult:
        tables = [[*self.seen(request)] for request in requests]
        most = max(map(len, tables))
        padded = [[*table, *[0] * (most - len(table))] for table in tables]
        own = torch.tensor(padded, dtype=torch.int32)
        return TorchAttention()(replace(batch, block_table=own))

    def seen(self, request: str) -> Sequence[int]:
        return self.block_table(request)


class RemembersNames(Attending):
    """A request that comes again under its name sees the blocks of the first time."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self._first: dict[str, list[int]] = {}

    def seen(self, request: str) -> Sequence[int]:
        table = [*super().seen(request)]
        first = self._first.setdefault(request, table)
        return [*first, *table[len(first) :]][: len(table)]


def paired(build: type, declaration: Declaration = ATTENDS) -> Pair:
    manager = Registration("mine", CacheManager, build, declaration, reference="./mine.py")
    return Pair(manager, own_attention(manager))


def outcome(pair: Pair, examples: int = 12) -> Outcome:
    return Campaign(pair, Effort(examples, seconds=60.0)).run()


def test_a_right_one_passes_and_its_controls_are_convicted() -> None:
    pair = paired(Attending)
    assert pair.name == "mine+attend"
    seen = outcome(pair)
    assert seen.finding is None
    assert seen.blind is None
    assert seen.attended > 50
    assert seen.controls > 3


def test_one_that_reads_through_an_old_table_is_at_fault() -> None:
    finding = outcome(paired(RemembersNames)).finding
    assert finding is not None
    assert finding.verdict.side is Side.KERNEL
    assert finding.verdict.invariant in ("K1", "K8")
    assert finding.scenario.num_counted <= 4
    assert paired(Attending).replay(finding.scenario).verdict is None


def test_a_crash_of_it_is_told_as_one() -> None:
    class Dies(Attending):
        def attend(self, requests: Sequence[str], batch: AttentionBatch) -> AttentionResult:
            raise KeyError(requests[0])

    pair = paired(Dies)
    finding = outcome(pair, 1).finding
    assert finding is not None
    assert (finding.verdict.invariant, finding.verdict.side) == ("error", Side.KERNEL)


def test_its_ids_are_rows_of_the_caches() -> None:
    memory = Pool(Form("float32", 8, 4, 2, causal=True), 3, 2, Garbage.NAN, numbered=True)
    assert memory.places([2, 0]) == [2, 0]
    assert not {*memory.unused()} & {0, 1, 2}
    with pytest.raises(NoPlace):
        memory.place(3)


def test_reserved_ids_have_rows_too() -> None:
    class Shifted(Attending):
        def __init__(self, num_blocks: int, block_size: int) -> None:
            super().__init__(num_blocks, block_size)
            self._shown = {block: block + 1 for block in range(num_blocks)}

        def block_table(self, request: str) -> list[int]:
            return [self._shown[block] for block in super().block_table(request)]

        def take_copies(self) -> list[tuple[int, int]]:
            return [(self._shown[a], self._shown[b]) for a, b in super().take_copies()]

    pair = paired(Shifted, replace(ATTENDS, reserved_ids=(0,)))
    seen = outcome(pair, 4)
    assert seen.finding is None
    assert seen.attended > 10


def test_without_a_manager_it_answers_for_one_of_its_own(monkeypatch: Any) -> None:
    """So it is found out which shapes it takes; a refusal of its factory is one of the shape."""
    pair = paired(Attending)
    assert pair.offers(4)
    assert isinstance(pair.driver.instance, OwnAttention)

    def refuses(self: Any, num_blocks: int, block_size: int) -> None:
        raise ValueError("no such pool")

    monkeypatch.setattr(Attending, "__init__", refuses)
    assert not pair.offers(8)


class Half(Attending):
    """Computes in bfloat16 and refuses the rest."""

    def attend(self, requests: Sequence[str], batch: AttentionBatch) -> AttentionResult:
        if batch.query.dtype is not torch.bfloat16:
            raise ValueError("query: expected bfloat16")
        return super().attend(requests, batch)


class AtMostOne(Half):
    def admit(self, request: str, key: CacheKey) -> int:
        if self._live:
            raise OutOfBlocks("one request at a time")
        return super().admit(request, key)

    def fork(self, parent: str, children: Sequence[str]) -> None:
        raise OutOfBlocks("one request at a time")


class Reserving(Half):
    def _room_for_admission(self, hits: Sequence[int]) -> int:
        return super()._room_for_admission(hits) - 4


@pytest.mark.parametrize(
    ("manager", "declared"),
    [(Half, {}), (AtMostOne, {"max_requests": 1}), (Reserving, {"watermark": 4})],
)
def test_a_declared_limit_does_not_hide_what_is_refused(
    manager: type[Attending], declared: dict[str, Any]
) -> None:
    pair = paired(manager, replace(ATTENDS, **declared))
    assert pair.eyes is not None
    assert pair.eyes.form.dtype == "bfloat16"
    assert not pair.driver.calls["crashed"]
    seen = outcome(pair, 6)
    assert seen.finding is None
    assert seen.attended


def test_a_deviation_of_its_attention_is_stale_where_nothing_is_found(tmp_path: Path) -> None:
    (tmp_path / "mine.deviations.toml").write_text(
        '[[deviation]]\ninvariant = "K1"\nscope = "wrong output"\nreason = "known"\n'
        'link = "https://example.org/1"\n'
    )

    def assayed(build: type) -> PairAssay:
        manager = Registration(
            "mine", CacheManager, build, ATTENDS, reference="./mine.py", origin=tmp_path / "m.py"
        )
        plan = Plan(examples=6, strict_deviations=True, counterexamples=tmp_path / "found")
        return PairAssay(manager, own_attention(manager), plan)

    wrong = assayed(RemembersNames)
    wrong.require_no_stale_deviation()
    (run,) = [each["run"] for each in wrong.take_news() if "run" in each]
    assert run["reference"] == "./mine.py"
    (found,) = run["findings"]
    assert found["replay"].endswith("--impl ./mine.py")
    right = assayed(Attending)
    with pytest.raises(pytest.fail.Exception, match=r"not seen: K1 \(wrong output\): known"):
        right.require_no_stale_deviation()
