"""Which tokens a model may choose: those whose exact logit no rounding puts below the largest.

The exact model (`reference.llama`, float64) is asked behind the tokens that the engine itself had
generated before, so a near-tie that went the other way has no consequences for what comes behind
it. How far logits may be off is measured row by row, as for a rig (`harness.rig.dense`): the shape
from the exact model with noise of the size of a rounding on the output of every layer, the scale
from the same model in the engine's type; `harness.budget` says how many such sigma an element may
be off. A token is right within two of them, a log-probability too, as the logarithm of a sum of
exponentials moves by no more than its largest term.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from kvassay.harness.attention.precision import HALF_SPACING
from kvassay.harness.budget import limits
from kvassay.harness.contract import Declaration
from kvassay.harness.engines.asking import End, Told
from kvassay.reference.llama import Llama

PROBES = 8
SEED = 5


@dataclass(frozen=True)
class _Rows:
    exact: Tensor
    """``float64 [tokens, vocabulary]``."""
    plain: Tensor
    """Root mean square ``[tokens]`` of the error in the engine's type."""
    noise: Tensor
    """The same of what noise changes."""


class DenseModel:
    """One model: as it is, exact, and exact with noise."""

    def __init__(
        self, model: Llama, declared: Declaration, dtype: torch.dtype = torch.float32
    ) -> None:
        self._exact = model
        self._end = int(model.config.get("eos_token_id", -1))
        self._plain = model.to(dtype)
        self._size = HALF_SPACING[dtype]
        self._limit = limits(declared.rounding, dtype).element
        self._known: dict[tuple[tuple[int, ...], int], _Rows] = {}
        self.tokens = 0
        """Judged so far."""
        self.logprobs = 0

    @property
    def vocabulary(self) -> int:
        """Tokens are below it."""
        return self._exact.vocabulary

    def problem(self, answers: Sequence[Told]) -> str | None:
        """The first token or log-probability that no rounding accounts for."""
        answers = [self._with_its_end(told) for told in answers if told.request.prompt]
        answers = [told for told in answers if told.tokens]
        found = [self._rows(told) for told in answers]
        if not found:
            return None
        plain, noise = (
            torch.cat(each) for each in zip(*((r.plain, r.noise) for r in found), strict=True)
        )
        scale = float((plain.square().mean() / noise.square().mean()).sqrt())
        for told, rows in zip(answers, found, strict=True):
            problem = self._wrong(told, rows, scale)
            if problem is not None:
                return f"{told.name}, {problem}"
        return None

    def _with_its_end(self, told: Told) -> Told:
        """Whoever stopped says that the model's end came next, if it does not show it."""
        short = len(told.tokens) < told.request.max_tokens
        if told.why != "stop" or told.end is not End.DONE or not short:
            return told
        if told.tokens and told.tokens[-1] == self._end:
            return told
        return replace(told, tokens=[*told.tokens, self._end], logprobs=[*told.logprobs, None])

    def _wrong(self, told: Told, rows: _Rows, scale: float) -> str | None:
        for index, token in enumerate(told.tokens):
            row = rows.exact[index]
            allowed = 2 * self._limit * scale * float(rows.noise[index])
            if not 0 <= token < self.vocabulary:
                return f"token {index} of its output: {token} is not in the vocabulary"
            gap = float(row.max() - row[token])
            self.tokens += 1
            if gap > allowed:
                best = int(row.argmax())
                return (
                    f"token {index} of its output: {token} is {gap:.3g} below {best}, of which "
                    f"rounding accounts for {allowed:.2g}"
                )
            logprob = told.logprobs[index] if told.logprobs else None
            if logprob is not None:
                exact = float(torch.log_softmax(row, dim=0)[token])
                off = abs(logprob - exact)
                self.logprobs += 1
                if not off <= allowed:
                    return (
                        f"token {index} of its output: a log-probability of "
                        f"{logprob:.6g}, expected {exact:.6g} within {allowed:.2g}"
                    )
        return None

    def _rows(self, told: Told) -> _Rows:
        prompt = tuple(told.request.prompt)
        tokens, first = (*prompt, *told.tokens[:-1]), len(prompt) - 1
        known = tuple(token if 0 <= token < self.vocabulary else 0 for token in tokens)
        if (known, first) not in self._known:
            exact = self._exact.logits(known, first=first)[0]
            plain = self._plain.logits(known, first=first)[0].double() - exact
            generator = Generator().manual_seed(SEED)

            def rounding(output: Tensor) -> Tensor:
                noise = torch.randn(output.shape, generator=generator, dtype=output.dtype)
                return output * (1 + self._size * noise)

            noisy = self._exact.logits(known, first=first, copies=PROBES, rounding=rounding)
            noise = (noisy - exact).square().mean(dim=(0, 2)).sqrt()
            self._known[known, first] = _Rows(exact, plain.square().mean(dim=-1).sqrt(), noise)
        return self._known[known, first]
