"""Which part of a prompt is found again once all of it has been asked: measured from outside.

    python -m kvassay.suites.benchmarks.hit_laws --impl radix --impl vllm --record results/hit_laws
    python -m kvassay.suites.benchmarks.hit_laws --page

Prompts of every length around the boundaries of blocks are asked twice, each of tokens that nobody
else has; what the second time hits is held against the law that the implementation declares, and
against all laws of that kind (`harness.fitted_law`). Managers are asked through the contract, whole
engines through their streams. Exit status 1 if anybody's hits are others than declared.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from kvassay.harness.contract import CacheKey, CacheManager, Capability, ContractError, Engine
from kvassay.harness.engines.prompts import Prompts
from kvassay.harness.engines.random_llama import Sizes, write_model
from kvassay.harness.engines.subject import EngineSubject
from kvassay.harness.environment import capture
from kvassay.harness.fitted_law import Law, fitted, lengths
from kvassay.harness.record import BadRecord, Record, read_all, write
from kvassay.harness.recording import subject_of
from kvassay.harness.registry import Registration, Unavailable, UnknownImplementation, find
from kvassay.harness.report import style
from kvassay.suites.benchmarks.arguments import positive
from kvassay.suites.benchmarks.stored import RESULTS, USAGE_ERROR, Made, image
from kvassay.suites.benchmarks.stored import write as write_page

NAME = "hit_laws"
ENGINE_BLOCKS = 64
GENERATED = 2
"""Tokens: what ends with its prompt is not kept by everybody."""
SIZES = Sizes(vocab_size=512, hidden_size=64, intermediate_size=128, num_attention_heads=2)
Hits = dict[int, int]
"""Tokens that were hit, by the length of the prompt."""


# ---------------------------------------------------------------------------------------- measured


def measured(entry: Registration, block_size: int) -> tuple[int, Hits]:
    """Block size and hits; `ValueError` for what tells no hits."""
    if not entry.declaration.has(Capability.PREFIX_CACHE):
        raise ValueError(f"{entry.name}: expected PREFIX_CACHE, which it does not declare")
    if entry.kind is CacheManager:
        return block_size, _of_manager(entry, block_size)
    if entry.kind is Engine:
        return _of_engine(entry)
    raise ValueError(f"{entry.name}: expected a CacheManager or an Engine")


def _of_manager(entry: Registration, block_size: int) -> Hits:
    """Each length by a manager of its own: nothing is in the way."""
    rng, hits = Random(0), Hits()
    for length in lengths(block_size):
        manager = entry.build(num_blocks=2 * length // block_size + 8, block_size=block_size)
        key = CacheKey(tuple(rng.randrange(1 << 16) for _ in range(length)))
        for name in ("first", "second"):
            hits[length] = _asked(manager, entry, name, key)
    return hits


def _asked(manager: Any, entry: Registration, name: str, key: CacheKey) -> int:
    hit: int = manager.admit(name, key)
    if entry.declaration.has(Capability.COMMIT) and hit < len(key.tokens):
        manager.commit(name, len(key.tokens))
    manager.release(name)
    return hit


def _of_engine(entry: Registration) -> tuple[int, Hits]:
    with TemporaryDirectory() as folder:
        subject = EngineSubject.of(entry, write_model(Path(folder), SIZES))
        try:
            engine = subject.engine(ENGINE_BLOCKS)
            size = engine.block_size
            prompts, hits = Prompts(SIZES.vocab_size, size, NAME), Hits()
            for length in lengths(size):
                prompt = prompts.run(length)
                for _ in range(2):
                    (told,) = engine.ask([prompts.sending(prompt, GENERATED)])
                if told.cached is None or not told.answered:
                    raise ValueError(f"{told}: no cached tokens were told")
                hits[length] = told.cached
            return size, hits
        finally:
            subject.drop()


def record(entry: Registration, block_size: int, hits: Hits) -> Record:
    """What is kept of one implementation."""
    return Record(
        suite=NAME,
        subject=subject_of(entry),
        environment=capture(seed="0"),
        options={"block_size": str(block_size), "law": str(declared(entry, block_size))},
        counters={str(length): count for length, count in hits.items()},
    )


def declared(entry: Registration, block_size: int) -> Law:
    """What it says."""
    return Law.declared(entry.declaration, block_size)


# -------------------------------------------------------------------------------------------- page

HEAD = f"""# Hit laws, measured

