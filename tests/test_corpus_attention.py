"""The pinned cases of kernels: the built-in is right on each, and each convicts a planted fault."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from kvassay.harness.assay import corpus_folder
from kvassay.harness.attention import checks
from kvassay.harness.attention.campaign import verdict_on
from kvassay.harness.attention.case import load, to_json
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.oracle_kernel import spoiled, twisted
from kvassay.harness.attention.pinned import CORPUS, asks_what_is_claimed, pinned
from kvassay.harness.attention.wrong import Wrong
from kvassay.harness.contract import (
    AttentionBatch,
    AttentionResult,
    Capability,
    Declaration,
    Tail,
)
from kvassay.harness.registry import find
from kvassay.harness.violation import Crash
from kvassay.impls.faulty.kernel_controls import CONTROLS
from kvassay.impls.faulty.kernels import DECLARED, FAULTS

FOLDER = corpus_folder(CORPUS)
FILES = sorted(FOLDER.glob("*.json"))
Build = Callable[[], Any]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# -------------------------------------------------------------------- one fault each, on purpose


def _pieces(batch: AttentionBatch) -> list[tuple[slice, int]]:
    """Rows and keys of each sequence."""
    starts, lengths = batch.query_start.tolist(), batch.seq_lens.tolist()
    rows = [slice(start, stop) for start, stop in pairwise(starts)]
    return list(zip(rows, lengths, strict=True))


def _with_zeros(result: AttentionResult, rows: slice, number: int) -> None:
    """Keys and values of 0 count as so many more keys."""
    if number:
        lse = result.lse[rows].double()
        more = torch.logaddexp(lse, torch.full_like(lse, math.log(number)))
        factor = torch.exp(lse - more)[..., None]
        result.output[rows] = (result.output[rows] * factor).to(result.output.dtype)
        result.lse[rows] = more.float()


def zeros_to_a_tile(batch: AttentionBatch, result: AttentionResult) -> AttentionResult:
    """B97: tiles of 64 are filled up with zeros, which weigh what a score of 0 weighs."""
    for rows, length in _pieces(batch):
        _with_zeros(result, rows, -length % 64)
    return result


def empty_parts_count(batch: AttentionBatch, result: AttentionResult) -> AttentionResult:
    """B109: parts that lie left of the window count with what the scratch memory holds."""
    for rows, length in _pieces(batch):
        if batch.window_left is not None:
            _with_zeros(result, rows, max(0, length - batch.window_left) // 128)
    return result


def log_of_no_keys(batch: AttentionBatch, result: AttentionResult) -> AttentionResult:
    """B101: the logarithm of an empty sum is plus infinity."""
    result.lse[result.lse.isneginf()] = torch.inf
    return result


def nan_spreads(batch: AttentionBatch, result: AttentionResult) -> AttentionResult:
    """B102: a row without keys is 0 / 0, and a scale over the batch spreads it."""
    if result.lse.isneginf().any():
        result.output.fill_(torch.nan)
    return result


def lse_by_place_in_group(batch: AttentionBatch, result: AttentionResult) -> AttentionResult:
    """B106: heads of the LSE are written by their place in the group first."""
    kv_heads = batch.key_cache.shape[2]
    grouped = result.lse.view(result.lse.shape[0], kv_heads, -1)
    return AttentionResult(result.output, grouped.transpose(1, 2).reshape(result.lse.shape))


def nothing_for_small_heads(batch: AttentionBatch, result: AttentionResult) -> AttentionResult:
    """B121: the loop over a head runs head_dim // 64 times."""
    return AttentionResult(result.output * min(1, batch.query.shape[2] // 64), result.lse)


def rows_without_gaps(batch: AttentionBatch, result: AttentionResult) -> AttentionResult:
    """B156: rows are written as if those of the output followed each other."""
    dense = torch.empty(result.output.shape).stride()
    wrong = result.output.clone(memory_format=torch.contiguous_format)
    result.output.as_strided(wrong.shape, dense).copy_(wrong)
    return result


class Reading:
    """Another kernel that is given a batch of which something was misread."""

    def __init__(self, misread: Callable[[AttentionBatch], AttentionBatch]) -> None:
        self.misread = misread
        self.kernel = find("torch")[0].build()

    def __call__(self, batch: AttentionBatch) -> AttentionResult:
        result: AttentionResult = self.kernel(self.misread(batch))
        return result


def shortest_for_all(batch: AttentionBatch) -> AttentionBatch:
    """B111: one length, a single number, stands for all."""
    least = batch.seq_lens.min()
    return replace(batch, seq_lens=torch.full_like(batch.seq_lens, int(least)))


def codes_as_whole_numbers(batch: AttentionBatch) -> AttentionBatch:
    """B129: nobody said what the bytes of the cache are."""
    key, value = (cache.view(torch.int8) for cache in (batch.key_cache, batch.value_cache))
    return replace(batch, key_cache=key, value_cache=value)


def sinks_by_the_scale(batch: AttentionBatch) -> AttentionBatch:
    """B132: the scale of the keys is folded into that of the logits, and so into the sinks."""
    folded = batch.sinks is not None and batch.k_scale is not None
    return replace(batch, sinks=batch.sinks * batch.k_scale) if folded else batch


class TilesOfABlock(Reading):
    """B122: a tile is a block, and a tile has to be a power of two."""

    def __init__(self) -> None:
        super().__init__(lambda batch: batch)

    def __call__(self, batch: AttentionBatch) -> AttentionResult:
        size = batch.key_cache.shape[1]
        if size & (size - 1):
            raise RuntimeError("arange's range must be a power of 2")
        return super().__call__(batch)


# ------------------------------------------------------------------------------ cases have teeth


def twist(name: str) -> Build:
    return lambda: twisted(name)(DECLARED)


def fault(name: str) -> Build:
    return FAULTS[name].build


def spoilt(spoil: Callable[[AttentionBatch, AttentionResult], AttentionResult]) -> Build:
    return lambda: spoiled(spoil)(DECLARED)


def misread(change: Callable[[AttentionBatch], AttentionBatch]) -> Build:
    return lambda: Reading(change)


TEETH: dict[str, tuple[Build, str]] = {
    "b87-far-blocks": (fault("offsets-in-32-bit"), "K8 K13"),
    "b89-high-ids": (fault("ids-in-16-bit"), "K8"),
    "b91-interleaved": (twist("dense-caches"), "K8"),
    "b92-rows-with-gaps": (fault("writes-past-the-row"), "K13"),
    "b94-drafts-to-verify": (twist("mask-of-a-tile"), "K5"),
    "b96-part-of-a-block": (twist("whole-block"), "K2"),
    "b97-part-of-a-tile": (spoilt(zeros_to_a_tile), "K1 K2"),
    "b99-far-below-zero": (twist("maximum-from-zero"), "K12"),
    "b101-no-keys": (spoilt(log_of_no_keys), "K3"),
    "b102-padded-batch": (spoilt(nan_spreads), "K3"),
    "b104-nan-nearby": (fault("tail-times-zero"), "K2"),
    "b106-lse-of-groups": (spoilt(lse_by_place_in_group), "K1 K4 K7"),
    "b107-lse-of-parts": (fault("merge-by-maximum"), "K1 K4"),
    "b109-window-shorter-than-parts": (spoilt(empty_parts_count), "K1 K4 K6"),
    "b111-lengths-differ": (misread(shortest_for_all), "K1 K4 K8 K14"),
    "b112-chunk-after-a-hit": (twist("top-left"), "K1 K5"),
    "b114-window-and-itself": (twist("wide-window"), "K6"),
    "b116-window-at-decode": (twist("no-window-decode"), "K6"),
    "b117-window-of-five-rows": (twist("wide-window-prefill"), "K6"),
    "b119-heads-in-groups": (twist("modulo-heads"), "K7"),
    "b121-small-heads": (spoilt(nothing_for_small_heads), "K11"),
    "b122-large-odd-blocks": (TilesOfABlock, "error"),
    "b124-cap-and-mask": (twist("cap-after-mask"), "K9"),
    "b126-cap": (twist("no-softcap"), "K9"),
    "b127-scales": (twist("no-v-scale"), "K10"),
    "b129-type-of-the-cache": (misread(codes_as_whole_numbers), "K1 K10"),
    "b131-sinks": (twist("no-sinks"), "K9"),
    "b132-sinks-and-scales": (misread(sinks_by_the_scale), "K9 K10"),
    "b156-values-narrower-than-keys": (spoilt(rows_without_gaps), "K8 K13"),
}
"""Case -> a kernel that it convicts, and the invariants by which it may."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_case_is_well_formed_and_the_built_in_is_right_on_it(path: Path) -> None:
    trial = load(path)
    assert trial.note
    assert path.read_text(encoding="utf-8") == to_json(trial)
    (registration,) = find("torch")
    assert asks_what_is_claimed(trial.case, registration.declaration)
    assert verdict_on(checks.find(trial.check), Kernel.of(registration), trial.case) is None


@pytest.mark.parametrize("name", TEETH)
def test_a_case_convicts_a_fault(name: str) -> None:
    build, accepted = TEETH[name]
    trial = load(FOLDER / f"{name}.json")
    verdict = verdict_on(checks.find(trial.check), Kernel(build(), DECLARED, name), trial.case)
    if accepted == "error":
        assert isinstance(verdict, Crash)
        return
    assert isinstance(verdict, Wrong), verdict
    assert verdict.invariant in accepted.split(), verdict


def test_every_case_has_teeth() -> None:
    assert {path.stem for path in FILES} == {*TEETH}


def test_only_what_is_claimed_is_asked() -> None:
    asked = {name: len(pinned(control.declaration)) for name, control in CONTROLS.items()}
    assert asked["tile-16"] == len(FILES)
    assert asked["bare"] == 0
    without = Declaration(capabilities=DECLARED.capabilities - {Capability.SINKS}, tail=Tail.ANY)
    dropped = {trial.note for trial in pinned(DECLARED)} - {t.note for t in pinned(without)}
    assert {note[:5] for note in dropped} == {"Sinks"}
