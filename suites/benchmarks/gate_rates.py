"""The gate's own errors: how often it fails what did not change, and passes what did.

    python -m kvassay.suites.benchmarks.gate_rates --output results

Rounds of the gate are taken of `radix` against itself and against `radix` with an admission that
takes longer by a known part (both with a watch on it, which is what makes the part known). A gate
of n rounds is n of them, drawn at random without replacement, many times over: so one bank of
rounds tells of every n, on the noise of this very machine. Rounds of all contenders take turns, so
that they have seen the same machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from kvassay.harness.environment import Environment, capture
from kvassay.harness.gate.deciding import Decision, change
from kvassay.harness.gate.parts import ROUNDS
from kvassay.harness.gate.sides import Side, timed
from kvassay.harness.gate.thresholds import load
from kvassay.harness.record import BadRecord
from kvassay.impls.faulty.slow import PERCENT, slower
from kvassay.suites.benchmarks.arguments import positive
from kvassay.suites.benchmarks.stored import Made, stale, told, write

NUMBERS = (12, 16, 24, 32, 48)
"""Rounds of a gate."""
DRAWN = 400
"""Gates of each size."""
SLOWED = "admission"
BANK, NAME = "gate.json", "gate"
Bank = dict[str, dict[str, list[float]]]
"""Ratios of head to base: by contender, by time, round after round."""


def side(label: str, percent: int) -> Side:
    """`radix`, slower by so much."""
    return Side(label, "kvassay.impls.faulty.slow", slower(percent))


def measure(bank: Bank, rounds: int, watch: Any) -> None:
    """Add rounds to a bank, each contender by turns."""
    base, least = side("base", 0), 10
    for _ in range(-(-rounds // least)):
        for percent in PERCENT:
            found, why = timed(base, side("head", percent), least, watch)
            if why:
                raise RuntimeError(why)
            kept = bank.setdefault(str(percent), {})
            for name, pairs in found.items():
                kept.setdefault(name, []).extend(after / before for before, after in pairs)


@dataclass(frozen=True)
class Rates:
    """How often gates of one size decided what, of one contender."""

    percent: int
    rounds: int
    decisions: Counter[Decision]
    seen: int
    """Gates that failed for a time that was slowed."""

    def share(self, decision: Decision) -> float:
        """Of all gates."""
        return self.decisions[decision] / self.decisions.total()


def rates(percent: int, ratios: Mapping[str, Sequence[float]], rounds: int) -> Rates:
    """Gates of so many rounds, drawn from the bank of one contender."""
    limits, rng = load(), np.random.default_rng(rounds)
    names = list(ratios)
    bank = np.array([ratios[name] for name in names])
    decisions: Counter[Decision] = Counter()
    seen = 0
    for _ in range(DRAWN):
        drawn = bank[:, rng.permutation(bank.shape[1])[:rounds]]
        found = {
            name: change(one.tolist(), len(names)).decide(limits.of(name))
            for name, one in zip(names, drawn, strict=True)
        }
        seen += any(one is Decision.FAIL and SLOWED in name for name, one in found.items())
        decisions[_whole(found.values())] += 1
    return Rates(percent, rounds, decisions, seen)


def _whole(found: Any) -> Decision:
    kinds = set(found)
    for decision in (Decision.FAIL, Decision.INCONCLUSIVE):
        if decision in kinds:
            return decision
    return Decision.PASS


# -------------------------------------------------------------------------------------------- page

HEAD = """# The gate's own errors

How often `kvassay gate` fails a change that costs nothing, and does not see one that costs
something, by the number of its rounds: {times} times of `radix` are gated at once, and a gate fails
if any of them does. Made by `{command}`;
the rounds themselves are in `{bank}`.

| admission slower by | as measured | rounds | FAIL | of which by admission | INCONCLUSIVE | PASS |
| --- | --- | --- | --- | --- | --- | --- |
"""
FOOT = """
- A row is {drawn} gates, each of so many rounds drawn without replacement from {bank_rounds} (of
  neighbouring gates many rounds are the same: shares are not known better than by a few percent).
- *As measured* is the median ratio of the three admissions over all rounds.
- The limit is {limit:.0%}. Below it FAIL is a false alarm, and the design bounds it at 1 % of
  gates, on whichever machine; beyond it INCONCLUSIVE is what a noisy machine costs, and PASS is a
  miss.
- The default is {default} rounds.

{time}: Python {python}; {processor}, {cores} cores; load average {load}.
"""


def page(bank: Bank, environment: Environment, load_average: str) -> str:
    """The table."""
    count = min(len(ratios) for one in bank.values() for ratios in one.values())
    rows = []
    for percent, ratios in sorted(bank.items(), key=lambda item: int(item[0])):
        slowed = np.concatenate([one for name, one in ratios.items() if SLOWED in name])
        for rounds in (number for number in NUMBERS if number <= count):
            found = rates(int(percent), ratios, rounds)
            shares = [found.share(one) for one in Decision if one is not Decision.FAIL]
            cells = [
                f"{percent} %",
                f"{np.median(slowed):.3f}",
                str(rounds),
                f"{found.share(Decision.FAIL):.1%}",
                f"{found.seen / DRAWN:.1%}",
                *(f"{share:.1%}" for share in reversed(shares)),
            ]
            rows.append(f"| {' | '.join(cells)} |")
    head_text = HEAD.format(
        times=len(next(iter(bank.values()))),
        command="python -m kvassay.suites.benchmarks.gate_rates --output results",
        bank=BANK,
    )
    foot = FOOT.format(
        drawn=DRAWN,
        bank_rounds=count,
        limit=load().slower,
        default=ROUNDS,
        time=environment.time[:10],
        python=environment.python,
        processor=environment.processor,
        cores=environment.cores,
        load=load_average,
    )
    return head_text + "\n".join(rows) + "\n" + foot


def made(results: Path) -> Made:
    """The page, of the rounds that are stored; `BadRecord` without any."""
    path = results / BANK
    if not path.is_file():
        raise BadRecord(f"{path}: no rounds are stored")
    kept = json.loads(path.read_text("utf-8"))
    return Made(
        NAME, page(kept["ratios"], Environment.model_validate(kept["environment"]), kept["load"])
    )


def main(arguments: list[str] | None = None) -> int:
    """From the command line; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=positive, default=120, help="of each contender (120)")
    parser.add_argument("--output", type=Path, required=True, help="folder for page and rounds")
    parser.add_argument("--check", action="store_true", help="only whether the page is its rounds'")
    options = parser.parse_args(arguments)
    if options.check:
        return told(stale(made(options.output), options.output))
    bank: Bank = {}
    before = os.getloadavg()[0]
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("rounds", total=len(PERCENT) * options.rounds)
        try:
            measure(bank, options.rounds, lambda: progress.advance(bar))
        except KeyboardInterrupt:
            return 130
    kept = {
        "environment": capture(seed="0").model_dump(),
        "load": f"{before:.1f} before, {os.getloadavg()[0]:.1f} after",
        "ratios": {
            percent: {name: [round(one, 5) for one in ratios] for name, ratios in found.items()}
            for percent, found in bank.items()
        },
    }
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / BANK).write_text(json.dumps(kept, indent=0) + "\n", encoding="utf-8")
    page_of_it = made(options.output)
    write(page_of_it, options.output)
    print(page_of_it.text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