Which part of a prompt is found again once all of it has been asked: prompts of every length around
the boundaries of blocks are asked twice, each of tokens that nobody else has. A law says
`max(0, floor((length - reserve) / unit) - drop) * unit`. *Fitted* is the plainest that gives every
hit that was seen, from outside. Made by `python -m kvassay.suites.benchmarks.{NAME}`.

| implementation | kind | version | block size | declared | fitted | lengths | hits as declared |
|---|---|---|---|---|---|---|---|
"""
FOOT = f"""
{image(NAME, "Tokens hit by length of the prompt, for each law that was seen")}

Unit 1 finds every token but the last, which has to be computed for its logits. With unit = block,
whole blocks are found. EAGLE's drafter needs the hidden states of the last block, so that vLLM
gives up one more.
"""


def stored(results: Path) -> list[Record]:
    """The newest of each implementation and block size; `BadRecord` if there is none."""
    newest: dict[tuple[str, str], Record] = {}
    for one in read_all([results / NAME]):
        newest[one.subject.name, one.options["block_size"]] = one
    if not newest:
        raise BadRecord(f"{results / NAME}: no record of {NAME}")
    return [newest[key] for key in sorted(newest, key=lambda key: (key[0], int(key[1])))]


def made(results: Path) -> Made:
    """The page and its chart, of what is stored."""
    records = stored(results)
    text = HEAD + "\n".join(map(_row, records)) + "\n" + FOOT
    return Made(NAME, text, {NAME: lambda: chart(records)})


def hits_of(one: Record) -> Hits:
    """What was seen."""
    return {int(length): hits for length, hits in one.counters.items()}


def _row(one: Record) -> str:
    hits, said = hits_of(one), one.options["law"]
    law = fitted(hits)
    cells = (
        one.subject.name,
        one.subject.kind,
        one.subject.version,
        one.options["block_size"],
        said,
        "none of this kind" if law is None else str(law),
        str(len(hits)),
        "yes" if Law.read(said).gives(hits) else "**no**",
    )
    return f"| {' | '.join(cells)} |"


def chart(records: Sequence[Record]) -> Any:
    """Hits by length, one line for each law, named by whoever follows it."""
    figure, (axes,) = style.panels(1, width=6.4)
    followers: dict[tuple[tuple[int, int], ...], list[str]] = {}
    for one in records:
        if one.options["block_size"] in ("1", "16", "32"):
            seen = tuple(sorted(hits_of(one).items()))
            followers.setdefault(seen, []).append(one.subject.name)
    for place, (seen, names) in enumerate(followers.items()):
        axes.step(
            [length for length, _ in seen],
            [hits for _, hits in seen],
            where="post",
            color=style.colour(place),
            linestyle=style.LINES[place % len(style.LINES)],
            label=_called(sorted(set(names))),
        )
    axes.set_xlabel("tokens of the prompt")
    axes.set_ylabel("tokens hit the second time")
    style.legend(axes, "upper left")
    return figure


def _called(names: Sequence[str]) -> str:
    """Two of them; the table has the rest."""
    shown, rest = names[:2], len(names[2:])
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


# ------------------------------------------------------------------------------------ command line


def _entries(names: Sequence[str]) -> Iterator[Registration]:
    for name in names:
        yield from (one for one in find(name) if one.kind in (CacheManager, Engine))


def main(arguments: Sequence[str] | None = None) -> int:
    """From the command line; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--impl", action="append", default=[], help="a manager or an engine; repeat")
    add("--block-size", type=positive, action="append", help="of managers; repeat (16)")
    add("--record", type=Path, help="folder for a record of each")
    add("--page", action="store_true", help="write the page of what is stored")
    options = parser.parse_args(arguments)
    try:
        status = max((_measure(e, options) for e in _entries(options.impl)), default=0)
        if options.page:
            write_page(made(RESULTS))
    except (BadRecord, ContractError, Unavailable, UnknownImplementation, ValueError) as error:
        print(error, file=sys.stderr)
        return USAGE_ERROR
    return status


def _measure(entry: Registration, options: argparse.Namespace) -> int:
    sizes: list[int] = options.block_size or [16]
    differ = 0
    for asked in sizes if entry.kind is CacheManager else sizes[:1]:
        size, hits = measured(entry, asked)
        law, said = fitted(hits), declared(entry, size)
        print(f"{entry.name}, blocks of {size}: declared {said}; fitted {law or 'none'}")
        differ |= not said.gives(hits)
        if options.record is not None:
            write(record(entry, size, hits), options.record)
    return int(differ)


if __name__ == "__main__":
    sys.exit(main())
