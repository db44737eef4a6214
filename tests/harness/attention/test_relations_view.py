"""Calculating with rows and their deviations; taking problems apart."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kvassay.harness.attention.build import build
from kvassay.harness.attention.case import Case, Scaling
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.oracle_kernel import OracleKernel
from kvassay.harness.attention.relations.problem import Problem, Tokens, multiplied
from kvassay.harness.attention.relations.view import View, joined, merged
from kvassay.harness.attention.wrong import Refused
from kvassay.harness.contract import Declaration
from kvassay.reference.attention import attend

CASE = Case(
    ((7, 3), (4, 1)), num_q_heads=4, num_kv_heads=2, head_dim=8, head_dim_v=4, block_size=2, seed=5
)
KERNEL = Kernel(OracleKernel(Declaration()), Declaration())
SAMPLES = 4000


def exact(problem: Problem) -> View:
    """The oracle's rows of a problem."""
    batch = problem.lay(KERNEL).batch
    right = attend(batch)
    return View.bare(right.output, right.lse, [str(row) for row in range(len(right.lse))])


def random_view(generator: torch.Generator) -> View:
    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    bare = View.bare(drawn(2, 3, 4), drawn(2, 3), ["a", "b"])
    return replace(bare, sigma=0.01 * drawn(2, 3, 4).abs(), sigma_lse=0.01 * drawn(2, 3).abs())


def noisy(view: View, generator: torch.Generator) -> View:
    assert view.lse is not None
    noise = torch.randn(view.output.shape, generator=generator, dtype=torch.float64)
    noise_lse = torch.randn(view.lse.shape, generator=generator, dtype=torch.float64)
    output = view.output + view.sigma * noise
    return replace(view, output=output, lse=view.lse + view.sigma_lse * noise_lse)


def test_a_problem_laid_out_is_the_case_it_was_made_of() -> None:
    case = replace(CASE, alibi=True, sinks=True, k_scale=Scaling.HEAD, v_scale=Scaling.TOKEN)
    again, first = Problem.of(case).lay(KERNEL).batch, build(case).batch
    for name in ("query", "key_cache", "block_table", "alibi_slopes", "sinks", "k_scale"):
        assert torch.equal(getattr(again, name), getattr(first, name)), name
    assert torch.equal(attend(again).output, attend(first).output)


def test_tokens_taken_apart_are_those_of_the_whole() -> None:
    (first, _) = Problem.of(CASE).tokens
    chunk = first.chunk(5, 6)
    assert torch.equal(chunk.query, first.query[1:2])
    assert torch.equal(chunk.key, first.key[:6])
    assert torch.equal(first.last(1).query, first.query[2:])
    assert first.until(3).query.shape[0] == 0
    assert first.first == 4


def test_edits_are_where_they_are_said_to_be() -> None:
    (first, _) = Problem.of(CASE).tokens
    late = torch.arange(7) >= 5
    edited = first.edited(late, 1)
    assert torch.equal(edited.key[:5], first.key[:5])
    assert torch.equal(edited.query[:1], first.query[:1])
    for one, other in ((edited.key[5:], first.key[5:]), (edited.query[1:], first.query[1:])):
        assert (one != other).all()
    assert torch.equal(edited.value, first.edited(late, 1).value)


def test_what_is_not_exact_once_stored_is_refused() -> None:
    assert torch.equal(multiplied(torch.tensor([1.5]), 8.0, "float16"), torch.tensor([12.0]))
    with pytest.raises(Refused, match="exact in float16"):
        multiplied(torch.tensor([2.0**-25]), 8.0, "float16")
    with pytest.raises(Refused, match="exact in int8"):
        multiplied(torch.tensor([3.0]), 8.0, "int8")


def test_a_scale_for_each_token_does_not_survive_other_sequences() -> None:
    problem = Problem.of(replace(CASE, k_scale=Scaling.TOKEN))
    with pytest.raises(Refused, match="no scale for each token"):
        problem.changed(lambda each: each.last(1))


def test_merged_parts_are_the_whole() -> None:
    case = replace(CASE, causal=False)
    problem = Problem.of(case)
    parts = [
        problem.changed(lambda each, part=part: each.keys_at(part))
        for part in (slice(0, 1), slice(1, 3), slice(3, None))
    ]
    whole, together = exact(problem), merged([exact(part) for part in parts])
    torch.testing.assert_close(together.output, whole.output)
    torch.testing.assert_close(together.lse, whole.lse)


def test_the_deviation_of_a_merge_is_that_of_noisy_parts() -> None:
    generator = torch.Generator().manual_seed(0)
    parts = [random_view(generator) for _ in range(3)]
    still = merged(parts)
    samples = [merged([noisy(part, generator) for part in parts]) for _ in range(SAMPLES)]
    outputs = torch.stack([sample.output for sample in samples])
    lses = torch.stack([sample.lse for sample in samples if sample.lse is not None])
    for measured, modelled in ((outputs, still.sigma), (lses, still.sigma_lse)):
        ratio = measured.std(dim=0) / modelled
        error_of_ratio = (2 * SAMPLES) ** -0.5
        assert (ratio - 1).abs().max() < 6 * error_of_ratio


def test_heads_rows_factors_and_sums() -> None:
    generator = torch.Generator().manual_seed(1)
    one, other = random_view(generator), random_view(generator)
    both = joined([one, other]).rows(slice(1, 3))
    assert both.names == ("b", "a")
    assert torch.equal(both.heads([2, 0]).output[0, 0], one.output[1, 2])
    twice = one.plus(one.times(-3.0))
    assert torch.equal(twice.output, one.output + one.output * -3.0)
    torch.testing.assert_close(twice.sigma, one.sigma * 10**0.5)
    assert one.lse is not None
    raised = one.raised(2.0).lse
    assert raised is not None
    assert torch.equal(raised, one.lse + 2.0)


def test_a_merge_needs_the_lse() -> None:
    view = replace(random_view(torch.Generator().manual_seed(2)), lse=None)
    with pytest.raises(AssertionError, match="LSE"):
        merged([view, view])
    assert joined([view, view]).lse is None


def test_tokens_keep_their_heads_when_picked() -> None:
    (first, _) = Problem.of(CASE).tokens
    picked = first.heads([3, 1], [1, 1])
    assert isinstance(picked, Tokens)
    assert torch.equal(picked.query[:, 0], first.query[:, 3])
    assert torch.equal(picked.value[:, 1], first.value[:, 1])
