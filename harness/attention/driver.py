"""A kernel under test: called on built cases, with what became of the call told apart.

A call is *refused* (`ValueError`, `NotImplementedError`), *crashes* (anything else, or does not
return in time), or returns a result whose shape and type are checked. Whatever it did, it must have
written nothing but its own output (K13).
"""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import numpy as np
import torch

from kvassay.harness.attention.build import Built, build
from kvassay.harness.attention.case import Case
from kvassay.harness.attention.precision import require_model
from kvassay.harness.attention.wrong import Anomaly, Refused, Wrong
from kvassay.harness.contract import AttentionResult, Capability, Declaration
from kvassay.harness.registry import Registration
from kvassay.harness.session import time_limit
from kvassay.harness.violation import Crash, Hang

TIME_LIMIT = 60.0
"""Seconds for one call, unless the kernel asks for more."""


class Kernel:
    """One instance of a registered PagedAttention, and what it has been seen to do.

    Raises `ContractError` for a rounding class by which it could not be judged.
    """

    def __init__(self, instance: Any, declaration: Declaration, name: str = "") -> None:
        require_model(declaration.rounding)
        self.instance = instance
        self.declaration = declaration
        self.name = name
        self.reference = ""
        """By which another process finds it; empty where none can."""
        self.device = getattr(instance, "device", "cpu")
        self.time_limit = float(getattr(instance, "time_limit", TIME_LIMIT))
        self.calls: Counter[str] = Counter()
        """How many were answered, refused, crashed."""
        self.refusals: Counter[str] = Counter()
        self.refused: set[Case] = set()
        """Cases of which it refused something."""
        self.accepted: dict[Case, bool] = {}
        """What it computes and what it refuses, as far as it was asked."""

    @classmethod
    def of(cls, registration: Registration) -> Kernel:
        """Build it; raises what the factory raises, as `Crash` unless it is about the contract."""
        kernel = cls(registration.build(), registration.declaration, registration.name)
        kernel.reference = registration.reference
        return kernel

    def has(self, *capabilities: Capability) -> bool:
        """Whether all of these are declared."""
        return self.declaration.has(*capabilities)

    @property
    def paths(self) -> dict[str, int]:
        """How often each of its execution paths was taken, if it says so."""
        return dict(getattr(self.instance, "paths", {}))

    def build(self, case: Case) -> Built:
        """The case in memory, where the kernel wants it."""
        return build(case, device=self.device)

    def attend(self, built: Built) -> AttentionResult:
        """Call it. Raises `Refused`, `Crash`, or `Wrong` (K11 for its shape, K13 for damage)."""
        try:
            # Interpreted kernels compute in numpy, which warns of what a GPU does in silence.
            with (
                time_limit(self.time_limit),
                np.errstate(all="ignore"),
                warnings.catch_warnings(),
            ):
                warnings.simplefilter("ignore", RuntimeWarning)
                result = self.instance(built.batch)
        except (ValueError, NotImplementedError) as error:
            self.calls["refused"] += 1
            self.refusals[str(error)[:160]] += 1
            self.refused.add(built.case)
            _check_footprint(built)
            raise Refused(str(error)) from error
        except (Exception, SystemExit, GeneratorExit, Hang) as error:
            self.calls["crashed"] += 1
            hangs = isinstance(error, Hang)
            what = str(error) if hangs else f"{type(error).__name__}: {error}"
            raise Crash(f"the kernel on {built.case.seqs}: {what}", hangs=hangs) from error
        self.calls["answered"] += 1
        _check_result(built, result, self.has(Capability.LSE))
        _check_footprint(built)
        lse = result.lse if self.has(Capability.LSE) else None
        return AttentionResult(result.output, lse)

    def accepts(self, case: Case) -> bool:
        """Whether it computes such a case at all, found out once."""
        if case not in self.accepted:
            try:
                self.attend(self.build(case))
            except Refused:
                self.accepted[case] = False
            except (Crash, Wrong):
                self.accepted[case] = True
            else:
                self.accepted[case] = True
        return self.accepted[case]


def _check_footprint(built: Built) -> None:
    damage = built.arena.damage()
    if damage:
        raise Wrong("K13", Anomaly.FOOTPRINT, "only the output written", "; ".join(damage))


def _check_result(built: Built, result: Any, claims_lse: bool) -> None:
    """Shape, type and place of what came back."""
    case, batch = built.case, built.batch
    shape = (case.num_tokens, case.num_q_heads, case.head_dim_v)
    if not isinstance(result, AttentionResult):
        raise Crash(f"expected an AttentionResult, got {type(result).__name__}")
    _check_tensor("output", result.output, shape, (batch.query.dtype,))
    if claims_lse:
        _check_tensor("lse", result.lse, shape[:2], (torch.float32, torch.float64))
    if case.buffers:
        lse = batch.lse if claims_lse else None
        for name, expected in (("output", batch.output), ("lse", lse)):
            if expected is not None and getattr(result, name).data_ptr() != expected.data_ptr():
                raise Wrong("K13", Anomaly.FOOTPRINT, f"{name} in the buffer given", "elsewhere")


def _check_tensor(
    name: str, tensor: Any, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...]
) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise Crash(f"{name}: expected a tensor, got {type(tensor).__name__}")
    if tuple(tensor.shape) != shape or tensor.dtype not in dtypes:
        expected = f"{shape} of {' or '.join(str(dtype) for dtype in dtypes)}"
        got = f"{tuple(tensor.shape)} of {tensor.dtype}"
        raise Wrong("K11", Anomaly.SHAPE, f"{name} {expected}", got)
