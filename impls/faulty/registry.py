"""All planted faults and all controls, of every family, as the trial sees them.

One view on what the other modules here enter; nothing is described twice. A module of this shape is
a catalogue of `harness.trial`. Faults in engines are here where the engine is installed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import cache
from importlib import import_module, util
from types import CodeType
from typing import Any

import torch

from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.offers import Offers
from kvassay.harness.campaign import Budget, Campaign
from kvassay.harness.contract import CacheManager, PrefixIndex
from kvassay.harness.inside.scene import Scene
from kvassay.harness.load.known.instrument import Instrument
from kvassay.harness.registry import Registration, find
from kvassay.harness.rig.checking import Subject
from kvassay.harness.rig.rig import Rig
from kvassay.harness.rig.tagged import TaggedDevice, TaggedReference
from kvassay.harness.trial.attempt import GUARDED
from kvassay.harness.trial.marks import Mark, mark_of, mark_of_edit, marks_of
from kvassay.harness.trial.planted import Family, Planted
from kvassay.impls.faulty import (
    group_controls,
    group_faults,
    hashed,
    index_answers,
    index_controls,
    indexes,
    inside,
    kernel_controls,
    kernel_paths,
    kernels,
    managers,
    metrics,
    metrics_controls,
    pairs,
    radix_managers,
    rig,
    storage,
    tables,
    triton_kernels,
)
from kvassay.impls.faulty.metrics_planting import MetricFault
from kvassay.impls.faulty.patches import PatchedFault
from kvassay.impls.faulty.planting import Fault

ENGINES = (
    ("vllm", "kvassay.impls.faulty.vllm", "FAULTS", "vllm-fault-", "vllm"),
    (
        "vllm",
        "kvassay.impls.faulty.vllm_groups",
        "FAULTS",
        "vllm-hybrid-fault-",
        "vllm-hybrid",
    ),
    ("sglang", "kvassay.impls.faulty.sglang", "FAULTS", "sglang-fault-", "sglang-radix-commit"),
    (
        "sglang",
        "kvassay.impls.faulty.sglang",
        "INDEX_FAULTS",
        "sglang-index-fault-",
        "sglang-radix-index",
    ),
)
"""Package, module of its faults, their name in it, how they are registered, and the stock one."""
SOUND_TRITON = "kvassay.impls.interpreted"
CONTROLS_OF_MANAGERS = "kvassay.impls.faulty.controls"
PAIRED = ("bump", "null-block", "lookahead", "remap", "publish-at-finish", "drop-one")
"""Controls of managers that are tried in a pair as well."""


@cache
def _all() -> tuple[Planted, ...]:
    faults = (
        *_classes(Family.MANAGER, CacheManager, managers.FAULTS),
        *_classes(Family.MANAGER, CacheManager, tables.FAULTS),
        *_classes(Family.MANAGER, CacheManager, storage.FAULTS),
        *_classes(Family.MANAGER, CacheManager, radix_managers.FAULTS, "radix-"),
        *_classes(Family.MANAGER, CacheManager, group_faults.FAULTS),
        *_classes(Family.INDEX, PrefixIndex, indexes.FAULTS),
        *_classes(Family.INDEX, PrefixIndex, index_answers.FAULTS),
        *_kernels(),
        *_triton_kernels(),
        *_pairs(),
        *_rigs(),
        *_instruments(),
        *_insides(),
        *_engines(),
    )
    return (*faults, *_controls())


def everything() -> list[Planted]:
    """All faults, then all controls."""
    return list(_all())


def prepare(families: set[Family]) -> None:
    """What trials of these have in common: one thread, imports, what the Triton kernel takes."""
    torch.set_num_threads(1)
    if families & {Family.MANAGER, Family.INDEX}:
        sound = Registration("hashed", CacheManager, hashed.HashedCache, hashed.DECLARATION)
        Campaign(sound, "allocator", Budget(examples=2)).run()
    if Family.TRITON in families:
        _accepted_by_triton()


# ---------------------------------------------------------------------------- managers and indexes


def _classes(
    family: Family, kind: type, faults: dict[str, Fault], prefix: str = ""
) -> Iterator[Planted]:
    for fault in faults.values():
        yield Planted(
            family,
            f"{prefix}{fault.name}",
            _registered(kind, fault.build, fault.declaration),
            fault.accepted,
            _registered(kind, fault.healthy, fault.declaration),
            _marks(fault.corrupted),
            modelled_on=fault.modelled_on,
            hides=fault.hides,
        )


def _registered(kind: type, build: Any, declaration: Any) -> Callable[[], Registration]:
    return lambda: Registration("subject", kind, build, declaration, reference="subject")


def _marks(thing: Any) -> Callable[[], frozenset[Mark]]:
    return lambda: marks_of(thing)


# ---------------------------------------------------------------------------------------- kernels


def _kernels() -> Iterator[Planted]:
    for fault in kernel_paths.FAULTS.values():
        yield Planted(
            Family.TORCH,
            fault.name,
            _kernel(fault),
            fault.accepted,
            _kernel(replace(fault, new=fault.old)),
            _edit(fault),
            first=fault.first,
        )


def _kernel(fault: kernels.KernelFault) -> Callable[[], Kernel]:
    def build() -> Kernel:
        kernel = Kernel(fault.build(), fault.declaration, f"kernel-fault-{fault.name}")
        if fault.first == GUARDED and fault.new != fault.old:
            kernel.reference = kernels.__name__
        return kernel

    return build


def _edit(fault: Any) -> Callable[[], frozenset[Mark]]:
    """The function of a kernel's source in which an edit stands."""

    def marks() -> frozenset[Mark]:
        spec = util.find_spec(fault.module)
        assert spec is not None
        assert spec.origin is not None
        source = inspect.getsource(import_module(fault.module))
        before, _, _ = source.partition(fault.old)
        blank = len(fault.old) - len(fault.old.lstrip())
        line = 1 + before.count("\n") + fault.old[:blank].count("\n")
        return mark_of_edit(source, spec.origin, line)

    return marks


