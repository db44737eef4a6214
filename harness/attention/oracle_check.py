"""Comparing a kernel with the float64 oracle, within the modelled rounding error.

`oracle` goes through all pairs of features, the shape lattice and random batches. Three checks look
closer: each modifier of the scores and each quantisation scale at decode and at prefill, on cases
where leaving it out would be seen, and sizes that are seldom tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations, product
from random import Random
from typing import Any

from kvassay.harness.attention.build import build
from kvassay.harness.attention.case import BadCase, Case, Scaling
from kvassay.harness.attention.check import Check, register
from kvassay.harness.attention.compare import compare, judged
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.explain import explain, is_right
from kvassay.harness.attention.generate import cases as generated
from kvassay.harness.attention.lengths import Phase, Seqs
from kvassay.harness.attention.offers import Offers
from kvassay.harness.attention.oracle_kernel import OracleKernel, twisted
from kvassay.harness.attention.twist import SCALE, SCORE, Law
from kvassay.harness.attention.twists import TWISTS
from kvassay.harness.attention.wrong import Anomaly, Wrong
from kvassay.harness.budget import expect
from kvassay.harness.contract import AttentionBatch, AttentionResult, Capability
from kvassay.reference.attention import Attended, attend

ROWS: dict[Phase, Seqs] = {
    Phase.DECODE: ((37, 1), (600, 1), (5, 1)),
    Phase.CHUNK: ((20, 7),),
    Phase.PREFILL: ((9, 9),),
}
"""At decode with a row that kernels split, and merge."""
SHIFTS = 8
"""Seeds that are tried until a case can tell."""


def judge(kernel: Kernel, case: Case) -> Wrong | None:
    """What the oracle says, explained."""
    try:
        seen = compare(kernel, case)
    except Wrong as wrong:
        return wrong
    return None if seen.right else explain(kernel, case, seen)


def phases(offers: Offers) -> tuple[Seqs, ...]:
    """Sequences to try at decode and at prefill, as far as the kernel accepts them."""
    names = [Phase(value.name) for value in offers.values["phase"]]
    prefill = [
        seq for phase in (Phase.CHUNK, Phase.PREFILL) if phase in names for seq in ROWS[phase]
    ]
    decode = ROWS[Phase.DECODE] if Phase.DECODE in names else ()
    return tuple(seqs for seqs in (decode, tuple(prefill)) if seqs)


# ------------------------------------------------------------------- what a case has to be told by


def telling(kernel: Kernel, case: Case, twists: list[str]) -> bool:
    """Whether each of these mistakes would be convicted on a case."""
    built = build(case)
    expected = expect(built.batch, kernel.declaration.rounding)
    for name in twists:
        wrong = TWISTS[name].apply(built.batch)
        result = AttentionResult(wrong.output.to(built.batch.query.dtype), wrong.lse.float())
        if judged(kernel, result, expected).problem is None:
            return False
    return True


def _telling(kernel: Kernel, case: Case, twists: list[str]) -> Iterator[Case]:
    """The case, with the first seed by which it can tell."""
    for seed in range(SHIFTS):
        candidate = replace(case, seed=seed)
        if telling(kernel, candidate, twists):
            yield candidate
            return


# -------------------------------------------------------------------------------- score pipeline

MODIFIERS: dict[str, tuple[Capability | None, dict[str, Any], str]] = {
    "scale": (None, {"scale": 0.04}, "default-scale"),
    "softcap": (Capability.SOFTCAP, {"softcap": 1.5}, "no-softcap"),
    "alibi": (Capability.ALIBI, {"alibi": True}, "no-alibi"),
    "sinks": (Capability.SINKS, {"sinks": True}, "no-sinks"),
    "window": (Capability.WINDOW, {"window_left": 3}, "no-window"),
}
"""What it needs, how it is switched on, and what it looks like to forget it."""


def score_cases(kernel: Kernel, rng: Random) -> Iterator[Case]:
    """Each modifier alone, then in pairs, then all; at decode and at prefill."""
    offers = Offers(kernel)
    names = [name for name, (need, _, _) in MODIFIERS.items() if need is None or kernel.has(need)]
    groups = [(name,) for name in names] + list(combinations(names, 2)) + [tuple(names)]
    for group in dict.fromkeys(groups):
        changes = {k: v for name in group for k, v in MODIFIERS[name][1].items()}
        forgotten = [MODIFIERS[name][2] for name in group]
        for seqs in phases(offers):
            yield from _telling(kernel, offers.plain(seqs=seqs, **changes), forgotten)


def _unmodified(batch: AttentionBatch) -> Attended:
    """The control: modifiers are switched on to no effect."""
    return attend(replace(batch, scale=None, softcap=None, alibi_slopes=None, sinks=None))


def judge_scores(kernel: Kernel, case: Case) -> Wrong | None:
    """As the oracle says; what is right once the modifiers are off is theirs."""

    def off() -> Case:
        return replace(case, scale=None, softcap=None, alibi=False, sinks=False)

    return _blamed(kernel, case, off, SCORE)


def _blamed(kernel: Kernel, case: Case, without: Callable[[], Case], law: Law) -> Wrong | None:
    """The oracle's verdict; where only the oracle convicts, `law` if it is right `without`."""
    wrong = judge(kernel, case)
    if wrong is None or wrong.invariant != "K1":
        return wrong
    return _named(wrong, law) if _is_right(kernel, without(), case) else wrong


def _is_right(kernel: Kernel, plain: Case, case: Case) -> bool:
    return plain != case and is_right(kernel, plain)


def _named(wrong: Wrong, law: Law) -> Wrong:
    invariant, anomaly = law
    return replace(wrong, invariant=invariant, anomaly=anomaly)


