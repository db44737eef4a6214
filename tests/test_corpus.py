"""The pinned scenarios are well-formed and clean on what is correct; each convicts a fault."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from kvassay.harness.assay import corpus_folder
from kvassay.harness.campaign import load_known
from kvassay.harness.checker import Effect
from kvassay.harness.contract import CacheKey, CacheManager, Capability, Declaration, Outcome
from kvassay.harness.index import scenario as of_indexes
from kvassay.harness.index.session import replay as replay_index
from kvassay.harness.registry import Registration, find
from kvassay.harness.scenario import load, to_json
from kvassay.harness.session import Run, replay, without_inspection
from kvassay.harness.subjects import SUBJECTS
from kvassay.harness.violation import Violation
from kvassay.impls.faulty import controls, group_faults, indexes, inside, managers, metrics, rig
from kvassay.impls.faulty.grouped import DECLARATION as GROUPED
from kvassay.impls.faulty.grouped import GroupedCache, Strand
from kvassay.impls.faulty.hashed import DECLARATION, HashedCache, LiveRequest
from kvassay.impls.faulty.managers import TwoStates

FILES = sorted(corpus_folder().glob("*.json"))
INDEX_FILES = sorted((corpus_folder() / "index").glob("*.json"))
CLAIMING = {
    Capability.CHUNKED: replace(
        DECLARATION, capabilities=DECLARATION.capabilities | {Capability.CHUNKED}
    ),
    Capability.QUERY: replace(
        DECLARATION, capabilities=DECLARATION.capabilities | {Capability.QUERY}
    ),
    Capability.SPANS: replace(
        DECLARATION, capabilities=DECLARATION.capabilities | {Capability.SPANS}
    ),
}
"""Declarations that claim one thing more."""


# ------------------------------------------------------------------- correct, and claiming more


class Chunked(HashedCache):
    """A look-up that pins what it counts, and slots piece by piece."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self._prompts: dict[str, list[int]] = {}

    def begin(self, request: str, key: CacheKey) -> int:
        prompt = list(key.tokens)
        entry = LiveRequest(prompt, key.salt, key.adapter)
        hits = self._match(entry)
        self._pin(hits)
        hit = len(hits) * self.block_size
        self._prompts[request] = prompt
        self._live[request] = LiveRequest(
            prompt[:hit], key.salt, key.adapter, hits, [], hit, len(hits)
        )
        return hit

    def reserve(self, request: str, num_tokens: int) -> int:
        entry = self._live[request]
        start = len(entry.tokens)
        self.append(request, self._prompts[request][start : start + num_tokens])
        return len(entry.tokens)

    def _pin(self, hits: Sequence[int]) -> None:
        for block in hits:
            self._reuse(block)


class Asked(HashedCache):
    """Says beforehand whether a key could be admitted."""

    def can_admit(self, key: CacheKey) -> bool:
        entry = LiveRequest(list(key.tokens), key.salt, key.adapter)
        hits = self._match(entry)
        return self._demand(entry, hits) <= self._supply(hits)

    def _demand(self, entry: LiveRequest, hits: Sequence[int]) -> int:
        return self._blocks_for(len(entry.tokens)) - len(hits)

    def _supply(self, hits: Sequence[int]) -> int:
        return self._room_for_admission(hits)


class Spanned(HashedCache):
    """A placeholder is known by its content and the place in it."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self._contents: dict[str, int] = {}

    def admit(self, request: str, key: CacheKey) -> int:
        tokens = list(key.tokens)
        for span in key.spans:
            number = self._contents.setdefault(span.content, len(self._contents) + 1)
            for place in range(self._num_marked(span.length)):
                tokens[span.start + place] = 10**6 * number + place
        return super().admit(request, replace(key, tokens=tokens, spans=()))

    def _num_marked(self, length: int) -> int:
        return length


# -------------------------------------------------------------------- one fault each, on purpose


class FreesOncePerSharer(HashedCache):
    """B02: the last to leave gives a block back as often as it had owners."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self._sharers: Counter[int] = Counter()

    def _share_on_fork(self, parent: LiveRequest) -> LiveRequest:
        self._sharers.update(parent.table)
        return super()._share_on_fork(parent)

    def _give_back(self, block: int) -> None:
        self._free.extend([block] * (1 + self._sharers.pop(block, 0)))


