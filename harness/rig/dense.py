"""The reference of a language model: its own attention, without any cache, in float64.

How far the logits of a rig may be off is measured on the same tokens: the same weights and the same
dense attention in the model's own type make an error against float64, and its root mean square over
all rows that are judged together is *sigma*. A kernel whose class rounds as the type does makes an
error of that size, since everything else is computed by the same code in the same type; so a row's
error and an element's may be so many sigma as `harness.budget` allows for this class and type. A
token was chosen rightly if its exact logit is below the largest by no more than two such errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from kvassay.harness.attention.precision import in_effect
from kvassay.harness.budget import limits
from kvassay.harness.contract import ContractError, Declaration, Rounding
from kvassay.harness.rig.checking import Answer
from kvassay.harness.rig.language import Logits


class DenseReference:
    """One model, twice: as it is, and exact."""

    def __init__(self, model: Any, kernel: Declaration) -> None:
        """For rigs whose kernel declares so; `ContractError` for TF32, which no type here has."""
        effective = in_effect(kernel.rounding, model.dtype)
        if effective is Rounding.TF32:
            raise ContractError("rounding=tf32: dense attention on this device has no such error")
        self.limits = limits(kernel.rounding, model.dtype)
        self.vocabulary: int = model.config.vocab_size
        self._plain = _dense(model)
        self._exact = _dense(model).double()
        self._known: dict[tuple[tuple[int, ...], int], tuple[Tensor, Tensor]] = {}

    def problem(self, answers: Sequence[Answer]) -> str | None:
        """The first row or token over its limit."""
        if not answers:
            return None
        rows = [self._rows(answer) for answer in answers]
        sigma = self.sigma([plain - exact for plain, exact in rows])
        for answer, (_, exact) in zip(answers, rows, strict=True):
            for index, right in enumerate(exact):
                told = self._wrong(answer, index, right, sigma)
                if told is not None:
                    return f"{answer.job.name}, token {index} of its output: {told}"
        return None

    @staticmethod
    def sigma(errors: Sequence[Tensor]) -> float:
        """Root mean square."""
        return float(torch.cat([error.flatten() for error in errors]).square().mean().sqrt())

    def _wrong(self, answer: Answer, index: int, right: Tensor, sigma: float) -> str | None:
        scores = answer.scores[index]
        if not isinstance(scores, Logits):
            return "nothing was computed behind the tokens before it"
        error = scores.values.cpu().double() - right
        row, element = float(error.square().mean().sqrt()), float(error.abs().max())
        if not row <= self.limits.row * sigma:
            return f"a row error of {row / sigma:.3g}, limit {self.limits.row:.3g}"
        if not element <= self.limits.element * sigma:
            return f"an element error of {element / sigma:.3g}, limit {self.limits.element:.3g}"
        gap = float(right.max() - right[answer.output[index]])
        if answer.job.width == 1 and gap > 2 * self.limits.element * sigma:
            return f"token {answer.output[index]} is {gap:.3g} below {int(right.argmax())}"
        return None

    @torch.no_grad()
    def _rows(self, answer: Answer) -> tuple[Tensor, Tensor]:
        """Logits behind the prompt and every token but the last: plain and exact, both float64."""
        tokens, first = answer.job.prompt + answer.output[:-1], len(answer.job.prompt) - 1
        if (tokens, first) not in self._known:
            ids = torch.tensor([tokens], device=self._exact.device)
            plain, exact = (
                model(input_ids=ids, use_cache=False).logits[0, first:].cpu().double()
                for model in (self._plain, self._exact)
            )
            self._known[tokens, first] = plain, exact
        return self._known[tokens, first]


def _dense(model: Any) -> Any:
    """A copy that attends by itself."""
    copy = deepcopy(model)
    copy.set_attn_implementation("eager")
    return copy