# ----------------------------------------------------------------------------------------- scales

SCALINGS = (
    (Scaling.TENSOR, Scaling.TENSOR),
    (Scaling.HEAD, Scaling.HEAD),
    (Scaling.TOKEN, Scaling.TOKEN),
    (Scaling.TENSOR, Scaling.HEAD),
)


def scale_cases(kernel: Kernel, rng: Random) -> Iterator[Case]:
    """Every accepted cache type and kind of scale, at decode and at prefill; K and V differ.

    With a soft cap too, which bends the logit of the scaled key.
    """
    offers = Offers(kernel)
    types = sorted(offers.values["types"], key=_unquantised)
    pairs = list(product(range(len(types)), range(len(SCALINGS))))
    for of_type, of_scaling in sorted(pairs, key=sum):
        k_scale, v_scale = SCALINGS[of_scaling]
        fields = {**dict(types[of_type].fields), "k_scale": k_scale, "v_scale": v_scale}
        if kernel.accepts(replace(offers.plain(), **fields)):
            caps = ({}, {"softcap": 1.5}) if kernel.has(Capability.SOFTCAP) else ({},)
            for cap, seqs in product(caps, phases(offers)):
                case = offers.plain(seqs=seqs, **fields, **cap)
                yield from _telling(kernel, case, ["no-k-scale", "no-v-scale"])


def _unquantised(value: Any) -> bool:
    return not dict(value.fields)["cache_dtype"].startswith(("float8", "int8"))


def judge_scales(kernel: Kernel, case: Case) -> Wrong | None:
    """As the oracle says; what is right without scales is theirs."""

    def off() -> Case:
        return replace(case, k_scale=Scaling.NONE, v_scale=Scaling.NONE)

    return _blamed(kernel, case, off, SCALE)


# ------------------------------------------------------------------------------------------ sizes

HEAD_DIMS = (80, 96, 40, 72, 112, 8, 13, 24, 1, 100, 160, 192, 256, 320, 512)
TWO_DIMS = ((192, 128), (64, 128), (128, 64), (576, 512), (72, 40))
BLOCK_SIZES = (1, 5, 8, 3, 2, 7, 12, 24, 48, 96, 100, 128, 256, 544)
HEADS = ((1, 1), (3, 3), (5, 1), (7, 1), (9, 3), (12, 4), (14, 2), (40, 8), (71, 1))
LENGTHS = (1, 2, 3, 17, 33, 63, 64, 65, 127, 129, 255, 257)
SIZE: Law = ("K11", Anomaly.OUTPUT)


def size_cases(kernel: Kernel, rng: Random) -> Iterator[Case]:
    """Sizes that are seldom tried, one kind after the other."""
    offers = Offers(kernel)
    kinds: list[Iterator[dict[str, Any]]] = [
        ({"head_dim": dim, "head_dim_v": dim} for dim in HEAD_DIMS),
        ({"block_size": size} for size in BLOCK_SIZES),
        ({"num_q_heads": q, "num_kv_heads": kv} for q, kv in HEADS),
        ({"head_dim": dim, "head_dim_v": dim_v} for dim, dim_v in TWO_DIMS),
        ({"seqs": ((length, 1), (3, 1))} for length in LENGTHS),
    ]
    seqs = _seqs(offers)
    while kinds:
        for kind in list(kinds):
            changes = next(kind, None)
            if changes is None:
                kinds.remove(kind)
                continue
            try:
                yield offers.plain(**{"seqs": seqs, **changes, "seed": rng.randrange(1000)})
            except BadCase:
                continue


def _seqs(offers: Offers) -> Seqs:
    """A decode row and a chunk, as far as they are accepted."""
    names = {value.name for value in offers.values["phase"]}
    return ((19, 1), (21, 4)) if Phase.MIXED in names else phases(offers)[0]


def judge_sizes(kernel: Kernel, case: Case) -> Wrong | None:
    """Right, unless it is refused; what is right at the usual sizes is not, whatever it is."""
    wrong = judge(kernel, case)
    if wrong is None or not _is_right(kernel, _usual(kernel, case), case):
        return wrong
    return _named(wrong, SIZE)


def _usual(kernel: Kernel, case: Case) -> Case:
    """The same sequences in the sizes that are probably tried by everybody."""
    base = Offers(kernel).plain()
    names = ("num_q_heads", "num_kv_heads", "head_dim", "head_dim_v", "block_size")
    return replace(case, **{name: getattr(base, name) for name in names})


ORACLE = register(
    Check(
        name="oracle",
        title="output and LSE are the oracle's, within the rounding budget",
        invariants=("K1", "K7"),
        cases=generated,
        judge=judge,
        control=twisted("last-key"),
    )
)
SCORES = register(
    Check(
        name="score-pipeline",
        title="scale, soft cap, ALiBi, window and sinks act as the oracle says, alone and in pairs",
        invariants=("K9",),
        telling=True,
        cases=score_cases,
        judge=judge_scores,
        control=lambda declaration: OracleKernel(declaration, _unmodified),
    )
)
SCALES = register(
    Check(
        name="scales",
        title="quantisation scales are applied once, to keys and to values, at decode and prefill",
        invariants=("K10",),
        telling=True,
        cases=scale_cases,
        judge=judge_scales,
        control=twisted("no-v-scale"),
        needs=frozenset({Capability.SCALES}),
    )
)
SIZES = register(
    Check(
        name="sizes",
        title="every head size, block size, head count and length is right or refused",
        invariants=("K11",),
        cases=size_cases,
        judge=judge_sizes,
        control=twisted("last-key"),
    )
)