class PinsTheKnownBlock(HashedCache):
    """B04: a request gives back the block that its key leads to, not the one that it has."""

    def release(self, request: str, outcome: Outcome = Outcome.FINISHED) -> None:
        entry = self._live[request]
        for index, key in enumerate(entry.keys[: entry.published]):
            known = self._lookup(key)
            entry.table[index] = entry.table[index] if known is None else known
        super().release(request, outcome)


class CountsFromZero(HashedCache):
    """B06: a block is handed out with no reference counted, so that none is ever the last."""

    def _take_block(self) -> int:
        block = super()._take_block()
        self._references[block] = 0
        return block

    def _drop(self, block: int) -> None:
        if self._references[block] == 0:
            self._references[block] = -1
            return
        super()._drop(block)


class LastBlockByRemainder(HashedCache):
    """B07: the last block of a whole number of blocks has a length of 0, taken from the end."""

    def _keys(self, entry: LiveRequest, count: int) -> list[bytes]:
        for index in range(len(entry.keys), count):
            start, stop = index * self.block_size, (index + 1) * self.block_size
            rest = stop - len(entry.tokens)
            tokens = entry.tokens[rest:] if rest == 0 else entry.tokens[start:stop]
            parent = self._parent_key(entry)
            entry.keys.append(self._block_key(parent, tokens, entry.salt, entry.adapter))
        return entry.keys[:count]


class CapsDemand(Asked):
    """B12: a query never counts more than two blocks."""

    def _demand(self, entry: LiveRequest, hits: Sequence[int]) -> int:
        return min(2, super()._demand(entry, hits))


class CountsHitsAsRoom(Asked):
    """B16: what is about to be pinned is taken for room."""

    def _supply(self, hits: Sequence[int]) -> int:
        return self._room()


class HandsOutTheEntry(HashedCache):
    """B31: an entry goes on to be the table of the request that found it."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self._entries: dict[bytes, list[int]] = {}

    def admit(self, request: str, key: CacheKey) -> int:
        hit = super().admit(request, key)
        entry = self._live[request]
        if hit:
            self._entries.setdefault(entry.keys[0], entry.table)
        return hit

    def _match(self, entry: LiveRequest) -> list[int]:
        hits = super()._match(entry)
        found = self._entries.get(entry.keys[0], hits) if hits else hits
        return found[: self._hit_limit(len(entry.tokens))]


class KeepsTheTable(HashedCache):
    """B32: a key leads to a place in the table of the request, as it is then."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self._places: dict[bytes, tuple[list[int], int]] = {}

    def _publish_block(self, entry: LiveRequest, index: int, key: bytes) -> None:
        super()._publish_block(entry, index, key)
        self._places[key] = (entry.table, index)

    def _lookup(self, key: bytes) -> int | None:
        if super()._lookup(key) is None:
            return None
        table, index = self._places[key]
        return table[index]


class ForksStepByStep(HashedCache):
    """B36: each child copies at once, and those before a refusal stay."""

    def fork(self, parent: str, children: Sequence[str]) -> None:
        for child in children:
            super().fork(parent, [child])
            entry = self._live[child]
            if self._open_block(entry) is not None:
                self._require(1, self._room())
                self._copy_on_write(entry)