def _triton_kernels() -> Iterator[Planted]:
    if util.find_spec("triton") is None:
        return
    for fault in triton_kernels.FAULTS.values():
        yield Planted(
            Family.TRITON,
            fault.name,
            _triton(fault, triton_kernels.__name__, f"triton-fault-{fault.name}"),
            fault.accepted,
            _triton(replace(fault, new=fault.old), SOUND_TRITON, "triton"),
            _edit(fault),
            checks=(fault.check,),
        )


def _triton(fault: Any, reference: str, name: str) -> Callable[[], Kernel]:
    """Reference and name are how a process that reads at guard pages finds the same kernel."""

    def build() -> Kernel:
        kernel = Kernel(fault.build(), triton_kernels.DECLARED, name)
        kernel.reference = reference
        kernel.accepted.update(_accepted_by_triton())
        return kernel

    return build


@cache
def _accepted_by_triton() -> dict[Any, bool]:
    """What the kernel takes and refuses, asked once: no fault changes it."""
    from kvassay.impls.interpreted import triton_attention

    sound = Kernel(triton_attention(), triton_kernels.DECLARED)
    Offers(sound)
    return sound.accepted


# ------------------------------------------------------------------------------------------ pairs


def _pairs() -> Iterator[Planted]:
    for fault in pairs.FAULTS.values():
        edit = isinstance(fault.corrupted, kernels.KernelFault)
        yield Planted(
            Family.PAIR,
            fault.name,
            _halves(fault.halves),
            fault.accepted,
            _halves(fault.host),
            _edit(fault.corrupted) if edit else _marks(fault.corrupted),
            modelled_on=fault.modelled_on,
            hides=fault.hides,
        )


def _halves(halves: pairs.Halves) -> Callable[[], pairs.Halves]:
    return lambda: halves


# ------------------------------------------------------------------------------- rigs, instruments


def _rigs() -> Iterator[Planted]:
    for fault in rig.FAULTS.values():
        corrupted = (
            fault.build if vars(fault.build).get("scheduling") is None else (fault.build.scheduling)
        )
        yield Planted(
            Family.RIG,
            fault.name,
            _rig(fault.build),
            frozenset(fault.accepted),
            _rig(Rig),
            _marks(corrupted),
            hides=fault.hides,
        )


def _rig(build: type[Rig]) -> Callable[[], Subject]:
    def device(num_blocks: int, block_size: int) -> TaggedDevice:
        return TaggedDevice(block_size)

    def subject() -> Subject:
        (manager,) = (entry for entry in find("kvassay.impls.radix") if entry.kind is CacheManager)
        return Subject(manager, device, TaggedReference(), build)

    return subject


def _instruments() -> Iterator[Planted]:
    for fault in metrics.FAULTS.values():
        yield Planted(
            Family.METRICS,
            fault.name,
            _instrument(fault.instrument),
            fault.accepted,
            Instrument,
            _parts(fault),
            hides=fault.hides,
        )


