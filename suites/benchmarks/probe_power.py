"""How often the probes see one wrong key, by the length of the row.

Planted mistakes (one key too many or too few, a stale page, a lost split, a wrong merge), each on
one decode row of several lengths and with several seeds; what counts is whether a probe reads the
result as wrong. Kernels that are right, in several ways to round, must never be read so.
``python -m kvassay.suites.benchmarks.probe_power`` writes `results/probes.md` (minutes), and
``--quick`` prints the table of a small part. The same seeds give the same counts.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import torch

from kvassay.harness.attention.build import Built, build
from kvassay.harness.attention.case import Case, Contents
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.oracle_kernel import OracleKernel
from kvassay.harness.attention.probes import halves, needle
from kvassay.harness.attention.probes.counting import readable, readings
from kvassay.harness.attention.twist import PARTITION, on_sequences, twist
from kvassay.harness.attention.twists import TWISTS
from kvassay.harness.contract import AttentionBatch, AttentionResult, Capability, Declaration
from kvassay.impls.faulty.tiled_attention import Habits, TiledAttention
from kvassay.reference.attention import Sequence

RESULTS = Path(__file__).parents[2] / "results" / "probes.md"
LENGTHS = (128, 2011, 16381, 65531)
SEEDS = 20
QUICK_LENGTHS, QUICK_SEEDS = (128, 2011), 2
PAGE = 16
SPLITS = 8
CLAIMS = Declaration(capabilities=frozenset({Capability.CAUSAL, Capability.LSE}))
BASE = Case(((1, 1),), num_q_heads=2, num_kv_heads=1, block_size=PAGE)
READ = replace(BASE, dtype="float32", cache_dtype="float32")
"""The type in which a row of any length can be read."""

Attend = Callable[[Built], AttentionResult]
Detects = Callable[[Attend, int, int], bool]
"""Whether a probe sees something wrong at a length, with a seed."""


def _kernel(instance: object) -> Attend:
    kernel = Kernel(instance, CLAIMS)
    return kernel.attend


def _in_base_2(batch: AttentionBatch, sequence: Sequence) -> Sequence:
    """Each of eight splits weighs ``2 ** lse`` instead of ``exp(lse)``."""
    splits = []
    for logits in sequence.logits.split(-(-sequence.logits.shape[-1] // SPLITS), dim=-1):
        lse = torch.logsumexp(logits, dim=-1, keepdim=True)
        splits.append(logits + (math.log(2) - 1) * lse)
    return replace(sequence, logits=torch.cat(splits, dim=-1))


MISTAKES = {
    "last key dropped": TWISTS["last-key"],
    "first key dropped": TWISTS["first-key"],
    "one key too many": TWISTS["extra-key"],
    "page tail seen": TWISTS["whole-block"],
    "page lost": TWISTS["block-dropped"],
    "stale page": TWISTS["block-repeated"],
    "last of 8 splits dropped": TWISTS["last-part"],
    "8 splits merged in base 2": twist("base-2-merge", "", PARTITION, on_sequences(_in_base_2)),
}
RIGHT: dict[str, Callable[[], object]] = {
    "right: oracle, rounded once": lambda: OracleKernel(CLAIMS),
    "right: tiles of 64, weights in 16 bit": lambda: TiledAttention(Habits(tile=64)),
    "right: 8 splits, stored in 16 bit": lambda: TiledAttention(
        Habits(tile=256, splits=8, round_parts=True)
    ),
}


# ----------------------------------------------------------------------------------------- probes


@lru_cache(maxsize=8)
def _built(case: Case) -> Built:
    """The cases of one length and seed, which all kernels get."""
    return build(case)


def by_tomography(attend: Attend, length: int, seed: int) -> bool:
    """Both codes."""
    for contents in (Contents.COUNTED, Contents.PLACED):
        case = replace(READ, seqs=((length, 1),), contents=contents, seed=seed)
        assert readable(case)
        built = _built(case)
        found = readings(built, attend(built))
        if not all(reading.output_right and reading.lse_right for reading in found):
            return True
    return False


def by_needle(attend: Attend, length: int, seed: int) -> bool:
    """At both ends, at both ends of the page in the middle, and just past a row's last key."""
    page = (length // 2) // PAGE * PAGE
    for rows, mark in ((1, -1), (1, 0), (1, page), (1, page + PAGE - 1), (2, -1)):
        case = replace(BASE, seqs=((length, rows),), contents=Contents.NEEDLE, mark=mark, seed=seed)
        built = _built(case)
        if needle.misread(built, attend(built)):
            return True
    return False


def by_halves(attend: Attend, length: int, seed: int) -> bool:
    """The strong keys first, then last."""
    strong = max(1, length // halves.RATIO)
    for mark in (strong, -strong):
        case = replace(BASE, seqs=((length, 1),), contents=Contents.HALVES, mark=mark, seed=seed)
        built = _built(case)
        if halves.misread(built, attend(built).output) is not None:
            return True
    return False


PROBES: dict[str, Detects] = {
    "tomography": by_tomography,
    "needle": by_needle,
    "halves": by_halves,
}


# ------------------------------------------------------------------------------------------ table


@dataclass
class Row:
    """How many seeds each probe, and any of them, saw something wrong with."""

    what: str
    length: int
    attend: Attend
    seeds: int = 0
    seen: Counter[str] = field(default_factory=Counter)

    def measure(self, seed: int) -> None:
        """One seed more."""
        hits = [n for n, detects in PROBES.items() if detects(self.attend, self.length, seed)]
        self.seeds += 1
        self.seen.update(hits)
        self.seen["any"] += bool(hits)


def rows(lengths: tuple[int, ...], seeds: int) -> list[Row]:
    """All mistakes that a length can show, and all right kernels."""
    found: list[Row] = []
    for length in lengths:
        batch = build(replace(BASE, seqs=((length, 1),))).batch
        now = [
            Row(what, length, _kernel(OracleKernel(CLAIMS, mistake.apply)))
            for what, mistake in MISTAKES.items()
            if mistake.when(batch)
        ]
        now += [Row(what, length, _kernel(make())) for what, make in RIGHT.items()]
        for seed in range(seeds):
            for row in now:
                row.measure(seed)
        found += now
    order = [*MISTAKES, *RIGHT]
    return sorted(found, key=lambda row: order.index(row.what))


def table(found: list[Row]) -> Iterator[str]:
    """Markdown."""
    names = (*PROBES, "any")
    yield "| planted | keys | " + " | ".join(names) + " |"
    yield "|---|---:|" + "---:|" * len(names)
    for row in found:
        cells = " | ".join(f"{row.seen[name]}/{row.seeds}" for name in names)
        yield f"| {row.what} | {row.length} | {cells} |"


TEXT = """# What the probes see

Written by `python -m kvassay.suites.benchmarks.probe_power`: planted mistakes on one decode row of
{lengths} keys (pages of {page}), {seeds} seeds each. A cell says with how many of
them a probe reads the result as wrong; kernels that are right must never be read so.

Tomography reads the keys that a row saw as whole numbers. A needle is one key that takes all the
weight: it stands at the ends, at both ends of the page in the middle, and just past the last key of
a row. Halves have two levels of weight: they are for what is wrong with the merge of splits, which
a needle cannot show. A page's tail holds ordinary numbers, which take weight from a needle with
some seeds only; the suite reads tails with NaN and Inf (`wild-tail`) as well. At {shortest} keys,
the last page is full and has no tail.

{table}
"""


def page(found: list[Row], lengths: tuple[int, ...], seeds: int) -> str:
    """All of `probes.md`."""
    return TEXT.format(
        lengths=", ".join(map(str, lengths)),
        page=PAGE,
        seeds=seeds,
        shortest=min(lengths),
        table="\n".join(table(found)),
    )


def main() -> None:
    """Measure, and write or print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small part, printed only")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.quick:
        print("\n".join(table(rows(QUICK_LENGTHS, QUICK_SEEDS))))
        return
    RESULTS.write_text(page(rows(LENGTHS, SEEDS), LENGTHS, SEEDS), encoding="utf-8")


if __name__ == "__main__":
    main()