class ReturnsTwoPieces(HashedCache):
    """B52: what is written and what is not are given back apart, though they share a block."""

    def release(self, request: str, outcome: Outcome = Outcome.FINISHED) -> None:
        entry = self._live.pop(request)
        self._release_blocks(entry.table[: self._blocks_for(entry.committed)])
        self._release_blocks(entry.table[entry.committed // self.block_size :])


class KeepsWhatIsOverwritten(controls.PublishAtFinish):
    """A block that others published keeps its key while a request writes on inside it."""

    def _withdraw(self, block: int) -> None:
        """Leave the key where it is."""


class FreesWhenPreempted(Chunked):
    """B54: a preempted request frees its blocks; the keys keep leading to them."""

    def release(self, request: str, outcome: Outcome = Outcome.FINISHED) -> None:
        if outcome is not Outcome.PREEMPTED:
            super().release(request, outcome)
            return
        for block in self._live.pop(request).table:
            self._references[block] -= 1
            self._give_back(block)

    def _map(self, block: int, key: bytes) -> None:
        self._key_of.pop(block, None)
        super()._map(block, key)


class EvictsTheNewest(TwoStates):
    """B56: the block that was published last goes first, whoever uses it."""

    def _evict_block(self) -> int:
        block = next(reversed(self._key_of))
        self._idle.pop(block, None)
        self._unmap(block)
        return block


class BuiltInHash(HashedCache):
    """B64: keys are Python's own hashes."""

    def _block_key(
        self, parent: bytes, tokens: Sequence[int], salt: str | None, adapter: str | None
    ) -> bytes:
        return str(hash((parent, tuple(tokens), salt, adapter))).encode()


class SpanEndsEarly(Spanned):
    """B69: the exclusive end of a span is taken for its last token."""

    def _num_marked(self, length: int) -> int:
        return length - 1


class BeginOnlyCounts(Chunked):
    """B72: a look-up counts what is there, and pins nothing."""

    def _pin(self, hits: Sequence[int]) -> None:
        """Leave it to chance."""


class CountsNoUse(controls.Lfu):
    """B81: the counters of a policy by frequency are never raised."""

    def _drop(self, block: int) -> None:
        HashedCache._drop(self, block)


class GivesBackTouchedPages(GroupedCache):
    """B09: a page goes back as soon as the window has passed a token of it, and with the rest."""

    def _drop_passed(self, strand: Strand) -> None:
        index, passed = divmod(self._low(strand), self.block_size)
        if passed and index < len(strand.table):
            self._drop(strand.table[index])
        super()._drop_passed(strand)

    def _low(self, strand: Strand) -> int:
        window = strand.group.window
        return 0 if window is None else max(0, strand.committed - window + 1)


class CapsDemandByTheWindow(GroupedCache):
    """B12: no more blocks are counted than the window shows, whatever admission takes."""

    def can_admit(self, key: CacheKey) -> bool:
        shown = max(group.window or len(key.tokens) for group in self.groups)
        return super().can_admit(replace(key, tokens=key.tokens[:shown]))


class RoundsShortWindowsUp(GroupedCache):
    """B51: what a window shorter than a page has passed is rounded up to whole pages."""

    def _first(self, strand: Strand, num_tokens: int) -> int:
        window = strand.group.window
        if window is None or window >= self.block_size:
            return super()._first(strand, num_tokens)
        return self._blocks_for(max(0, num_tokens - window + 1))


# ------------------------------------------------------------------------- scenarios have teeth


@dataclass(frozen=True)
class Tooth:
    """A fault that a scenario convicts, and what is right beside it."""

    fault: type[HashedCache]
    accepted: str
    """Ids of the invariants that may convict it."""
    declaration: Declaration = DECLARATION
    right: type[HashedCache] = HashedCache


def planted(name: str) -> Tooth:
    """A fault of the collection."""
    fault = managers.FAULTS[name]
    right = controls.HeadFirst if name == "match-past-hole" else HashedCache
    return Tooth(fault.build, " ".join(fault.accepted), fault.declaration, right)


def claiming(
    more: Capability, fault: type[HashedCache], accepted: str, right: type[HashedCache]
) -> Tooth:
    return Tooth(fault, accepted, CLAIMING[more], right)


def of_groups(fault: type[HashedCache], accepted: str) -> Tooth:
    return Tooth(fault, accepted, GROUPED, GroupedCache)


TEETH = {
    "b01-fork-past-the-window": of_groups(group_faults.WindowGivenBackPerSharer, "A2 A3"),
    "b09-window-inside-a-page": of_groups(GivesBackTouchedPages, "A2 A3 A6"),
    "b12-a-yes-past-the-window": of_groups(CapsDemandByTheWindow, "A4"),
    "b51-page-wider-than-the-window": of_groups(RoundsShortWindowsUp, "A7"),
    "b02-free-once": Tooth(FreesOncePerSharer, "A2 A3"),
    "b04-duplicate-leaves-last": Tooth(PinsTheKnownBlock, "A2 A3"),
    "b06-blocks-come-back": Tooth(CountsFromZero, "A3 A4 A5"),
    "b07-full-last-block": Tooth(LastBlockByRemainder, "P12"),
    "b11-refusal-at-the-brim": planted("refusal-keeps-blocks"),
    "b12-a-yes-binds": claiming(Capability.QUERY, CapsDemand, "A4", Asked),
    "b16-hits-are-no-room": claiming(Capability.QUERY, CountsHitsAsRoom, "A4", Asked),
    "b17-preempted-inside-a-page": planted("tail-leaked"),
    "b27-fork-then-release-parent": planted("fork-forgets-parent-reference"),
    "b29-fork-inside-a-block": planted("copy-forgotten"),
    "b31-hit-twice": Tooth(HandsOutTheEntry, "P1 P2 P3 P4"),
    "b32-copied-after-publishing": Tooth(KeepsTheTable, "P1 P2 P4 P5 C1"),
    "b36-fork-without-room": Tooth(ForksStepByStep, "A4 A5"),
    "b37-computed-twice": planted("duplicate-frees-canonical"),
    "b52-two-pieces-of-one-page": Tooth(ReturnsTwoPieces, "A2 A3"),
    "b54-preempted-while-chunked": claiming(
        Capability.CHUNKED, FreesWhenPreempted, "P1 P5 A3", Chunked
    ),
    "b56-grows-by-eviction": Tooth(EvictsTheNewest, "P7 A2 A7"),
    "b61-recycled-key": planted("recycled-keeps-key"),
    "b64-equal-hashes": Tooth(BuiltInHash, "P2"),
    "b66-adapters": planted("adapter-ignored"),
    "b67-salt-is-no-adapter": planted("salt-and-adapter-confused"),
    "b69-span-boundaries": claiming(Capability.SPANS, SpanEndsEarly, "P2", Spanned),
    "b71-full-hits-chain": planted("full-hit"),
    "b72-begin-pins": claiming(Capability.CHUNKED, BeginOnlyCounts, "P7 P1 P5 A2 A3", Chunked),
    "b74-reset-forgets": planted("reset-keeps-keys"),
    "b76-tail-first": Tooth(controls.HeadFirst, "P9 P10 P12"),
    "b77-behind-a-hole": planted("match-past-hole"),
    "b79-used-again": planted("wrong-victim-fifo"),
    "b81-used-more-often": Tooth(
        CountsNoUse, "P10", find("control-lfu")[0].declaration, controls.Lfu
    ),
    "b82-evict-what-is-asked": planted("evict-everything"),
    "b84-evict-what-is-held": planted("evict-pinned"),
    "b154-linear-keys": planted("key-is-linear"),
    "truncate-diverge-rematch": planted("truncation-keeps-key"),
    "truncated-before-published": Tooth(
        KeepsWhatIsOverwritten, "P4 P5 C1", controls.AT_FINISH, controls.PublishAtFinish
    ),
}
INDEX_TEETH = {
    "b42-split-keeps-age": "split-renews-rest",
    "b44-way-to-the-rest": "split-wrong-key",
    "b47-shorter-than-a-page": "short-key-stored",
    "b57-locked-leaf": "evict-ignores-locks",
    "b67-salt-is-no-adapter": "salt-is-adapter",
    "b69-contents": "content-ignored",
    "b79-used-again": "evict-first-in",
    "b82-evict-what-is-asked": "evict-too-much",
    "b86-unlocked-twice": "unlock-unchecked",
}
"""A planted fault of an index for each of its scenarios."""


def played(build: type[HashedCache], declaration: Declaration, name: str) -> Run:
    """A scenario on a manager that shows nothing of its inside."""
    mine = Registration("mine", CacheManager, build, without_inspection(declaration))
    return replay(mine, load(corpus_folder() / f"{name}.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_scenario_is_well_formed_and_takes_effect_on_radix(path: Path) -> None:
    scenario = load(path)
    assert scenario.name == path.stem
    assert scenario.note
    assert path.read_text(encoding="utf-8") == to_json(scenario)
    run = replay(find("radix")[0], scenario)
    assert run.verdict is None
    assert run.effects[Effect.SKIPPED] == 0, "radix declares everything: nothing is skipped"


@pytest.mark.parametrize("path", INDEX_FILES, ids=lambda path: path.stem)
def test_a_scenario_of_an_index_is_well_formed_and_takes_effect(path: Path) -> None:
    scenario = of_indexes.load(path)
    assert scenario.name == path.stem
    assert scenario.note
    assert path.read_text(encoding="utf-8") == of_indexes.to_json(scenario)
    run = replay_index(find("radix-index")[0], scenario)
    assert run.verdict is None
    assert run.effects[Effect.SKIPPED] == 0


@pytest.mark.parametrize("name", TEETH)
def test_a_scenario_convicts_a_fault_without_looking_inside(name: str) -> None:
    tooth = TEETH[name]
    verdict = played(tooth.fault, tooth.declaration, name).verdict
    assert isinstance(verdict, Violation), verdict
    assert verdict.invariant in tooth.accepted.split(), verdict
    if tooth.fault is controls.HeadFirst:
        return  # right as it is, where it says so
    assert played(tooth.right, tooth.declaration, name).verdict is None


@pytest.mark.parametrize("name", INDEX_TEETH)
def test_a_scenario_of_an_index_convicts_a_fault(name: str) -> None:
    fault = indexes.FAULTS[INDEX_TEETH[name]]
    (faulty,) = find(f"index-fault-{fault.name}")
    scenario = of_indexes.load(corpus_folder() / "index" / f"{name}.json")
    verdict = replay_index(faulty, scenario).verdict
    assert isinstance(verdict, Violation), verdict
    assert verdict.invariant in fault.accepted, verdict


def test_every_scenario_has_teeth() -> None:
    assert {path.stem for path in FILES} == {*TEETH}
    assert {path.stem for path in INDEX_FILES} == {*INDEX_TEETH}


CORRECT = (
    "paged",
    "contiguous",
    "contiguous-pow2",
    "contiguous-oracle",
    "kvassay.impls.faulty.hashed",
    "kvassay.impls.faulty.controls",
    "kvassay.impls.faulty.grouped",
    "kvassay.impls.faulty.group_controls",
    "radix-index",
    "kvassay.impls.faulty.index_controls",
)


@pytest.mark.parametrize("reference", CORRECT)
def test_the_corpus_convicts_nothing_that_is_correct(reference: str) -> None:
    for registration in find(reference):
        subject = SUBJECTS.get(registration.kind)
        if subject is None or subject.corpus is None:
            continue
        for scenario in load_known([corpus_folder(subject.corpus)], load=subject.load):
            try:
                verdict = subject.replay(registration, scenario).verdict
            except ValueError:
                continue  # a shape that it does not offer
            assert verdict is None, f"{registration.name}, {scenario.name}: {verdict}"


# ------------------------------------------------------------------------- the table of reports

REPORTED = """
01 02 04 06 07 09 11 12 14 16 17 19 21 22 24 26 27 29 31 32 34 36 37 42 44 46 47 51 52 54 56 57
61 64 66 67 69 71 72 74 76 77 79 81 82 84 86 87 89 91 92 94 96 97 99 101 102 104 106 107 109 111
112 114 116 117 119 121 122 124 126 127 129 131 132 134 136 137 139 141 142 144 146 147 149 151
152 154 156 157
"""
"""Numbers of the public reports that the table speaks of, each once."""
UNREPORTED = {"truncate-diverge-rematch.json", "truncated-before-published.json"}
FOLDER = corpus_folder()
TABLE = {
    cells[0].strip().removeprefix("B"): (cells[1].strip(), cells[2].strip())
    for line in (FOLDER / "README.md").read_text(encoding="utf-8").splitlines()
    if re.match(r"\| B\d+ ", line)
    for cells in [line.strip("|").split("|")]
}
"""Number -> report, and where it went."""


def named(where: str) -> list[str]:
    return re.findall(r"`([^`]+)`", where)


def test_the_table_speaks_of_every_report() -> None:
    assert sorted(TABLE, key=int) == REPORTED.split()
    listed = {name for _, where in TABLE.values() for name in named(where)}
    files = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.json")}
    assert files - listed == UNREPORTED


@pytest.mark.parametrize("number", REPORTED.split())
def test_the_table_says_of_a_report_what_is_so(number: str) -> None:
    report, where = TABLE[number]
    if where.startswith("not yet: "):
        assert len(where) > len("not yet: ")
        return
    if where.startswith("instrument "):
        assert {*named(where)} <= {*metrics.FAULTS}
        return
    if where.startswith("rig "):
        assert {*named(where)} <= {*rig.FAULTS}
        return
    if where.startswith("inside "):
        assert {*named(where)} <= {*inside.FAULTS}
        return
    assert named(where)
    for name in named(where):
        assert Path(name).name.startswith(f"b{number}-")
        told = json.loads((FOLDER / name).read_text(encoding="utf-8"))["note"]
        assert told.endswith(f"({report}).")