def _instrument(instrument: Instrument) -> Callable[[], Instrument]:
    return lambda: instrument


def _parts(fault: MetricFault) -> Callable[[], frozenset[Mark]]:
    """The functions of every part that is not the usual one."""

    def marks() -> frozenset[Mark]:
        usual, found = Instrument(), frozenset[Mark]()
        for field in fields(Instrument):
            part, other = getattr(fault.instrument, field.name), getattr(usual, field.name)
            if field.name == "metrics":
                wrong = [one for tag, one in part.items() if one is not other.get(tag)]
                found = found.union(*map(marks_of, wrong))
            elif field.name != "name" and part is not other:
                found |= marks_of(part)
        return found

    return marks


# ----------------------------------------------------------------------------------- from inside


def _insides() -> Iterator[Planted]:
    for fault in inside.FAULTS.values():
        yield Planted(
            Family.INSIDE,
            fault.name,
            _scene(fault.scene),
            fault.accepted,
            _scene(fault.host),
            _marks(fault.corrupted),
            hides=fault.hides,
        )
    if util.find_spec("vllm") is None:
        return
    for name, planted in import_module("kvassay.impls.faulty.vllm_inside").FAULTS.items():
        yield Planted(
            Family.INSIDE,
            f"vllm-{name}",
            _scene(planted.scene),
            planted.fault.accepted,
            _scene(planted.host),
            _replacements(planted.fault),
            hides=planted.fault.description,
        )


def _scene(scene: Scene) -> Callable[[], Scene]:
    return lambda: scene


# ---------------------------------------------------------------------------------------- engines


def _engines() -> Iterator[Planted]:
    for package, module, called, prefix, stock in ENGINES:
        if util.find_spec(package) is None:
            continue
        registered = {entry.name: entry for entry in find(module)}
        for fault in getattr(import_module(module), called).values():
            entry = registered[f"{prefix}{fault.name}"]
            yield Planted(
                Family.INDEX if entry.kind is PrefixIndex else Family.MANAGER,
                entry.name,
                _found(entry),
                fault.accepted,
                _stock(stock, entry),
                _replacements(fault),
                hides=fault.description,
            )


def _found(entry: Registration) -> Callable[[], Registration]:
    return lambda: entry


def _stock(name: str, entry: Registration) -> Callable[[], Registration]:
    def host() -> Registration:
        (found,) = (one for one in find(name) if one.kind is entry.kind)
        return replace(found, declaration=entry.declaration)

    return host


def _replacements(fault: PatchedFault) -> Callable[[], frozenset[Mark]]:
    """The functions that are put in the place of others, not what puts them there."""
    return lambda: frozenset(map(mark_of, _inside(fault.replacing.__code__)))


def _inside(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _inside(constant)


# --------------------------------------------------------------------------------------- controls


def _controls() -> Iterator[Planted]:
    for entry in find(CONTROLS_OF_MANAGERS):
        if entry.name.startswith("control-"):
            yield _control(Family.MANAGER, entry, entry.factory.__doc__)
            if entry.name.removeprefix("control-") in PAIRED:
                yield _paired(entry)
    for entry in find(group_controls.__name__):
        yield _control(Family.MANAGER, entry, entry.factory.__doc__)
    for entry in find(index_controls.__name__):
        yield _control(Family.INDEX, entry, entry.factory.__doc__)
    for name, kernel in kernel_controls.CONTROLS.items():
        yield Planted(Family.TORCH, f"control-{name}", _odd_kernel(kernel), hides=kernel.why)
    for name, build in rig.CONTROLS.items():
        yield Planted(Family.RIG, f"control-{name}", _rig(build), hides=_first(build.__doc__))
    for name, (scene, words) in inside.CONTROLS.items():
        yield Planted(Family.INSIDE, f"control-{name}", _scene(scene), hides=_first(words))
    for name, instrument in metrics_controls.CONTROLS.items():
        yield Planted(Family.METRICS, f"control-{name}", _instrument(instrument))


def _control(family: Family, entry: Registration, words: str | None) -> Planted:
    return Planted(family, entry.name, lambda: entry, hides=_first(words))


def _paired(entry: Registration) -> Planted:
    halves = _halves((entry, pairs.KERNEL))
    return Planted(Family.PAIR, entry.name, halves, hides=_first(entry.factory.__doc__))


def _odd_kernel(control: kernel_controls.Control) -> Callable[[], Kernel]:
    return lambda: Kernel(control.build(), control.declaration, control.name)


def _first(words: str | None) -> str:
    return (words or "").strip().partition("\n")[0]
