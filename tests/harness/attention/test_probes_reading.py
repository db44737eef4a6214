"""Reading masks back: integers, positions, what can be read, and whose fault a mask is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from random import Random

import pytest
import torch

from kvassay.harness.attention.build import build
from kvassay.harness.attention.case import Case, Contents
from kvassay.harness.attention.checks import find
from kvassay.harness.attention.contents import code_of
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.oracle_kernel import OracleKernel
from kvassay.harness.attention.probes import needle, tomography
from kvassay.harness.attention.probes.counting import (
    CODED,
    HALF_SPACING,
    Row,
    histogram,
    readable,
    readings,
    rows_of,
)
from kvassay.harness.attention.probes.masks import Mistake, blamed, ranges, story
from kvassay.harness.attention.probes.positions import Told, told
from kvassay.harness.attention.wrong import Anomaly
from kvassay.harness.contract import AttentionBatch, AttentionResult, Capability, Declaration
from kvassay.impls.faulty.kernel_controls import ALL
from kvassay.impls.faulty.kernels import FAULTS
from kvassay.reference.attention import visibility

DIM = 16
CASE = Case(
    ((45, 3), (20, 1), (30, 1)),
    num_q_heads=2,
    num_kv_heads=1,
    head_dim=DIM,
    head_dim_v=DIM,
    dtype="float32",
    cache_dtype="float32",
    contents=Contents.COUNTED,
)
Change = Callable[[torch.Tensor], torch.Tensor]


def answered(case: Case, visible: dict[int, torch.Tensor], *, lse: bool = True) -> AttentionResult:
    """What a kernel returns that sees `visible` in some rows, and what it must in the others."""
    built = build(case)
    shape = (case.num_tokens, case.num_q_heads)
    output, logs = torch.zeros(*shape, case.head_dim_v), torch.zeros(shape)
    for row in rows_of(built):
        seen = visible.get(row.token, row.visible)
        counts = histogram(case.contents, seen, case.head_dim_v)
        output[row.token] = (counts / seen.sum()).float()
        logs[row.token] = float(torch.log(seen.sum()))
    return AttentionResult(output.to(getattr(torch, case.dtype)), logs if lse else None)


def read(case: Case, token: int, visible: torch.Tensor, *, lse: bool) -> Told:
    both = {}
    for contents in CODED:
        coded = replace(case, contents=contents)
        found = readings(build(coded), answered(coded, {token: visible}, lse=lse))
        both[contents] = next(each for each in found if each.row.token == token)
    return told(both)


def rows(case: Case) -> list[Row]:
    return list(rows_of(build(case)))


@pytest.mark.parametrize("lse", [True, False])
@pytest.mark.parametrize(
    ("missed", "seen"),
    [
        ((44,), ()),
        ((0,), ()),
        ((16, 17, 18), ()),
        (tuple(range(32, 45)), ()),
        ((3, 40), ()),
        ((), (20,)),
        ((), tuple(range(32, 40))),
        ((7,), (25,)),
    ],
)
def test_what_was_missed_and_what_was_wrongly_seen_is_told(
    missed: tuple[int, ...], seen: tuple[int, ...], lse: bool
) -> None:
    token = 12 if seen else 44
    case = replace(CASE, seqs=((45, 45),))
    wrong = rows(case)[token].visible.clone()
    wrong[list(missed)] = False
    wrong[list(seen)] = True
    found = read(case, token, wrong, lse=lse)
    assert found == Told(int(wrong.sum()), missed, seen)


def test_what_two_codes_do_not_tell_apart_is_not_told() -> None:
    case = replace(CASE, seqs=((600, 1),))
    right = rows(case)[0].visible
    wrong = right.clone()
    wrong[[3, 120, 250]] = False
    found = read(case, 0, wrong, lse=True)
    assert found.count == 597
    assert found.missed == ()


def test_garbage_is_no_number_of_keys() -> None:
    result = answered(CASE, {})
    result.output[0] += torch.randn(DIM, generator=torch.Generator().manual_seed(0))
    found = next(iter(readings(build(CASE), result)))
    assert not found.output_right
    assert found.lse_right
    assert told({CASE.contents: found}) == Told(None)


def test_nan_is_never_right() -> None:
    result = answered(CASE, {})
    result.output[0, 0, 0] = torch.nan
    assert result.lse is not None
    result.lse[1, 0] = torch.nan
    found = list(readings(build(CASE), result))
    assert not found[0].output_right
    assert not found[2].lse_right


@pytest.mark.parametrize("contents", CODED)
@pytest.mark.parametrize("dtype", HALF_SPACING)
@pytest.mark.parametrize("dim", [64, 256])
def test_what_can_be_read_survives_two_roundings(contents: Contents, dtype: str, dim: int) -> None:
    """Of the weight and of the sum; the longest row that can be read, and others."""
    case = Case(
        ((1, 1),),
        head_dim=dim,
        head_dim_v=dim,
        dtype=dtype,
        cache_dtype=dtype,
        contents=contents,
    )
    lengths = [n for n in range(1, 70_000, 97) if readable(replace(case, seqs=((n, 1),)))]
    assert lengths
    kind = getattr(torch, dtype)
    for length in (*Random(0).sample(lengths, min(40, len(lengths))), lengths[-1]):
        counts = torch.bincount(code_of(contents, torch.arange(length), dim), minlength=dim)
        weight = torch.tensor(1 / length).to(kind)
        output = (weight.double() * counts).to(kind).double()
        off = (output * length - counts).abs().max()
        largest = float(counts.max())
        step = max((length - largest) / (length + 1), 0.5)
        assert off < step / 2, length


def test_how_far_each_type_reaches() -> None:
    def reach(dtype: str, dim: int) -> int:
        case = Case(
            ((1, 1),),
            head_dim=dim,
            head_dim_v=dim,
            dtype=dtype,
            cache_dtype=dtype,
            contents=Contents.COUNTED,
        )
        return max(n for n in range(1, 70_000, 64) if readable(replace(case, seqs=((n, 1),))))

    assert reach("float32", 64) > 65_531
    assert reach("float16", 128) > 30_000
    assert 3_000 < reach("bfloat16", 64) < 5_000
    assert reach("bfloat16", 256) > 14_000


@pytest.mark.parametrize(
    "changes",
    [
        {"contents": Contents.PLAIN},
        {"softcap": 3.0},
        {"alibi": True},
        {"sinks": True},
        {"cache_dtype": "int8"},
    ],
)
def test_other_cases_are_not_read(changes: dict[str, object]) -> None:
    assert not readable(replace(CASE, **changes))  # type: ignore[arg-type]


# -------------------------------------------------------------------------------------- whose fault


def wide(case: Case, token: int, seen: tuple[int, ...]) -> str:
    return blamed(case, [Mistake(rows(case)[token], seen=seen)])


def test_the_mask_that_cuts_a_row_is_to_blame() -> None:
    causal = replace(CASE, seqs=((20, 5),))
    assert wide(causal, 0, (16,)) == "K5"
    assert wide(causal, 4, (16,)) == "K1", "the last row is cut by no causal mask"
    window = replace(causal, window_left=3)
    assert wide(window, 4, (15,)) == "K6"
    assert wide(window, 0, (16,)) == "K5", "the causal mask's, for it is later"
    assert wide(replace(window, window_left=19), 4, (0,)) == "K6", "the very edge is cut"
    assert wide(replace(window, window_left=20), 4, ()) == "K1"
    assert wide(replace(causal, causal=False), 0, ()) == "K1"


def test_a_key_missed_inside_a_window_is_not_the_windows_fault() -> None:
    window = replace(CASE, seqs=((20, 5),), window_left=3)

    def missing(token: int, missed: tuple[int, ...]) -> str:
        return blamed(window, [Mistake(rows(window)[token], missed=missed)])

    assert missing(0, (12,)) == "K6", "the key at the window's edge"
    assert missing(0, (15,)) == "K5", "its own key"
    assert missing(4, (19,)) == "K1", "the last key, which no causal mask hides"
    assert missing(0, (12, 13, 14, 15)) == "K6"
    assert blamed(replace(window, window_left=0), [Mistake(rows(window)[0], missed=(15,))]) == "K6"


def test_one_row_that_no_mask_cuts_takes_the_blame_off_all() -> None:
    case = replace(CASE, seqs=((20, 5), (4, 1)), window_left=6)
    mistakes = [Mistake(rows(case)[0], seen=(3,)), Mistake(rows(case)[5], missed=(0,))]
    assert blamed(case, mistakes[:1]) == "K6"
    assert blamed(case, mistakes) == "K1"
    garbage = Mistake(rows(case)[0], keys=False)
    assert blamed(case, [garbage]) == "K1"


def test_stories_put_heads_and_positions_together() -> None:
    row, other = rows(CASE)[:2]
    lines = story([(row, 0, "x"), (row, 1, "x"), (other, 0, "y")])
    assert lines == (
        "the row at position 42 of sequence 0 (45 keys), heads 0-1: x",
        "the row at position 43 of sequence 0 (45 keys), head 0: y",
    )
    assert story([(row, 0, str(number)) for number in range(9)])[-1] == "and 5 rows more"
    assert ranges([5, 1, 2, 3, 9]) == "1-3, 5, 9"


# ----------------------------------------------------------------------------------------- verdicts


def spoiling(change: Callable[[AttentionBatch, AttentionResult], AttentionResult]) -> Kernel:
    declaration = Declaration(capabilities=ALL)
    return Kernel(OracleKernel(declaration, spoil=change), declaration)


def test_the_lse_alone_is_told_apart() -> None:
    def doubled(batch: AttentionBatch, result: AttentionResult) -> AttentionResult:
        return AttentionResult(result.output, 2 * result.lse)

    wrong = tomography.judge(spoiling(doubled), CASE)
    assert wrong is not None
    assert (wrong.invariant, wrong.anomaly) == ("K1", Anomaly.LSE)
    assert "stands for 1849 keys instead of 43" in wrong.got


def test_without_a_claim_the_lse_is_not_read() -> None:
    def doubled(batch: AttentionBatch, result: AttentionResult) -> AttentionResult:
        return AttentionResult(result.output, 2 * result.lse)

    declaration = Declaration(capabilities=ALL - {Capability.LSE})
    kernel = Kernel(OracleKernel(declaration, spoil=doubled), declaration)
    assert tomography.judge(kernel, CASE) is None


def test_positions_are_named() -> None:
    class Short:
        """Sees one key less at the end."""

        def __call__(self, batch: AttentionBatch) -> AttentionResult:
            declaration = Declaration()
            shorter = replace(batch, window_left=10)
            return OracleKernel(declaration)(shorter)

    case = replace(CASE, seqs=((45, 1),))
    wrong = tomography.judge(Kernel(Short(), Declaration()), case)
    assert wrong is not None
    assert wrong.got == "it misses 0-33"
    assert "to see 0-44" in wrong.expected


NEEDLE = replace(CASE, contents=Contents.NEEDLE, head_dim=64, head_dim_v=64)


@pytest.mark.parametrize("mark", [0, 10, 19, -1, -2, -20])
def test_a_needle_is_found_wherever_it_is(mark: int) -> None:
    kernel = spoiling(lambda batch, result: result)
    assert needle.judge(kernel, replace(NEEDLE, mark=mark)) is None


def test_a_needle_that_no_row_sees_must_not_be_seen() -> None:
    """Its value is in the cache all the same."""
    case = replace(NEEDLE, window_left=5, mark=-7, seqs=((30, 1), (20, 1)))

    class Wide:
        def __call__(self, batch: AttentionBatch) -> AttentionResult:
            return OracleKernel(Declaration())(replace(batch, window_left=6))

    assert needle.judge(Kernel(OracleKernel(Declaration()), Declaration()), case) is None
    wrong = needle.judge(Kernel(Wide(), Declaration()), case)
    assert wrong is not None
    assert wrong.invariant == "K6"
    assert "sees the key at 23 (weight 1 instead of 0)" in wrong.got


WINDOW_FAULTS = ("window-one-wide", "window-one-narrow", "window-in-decode-only")


def needle_verdicts(name: str) -> Counter[str]:
    """The invariants that needles convict a planted fault by, over short cases with a window."""
    fault = FAULTS[name]
    kernel, found = Kernel(fault.build(), fault.declaration, name), Counter[str]()
    for seed in range(2):
        for case in islice(find("needle").cases(kernel, Random(seed)), 70):
            if case.window_left is not None and max(keys for keys, _ in case.seqs) < 100:
                wrong = needle.judge(kernel, case)
                found.update([] if wrong is None else [wrong.invariant])
    return found


@pytest.mark.parametrize("name", WINDOW_FAULTS)
def test_needles_convict_a_window_of_nothing_but_its_own_law(name: str) -> None:
    found = needle_verdicts(name)
    assert set(found) == {"K6"}
    assert found["K6"] > 5


def test_needles_convict_a_causal_mask_beside_a_window() -> None:
    assert set(needle_verdicts("causal-one-late")) == {"K5"}


def test_an_output_that_is_neither_does_not_count_as_the_needles() -> None:
    """It crosses the border by chance; the needle is later, and no row looks ahead."""
    case = replace(NEEDLE, window_left=0, mark=-1, seqs=((20, 5),))
    built = build(case)
    right = OracleKernel(Declaration())(built.batch)
    away = right.output[-1] - right.output[0]
    across = away.roll(1, 1) * torch.tensor([1.0, -1.0]).repeat(DIM * 2)
    assert (away * across).sum().abs() < away.square().sum() / 2
    for aside, words in ((1.0, "neither"), (0.0, "sees the key at 19")):
        output = right.output.clone()
        output[0] += away + aside * across
        (first, *_) = needle.misread(built, AttentionResult(output, right.lse))
        assert words in first.words()
        wrong = needle.wrong_of(case, [first])
        assert wrong is not None
        assert wrong.invariant == ("K6" if words == "neither" else "K5")


def test_the_needle_of_another_head_is_told() -> None:
    case = replace(NEEDLE, num_q_heads=4, num_kv_heads=2, mark=3)

    def exchanged(batch: AttentionBatch, result: AttentionResult) -> AttentionResult:
        return AttentionResult(result.output.flip(1), result.lse)

    wrong = needle.judge(spoiling(exchanged), case)
    assert wrong is not None
    assert (wrong.invariant, wrong.anomaly) == ("K7", Anomaly.HEAD)


def test_the_visibility_is_the_oracles() -> None:
    built = build(replace(CASE, window_left=4))
    for row in rows_of(built):
        positions = torch.tensor([row.position])
        assert torch.equal(row.visible, visibility(built.batch, positions, row.length)[0])
