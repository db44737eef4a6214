"""Whether a kernel gives the same for two versions of a problem.

To the bit where the law or the declared determinism says so, and otherwise within rounding: the
difference of the two results over ``sqrt(sigma_1^2 + sigma_2^2)``, the modelled deviation of a
difference of independent errors, has the same limits as one error over its sigma. Results that
differ must each lie within the rounding error of their own exact result, too; where they are the
same to the bit, one is as good as the other, and only the first is looked at.

Bits that differ count only if they differ again: a kernel that gives other bits every time (by
atomics, or because it was tuned in between) breaks its word, if it gave one, elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from kvassay.harness.attention.build import Built
from kvassay.harness.attention.case import Case
from kvassay.harness.attention.compare import Comparison, judged
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.relations import blame
from kvassay.harness.attention.relations.blame import Version
from kvassay.harness.attention.relations.difference import beyond_rounding, in_bits, same
from kvassay.harness.attention.relations.law import Arranged, Law, Sides
from kvassay.harness.attention.relations.view import View
from kvassay.harness.attention.wrong import Refused, Wrong
from kvassay.harness.budget import Expected, expect, limits
from kvassay.harness.contract import AttentionResult, Determinism

PATIENCE = 6
"""Further runs in which a kernel that claims no determinism has to repeat both results."""


def agree(kernel: Kernel, law: Law, arranged: Arranged) -> Wrong | None:
    """Compare. Raises what the kernel raises, and `Refused` for what has no finite result."""
    calls = _Calls.of(kernel, arranged)
    results = calls.made()
    if same(*calls.sides(results)):
        return blame.of_version(calls.beside_the_oracle(results[:1]))
    exact = law.exact(kernel.declaration.determinism) and calls.differ_again()
    versions = calls.beside_the_oracle(results)
    left, right = calls.sides(results, [version.seen.expected for version in versions])
    bounds = limits(kernel.declaration.rounding, calls.dtype)
    difference = beyond_rounding(left, right, bounds)
    if difference is not None:
        return blame.of_difference(law, difference, versions)
    if exact:
        return blame.of_bits(law, in_bits(left, right))
    return blame.of_version(versions)


@dataclass(frozen=True)
class _Calls:
    """Versions in memory, to be attended as often as it takes."""

    kernel: Kernel
    builts: tuple[Built, ...]
    compare: Sides

    @classmethod
    def of(cls, kernel: Kernel, arranged: Arranged) -> _Calls:
        laid: dict[int, Built] = {}
        for problem in arranged.problems:
            if id(problem) not in laid:
                laid[id(problem)] = problem.lay(kernel)
        builts = tuple(laid[id(problem)] for problem in arranged.problems)
        return cls(kernel, builts, arranged.sides)

    @property
    def dtype(self) -> torch.dtype:
        dtype = self.builts[0].batch.query.dtype
        assert isinstance(dtype, torch.dtype)
        return dtype

    def made(self) -> list[AttentionResult]:
        """The results, copied before the next call may write over them."""
        return [_copied(self.kernel.attend(built)) for built in self.builts]

    def sides(
        self, results: list[AttentionResult], expected: Sequence[Expected] | None = None
    ) -> tuple[View, View]:
        """What is compared, with deviations where they are known."""
        known: Sequence[Expected | None] = expected or [None] * len(results)
        views = [
            _views(built.case, result, each)
            for built, result, each in zip(self.builts, results, known, strict=True)
        ]
        return self.compare(views)

    def differ_again(self) -> bool:
        """Whether each side repeats its bits, and the two still differ."""
        first: tuple[View, View] | None = None
        claims = self.kernel.declaration.determinism is not Determinism.NONE
        for _ in range(2 if claims else PATIENCE):
            again = self.sides(self.made())
            if same(*again):
                return False
            if first is not None and not (same(first[0], again[0]) and same(first[1], again[1])):
                return False
            first = first or again
        return True

    def beside_the_oracle(self, results: list[AttentionResult]) -> list[Version]:
        """The first so many results, each judged by itself."""
        known: dict[int, Expected] = {}
        versions = []
        for number, (built, result) in enumerate(zip(self.builts, results, strict=False), start=1):
            if id(built) not in known:
                known[id(built)] = self._expected(built)
            expected = known[id(built)]
            judgement = judged(self.kernel, result, expected)
            versions.append(Version(number, Comparison(built, result, expected, judgement)))
        return versions

    def _expected(self, built: Built) -> Expected:
        try:
            return expect(built.batch, self.kernel.declaration.rounding)
        except ValueError as error:
            raise Refused(f"the relation speaks of finite results: {error}") from None


def _copied(result: AttentionResult) -> AttentionResult:
    lse = None if result.lse is None else result.lse.detach().to(torch.float32, copy=True)
    return AttentionResult(result.output.detach().clone(), lse)


def _views(case: Case, result: AttentionResult, expected: Expected | None) -> list[View]:
    """The rows of each sequence."""
    names: list[str] = []
    empty: list[bool] = []
    for index, (keys, queries) in enumerate(case.seqs):
        for position in range(keys - queries, keys):
            names.append(f"sequence {index} of {case.seqs}, position {position}")
            empty.append(keys == 0 or (case.causal and position < 0))
    whole = _without(View.bare(result.output, result.lse, names), torch.tensor(empty) > 0)
    if expected is not None:
        whole = replace(
            whole,
            sigma=expected.sigma,
            sigma_lse=expected.sigma_lse,
            freedom=expected.freedom,
        )
    stops = accumulate(queries for _, queries in case.seqs)
    return [whole.rows(slice(start, stop)) for start, stop in pairwise((0, *stops))]


def _without(view: View, empty: Tensor) -> View:
    """Rows that see no key are as declared, which others look at: here all are the same."""
    output = torch.where(empty[:, None, None], 0.0, view.output)
    lse = None if view.lse is None else torch.where(empty[:, None], 0.0, view.lse)
    return replace(view, output=output, lse=lse)
