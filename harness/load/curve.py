"""Load curves: the same open loop at rising rates, on one server or several, until each saturates.

A point is a load of its own: arrivals of a Poisson process, and prompts whose token ids are renamed
for it, so that no cache has seen them. All servers get the same prompts at the same times, one
after another and in turned order. The loop never waits for a server; a request is given up some
seconds after its sending, so that a point ends, at most, that long behind its last arrival. A
server that is saturated gets no higher rate. Then the rate at which it saturates is narrowed down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import sqrt

from kvassay.harness.control.pairing import turns
from kvassay.harness.load.arriving import drawn
from kvassay.harness.load.salting import salted
from kvassay.harness.load.saturation import LEAST, METRICS, saturated
from kvassay.harness.load.session import Load, Report, first_of
from kvassay.harness.load.watching import Limits
from kvassay.harness.load.workloads import generated
from kvassay.harness.metrics.catalogue import measure
from kvassay.harness.metrics.metric import Measured

COUNTED = {"few-shot": "questions", "unrelated": "prompts"}
"""Workloads of independent requests, and the parameter that says how many."""
POISSON = 1.0
"""Coefficient of variation of the gaps."""
DIGITS = 3
"""Of a rate that is chosen here."""


@dataclass(frozen=True)
class Plan:
    """How a point is loaded; rates apart, all points are alike."""

    workload: str = "few-shot"
    settings: Sequence[str] = ()
    """``parameter=number`` of the workload."""
    requests: int = LEAST
    """Of a point, at least."""
    seconds: float = 10.0
    """Of arrivals at a point, at least, as far as `most` allows."""
    most: int = 1000
    """Requests of a point, at most."""
    patience: float = 30.0
    """Seconds after its sending at which a request is given up."""
    objectives: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    salt: int = 0
    vocabulary: int = 32000
    block_size: int = 16
    warm_up: int = 2

    def __post_init__(self) -> None:
        if self.workload not in COUNTED:
            expected = ", ".join(COUNTED)
            raise ValueError(f"workload: expected one of {expected}, got {self.workload!r}")
        if not 0 < self.requests <= self.most:
            raise ValueError(f"expected 1 to {self.most} requests, got {self.requests}")

    def load(self, rate: float, number: int) -> Load:
        """That of point `number`, at `rate` requests per second."""
        count = min(max(self.requests, round(rate * self.seconds)), self.most)
        settings = [*self.settings, f"{COUNTED[self.workload]}={count}"]
        made = generated(self.workload, self.seed + number, settings, self.vocabulary)
        salt = self.salt + 2 * number
        few = first_of(made, self.warm_up)
        return Load(
            replace(made, requests=salted(made.requests, salt, self.vocabulary)),
            drawn(rate, POISSON, count, self.seed + number),
            process=(rate, POISSON),
            warm_up=replace(few, requests=salted(few.requests, salt + 1, self.vocabulary)),
            limits=Limits(stall=None, whole=self.patience),
            objectives=self.objectives,
            block_size=self.block_size,
        )


@dataclass(frozen=True)
class Point:
    """One server at one rate."""

    server: str
    rate: float
    """Requests per second, of the process."""
    report: Report

    @cached_property
    def measured(self) -> Mapping[str, Measured]:
        """All metrics, those of saturation too."""
        return {**self.report.measured, **measure(self.report.run, METRICS)}

    @property
    def saturated(self) -> str:
        """Why it is; empty if the server kept up."""
        return saturated(self.measured)


Ask = Callable[[str, Load], Report]
"""Measures a server, by its name, under a load."""


def sweep(
    servers: Sequence[str], rates: Sequence[float], plan: Plan, ask: Ask, *, refine: int = 0
) -> Iterator[Point]:
    """Points as they are measured; `refine` further ones narrow each server's saturation down.

    `KeyboardInterrupt` for a point that was interrupted: a part of a point is none. `ValueError`
    unless rates rise.
    """
    if list(rates) != sorted(set(rates)) or not rates:
        raise ValueError(f"rates: expected rising ones, got {', '.join(map(str, rates)) or 'none'}")
    live, kept_up, not_kept_up = list(servers), dict.fromkeys(servers, 0.0), dict[str, float]()
    for number, rate in enumerate(rates):
        load = plan.load(rate, number)
        for server in turns(live, number) if live else ():
            point = _measured(server, rate, load, ask)
            (not_kept_up if point.saturated else kept_up)[server] = rate
            yield point
        live = [server for server in live if server not in not_kept_up]
    for number in range(len(rates), len(rates) + refine):
        for server, high in not_kept_up.items():
            if low := kept_up[server]:
                rate = float(f"{sqrt(low * high):.{DIGITS}g}")
                point = _measured(server, rate, plan.load(rate, number), ask)
                (not_kept_up if point.saturated else kept_up)[server] = rate
                yield point


def _measured(server: str, rate: float, load: Load, ask: Ask) -> Point:
    report = ask(server, load)
    if report.interrupted:
        raise KeyboardInterrupt
    return Point(server, rate, report)
