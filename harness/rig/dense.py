"""The reference of a language model: its own attention, without any cache, in float64.

How far the logits of a rig may be off depends on the row: some contexts amplify a rounding a
hundredfold. So each row's *sigma* is measured. Its shape comes from the exact model with noise of
the size of a rounding on the output of every layer within, `PROBES` times: the root mean square of
what that changes. Its scale comes from the same weights and the same dense attention in the model's
own type: one factor, by which all their errors together exceed those that the noise made.

A kernel whose class rounds as its type does makes errors of that size, since all the rest is
computed by the same code in the same type; so a row's error and an element's may be as many sigma
as `harness.budget` allows for this class and type. A token was chosen rightly if its exact logit is
below the largest by no more than two such errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor
from torch.overrides import TorchFunctionMode

from kvassay.harness.attention.precision import HALF_SPACING, in_effect
from kvassay.harness.budget import limits
from kvassay.harness.contract import ContractError, Declaration, Rounding
from kvassay.harness.rig.checking import Answer
from kvassay.harness.rig.language import Logits

PROBES = 16
SEED = 5
LAYERS = ("Linear", "Embedding", "Norm", "Conv1D")
"""Ends of the names of the classes whose outputs are rounded."""


@dataclass(frozen=True)
class _Rows:
    """Of one answer, behind the prompt and every token but the last."""

    exact: Tensor
    """``float64 [tokens, vocabulary]``."""
    plain: Tensor
    """Root mean square ``[tokens]`` of the error in the model's own type."""
    noise: Tensor
    """The same of what noise changes."""


class DenseReference:
    """One model: as it is, exact, and exact with noise."""

    def __init__(self, model: Any, kernel: Declaration) -> None:
        """For rigs whose kernel declares so; `ContractError` for TF32, which no type here has."""
        if in_effect(kernel.rounding, model.dtype) is Rounding.TF32:
            raise ContractError("rounding=tf32: dense attention on this device has no such error")
        self.limits = limits(kernel.rounding, model.dtype)
        self.vocabulary: int = model.config.vocab_size
        self._plain = _dense(model)
        self._exact = _dense(model).double()
        self._noisy = _noisy(self._exact, HALF_SPACING[model.dtype])
        self._known: dict[tuple[tuple[int, ...], int], _Rows] = {}

    def problem(self, answers: Sequence[Answer]) -> str | None:
        """The first row or token over its limit."""
        if not answers:
            return None
        found = [self._rows(answer) for answer in answers]
        plain, noise = (
            torch.cat(each) for each in zip(*((r.plain, r.noise) for r in found), strict=True)
        )
        scale = float((plain.square().mean() / noise.square().mean()).sqrt())
        for answer, rows in zip(answers, found, strict=True):
            for index, right in enumerate(rows.exact):
                sigma = scale * float(rows.noise[index])
                told = self._wrong(answer, index, right, sigma)
                if told is not None:
                    return f"{answer.job.name}, token {index} of its output: {told}"
        return None

    def _wrong(self, answer: Answer, index: int, right: Tensor, sigma: float) -> str | None:
        scores = answer.scores[index]
        if not isinstance(scores, Logits):
            return "nothing was computed behind the tokens before it"
        error = scores.values.cpu().double() - right
        row, element = float(_size(error)), float(error.abs().max())
        if not row <= self.limits.row * sigma:
            return f"a row error of {row / sigma:.3g}, limit {self.limits.row:.3g}"
        if not element <= self.limits.element * sigma:
            return f"an element error of {element / sigma:.3g}, limit {self.limits.element:.3g}"
        gap = float(right.max() - right[answer.output[index]])
        if answer.job.width == 1 and gap > 2 * self.limits.element * sigma:
            return f"token {answer.output[index]} is {gap:.3g} below {int(right.argmax())}"
        return None

    def _rows(self, answer: Answer) -> _Rows:
        tokens, first = answer.job.prompt + answer.output[:-1], len(answer.job.prompt) - 1
        if (tokens, first) not in self._known:
            exact = _logits(self._exact, tokens, first)[0]
            plain = _logits(self._plain, tokens, first)[0] - exact
            noise = _logits(self._noisy, tokens, first, PROBES) - exact
            size = noise.square().mean(dim=(0, 2)).sqrt()
            self._known[tokens, first] = _Rows(exact, _size(plain), size)
        return self._known[tokens, first]


def _size(error: Tensor) -> Tensor:
    """Root mean square over the vocabulary."""
    return error.square().mean(dim=-1).sqrt()


class _NothingInFloat32(TorchFunctionMode):
    """Models go up to float32 where that is more than their type; here it would be less."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any | None = None
    ) -> Any:
        if func is Tensor.float:
            func = Tensor.double
        given = [torch.float64 if each is torch.float32 else each for each in args]
        named = {
            name: torch.float64 if each is torch.float32 else each
            for name, each in (kwargs or {}).items()
        }
        return func(*given, **named)


@torch.no_grad()
def _logits(model: Any, tokens: tuple[int, ...], first: int, copies: int = 1) -> Tensor:
    """From position `first` on: ``float64 [copies, tokens, vocabulary]``."""
    ids = torch.tensor([tokens] * copies, device=model.device)
    with _NothingInFloat32() if model.dtype == torch.float64 else nullcontext():
        logits: Tensor = model(input_ids=ids, use_cache=False).logits[:, first:]
    return logits.cpu().double()


def _dense(model: Any) -> Any:
    """A copy that attends by itself."""
    copy = deepcopy(model)
    copy.set_attn_implementation("eager")
    return copy


def _noisy(model: Any, size: float) -> Any:
    """A copy whose layers round, each output to its own side."""
    copy, generator = deepcopy(model), Generator(model.device).manual_seed(SEED)

    def round_off(module: Any, given: Any, output: Any) -> Any:
        if not isinstance(output, Tensor):
            return output
        noise = torch.randn(
            output.shape, generator=generator, dtype=output.dtype, device=output.device
        )
        return output * (1 + size * noise)

    for module in copy.modules():
        if type(module).__name__.endswith(LAYERS):
            module.register_forward_hook(round_off)
    return copy
