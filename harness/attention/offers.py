"""What a kernel computes: the values of every factor that it accepts, found out by asking.

What is not claimed is not asked for. Everything else is tried on a case of a few keys, first by
itself and, where whole cases are refused, in pairs, so that one refused value costs the others
nothing. What was refused stays visible in `dropped` and in the kernel's own counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations, product
from random import Random
from typing import Any

from kvassay.harness.attention.case import (
    BadCase,
    CacheLayout,
    Case,
    Contents,
    Garbage,
    Placement,
    RowLayout,
    Scaling,
)
from kvassay.harness.attention.driver import Kernel
from kvassay.harness.attention.lengths import (
    PROBES,
    Length,
    Phase,
    Window,
    mark_of,
    seqs_of,
    window_of,
)
from kvassay.harness.contract import Capability, Tail

Fields = dict[str, Any]


@dataclass(frozen=True)
class Value:
    """One value of a factor: fields of a case, or a word that sequences are drawn by."""

    name: str
    fields: tuple[tuple[str, Any], ...] = ()


Chosen = Mapping[str, Value]
"""A value for each of some factors."""
Named = tuple[tuple[str, Value], tuple[str, Value]]
"""Two values with their factors."""


def _values(field: str, *options: Any) -> tuple[Value, ...]:
    return tuple(Value(str(option), ((field, option),)) for option in options)


def _tuples(fields: tuple[str, ...], *options: tuple[Any, ...]) -> tuple[Value, ...]:
    return tuple(
        Value("/".join(map(str, option)), tuple(zip(fields, option, strict=True)))
        for option in options
    )


def _words(words: Iterable[str]) -> tuple[Value, ...]:
    return tuple(Value(word) for word in words)


_TYPES = ("dtype", "cache_dtype")
PLAIN_TYPES = _tuples(
    _TYPES, ("bfloat16", "bfloat16"), ("float16", "float16"), ("float32", "float32")
)
OTHER_TYPES = tuple(
    _tuples(_TYPES, *((dtype, cache) for dtype in ("bfloat16", "float16", "float32")))
    for cache in ("float8_e4m3fn", "float8_e5m2", "int8")
)
"""Of each quantised type, the first that is accepted is enough."""
MIXED_TYPES = _tuples(
    _TYPES, ("float32", "bfloat16"), ("float16", "bfloat16"), ("bfloat16", "float32")
)

FACTORS: dict[str, tuple[Value, ...]] = {
    "types": PLAIN_TYPES,
    "scaling": _tuples(
        ("k_scale", "v_scale"),
        (Scaling.NONE, Scaling.NONE),
        (Scaling.TENSOR, Scaling.TENSOR),
        (Scaling.HEAD, Scaling.HEAD),
        (Scaling.TOKEN, Scaling.TOKEN),
        (Scaling.TENSOR, Scaling.HEAD),
        (Scaling.TOKEN, Scaling.NONE),
    ),
    "heads": _tuples(("num_q_heads", "num_kv_heads"), (2, 2), (6, 3), (8, 2), (14, 2), (5, 1)),
    "sizes": _tuples(
        ("head_dim", "head_dim_v"),
        (64, 64),
        (128, 128),
        (80, 80),
        (96, 96),
        (192, 128),
        (256, 256),
        (576, 512),
    ),
    "block_size": _values("block_size", 16, 1, 5, 8, 32, 128),
    "phase": _words(Phase),
    "length": _words((Length.EDGE, Length.SEVERAL, Length.SHORT)),
    "window": _words(Window),
    "softcap": _values("softcap", None, 2.0, 20.0),
    "alibi": _values("alibi", False, True),
    "sinks": _values("sinks", False, True),
    "scale": _words(("default", "half", "double")),
    "causal": _values("causal", True, False),
    "cache_layout": _values(
        "cache_layout",
        CacheLayout.NHD,
        CacheLayout.HND,
        CacheLayout.PADDED,
        CacheLayout.INTERLEAVED,
        CacheLayout.PACKED,
        CacheLayout.V_IN_K,
    ),
    "row_layout": _values("row_layout", *RowLayout),
    "placement": _values("placement", Placement.SHUFFLED, Placement.REVERSED, Placement.IDENTITY),
    "garbage": _values("garbage", Garbage.FINITE, Garbage.NAN, Garbage.INF, Garbage.ZERO),
    "buffers": _values("buffers", False, True),
    "shared": _values("shared_blocks", 0, 1, 2),
    "evicted": _values("evicted", False, True),
    "contents": _values(
        "contents",
        Contents.PLAIN,
        Contents.PEAKY,
        Contents.NEEDLE,
        Contents.HALVES,
        Contents.OFFSET,
        Contents.TINY,
    ),
}
"""All factors, the plainest value of each first. Ids and strides past 2**31 are for K8 alone."""

_CLAIMED: dict[str, Capability] = {
    "window": Capability.WINDOW,
    "evicted": Capability.WINDOW,
    "softcap": Capability.SOFTCAP,
    "alibi": Capability.ALIBI,
    "sinks": Capability.SINKS,
    "scaling": Capability.SCALES,
    "buffers": Capability.OUTPUT,
}
"""Factors of which all values but the first need a capability."""
_UNASKED = ("length", "placement", "garbage", "contents")
"""Nothing that a kernel could refuse by."""
_SCALES = {"default": None, "half": 0.5, "double": 2.0}
"""Logit scales, relative to the usual one."""


class Offers:
    """The values of each factor that a kernel accepts, the plainest first."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.dropped: list[str] = []
        """Values that it refused, by factor and name."""
        self._forbidden: dict[Named, bool] = {}
        self.base: dict[str, Value] = {name: values[0] for name, values in FACTORS.items()}
        self.usable = self._find_base()
        """Whether it accepts anything that was tried."""
        self.values: dict[str, tuple[Value, ...]] = {}
        for name in FACTORS:
            self.values[name] = tuple(self._accepted(name))

    # ------------------------------------------------------------------------------------- probes

    def _find_base(self) -> bool:
        """The plainest values that are accepted together."""
        causal = self.kernel.has(Capability.CAUSAL)
        axes = {
            "cache_layout": FACTORS["cache_layout"][:2],
            "phase": FACTORS["phase"][:3:2],
            "causal": FACTORS["causal"] if causal else FACTORS["causal"][1:],
            "heads": FACTORS["heads"][:1] + FACTORS["heads"][-1:],
            "sizes": (*FACTORS["sizes"][:2], FACTORS["sizes"][5]),
            "block_size": FACTORS["block_size"],
            "types": PLAIN_TYPES,
        }
        for options in product(*axes.values()):
            chosen = dict(zip(axes, options, strict=True))
            if self._takes(chosen):
                self.base.update(chosen)
                return True
        self.base["causal"] = axes["causal"][0]
        return False

    def _accepted(self, name: str) -> Iterator[Value]:
        plain = self.base[name]
        yield plain
        if not self.usable:
            return
        for value in self._candidates(name):
            if value == plain:
                continue
            if self.asked(name) and not self._takes_somehow(name, value):
                self.dropped.append(f"{name}: {value.name}")
            else:
                yield value

    def _candidates(self, name: str) -> Iterator[Value]:
        """What is worth asking for."""
        claim = _CLAIMED.get(name)
        if claim is not None and not self.kernel.has(claim):
            return
        if name == "causal" and not self.kernel.has(Capability.CAUSAL):
            return
        if name == "garbage" and self.kernel.declaration.tail is not Tail.ANY:
            yield from (v for v in FACTORS[name] if v.name in (Garbage.FINITE, Garbage.ZERO))
            return
        yield from FACTORS[name]
        if name == "types":
            yield from self._more_types()

    def _more_types(self) -> Iterator[Value]:
        for kinds in (*OTHER_TYPES, MIXED_TYPES):
            taken = (each for each in kinds if self._takes_somehow("types", each))
            yield next(taken, kinds[0])

    def asked(self, name: str) -> bool:
        """Whether a kernel may refuse by this factor."""
        return name not in _UNASKED

    def _takes_somehow(self, name: str, value: Value) -> bool:
        """By itself, or with what it needs beside it."""
        return any(self._takes({name: value, **more}) for more in self._beside(name))

    def _beside(self, name: str) -> Iterator[Chosen]:
        yield {}
        if name == "types" and self.kernel.has(Capability.SCALES):
            yield from ({"scaling": value} for value in FACTORS["scaling"][1:4])
        elif name == "scaling":
            yield from ({"types": kinds[0]} for kinds in OTHER_TYPES)

    def _takes(self, chosen: Chosen) -> bool:
        try:
            return self.kernel.accepts(self.probe(chosen))
        except BadCase:
            return False

    def probe(self, chosen: Chosen) -> Case:
        """The least case with these values, all others plain; raises `BadCase`."""
        full = {**self.base, **_needed(chosen), **chosen}
        seqs = PROBES[Phase(full["phase"].name)]
        plain = {name: self.base[name] for name in _UNASKED}
        return self._case({**full, **plain}, seqs, Random(0))

    # -------------------------------------------------------------------------------------- pairs

    def forbidden(self, pair: Named) -> bool:
        """Whether two values make no case, or none that this kernel accepts."""
        if pair not in self._forbidden:
            self._forbidden[pair] = self._never(dict(pair))
        return self._forbidden[pair]

    def _never(self, chosen: Chosen) -> bool:
        if _clash(chosen, scales=len(self.values["scaling"]) > 1):
            return True
        try:
            self.probe(chosen)
        except BadCase:
            return True
        return False

    def blame(self, chosen: Chosen) -> Named | None:
        """Two values of a refused case that are refused together, if two are enough."""
        for pair in combinations(chosen.items(), 2):
            if self._suspect(pair) and not self.forbidden(pair) and not self._takes(dict(pair)):
                self._forbidden[pair] = True
                self.dropped.append(" with ".join(f"{n}: {v.name}" for n, v in pair))
                return pair
        return None

    def _suspect(self, pair: Named) -> bool:
        """Plain values are innocent, but for types and scaling: one may need the other."""
        if {name for name, _ in pair} == {"types", "scaling"}:
            return True
        return all(self.asked(name) and value != self.base[name] for name, value in pair)

    # -------------------------------------------------------------------------------------- cases

    def case(self, chosen: Chosen, rng: Random) -> Case:
        """A case of ordinary size with these values; raises `BadCase`."""
        full = {**self.base, **chosen}
        fields = _fields(full)
        size = fields.get("block_size", 16)
        seqs = seqs_of(Phase(full["phase"].name), Length(full["length"].name), size, rng)
        shared = fields.get("shared_blocks", 0) * size
        if shared:
            seqs = tuple((keys + shared, rows) for keys, rows in seqs)
        return self._case(full, seqs, rng)

    def _case(self, full: Chosen, seqs: tuple[tuple[int, int], ...], rng: Random) -> Case:
        fields = _fields(full)
        size, window = fields["block_size"], Window(full["window"].name)
        left = window_of(window, seqs, size, rng)
        relative = _SCALES[full["scale"].name]
        return Case(
            seqs=seqs,
            window_left=left,
            scale=None if relative is None else relative * fields["head_dim"] ** -0.5,
            mark=mark_of(seqs, size, left, rng),
            seed=rng.randrange(1000),
            **fields,
        )

    def plain(self, **changes: Any) -> Case:
        """The plainest case that is accepted, with fields changed; raises `BadCase`."""
        return replace(self.probe({}), **changes)


def _needed(chosen: Chosen) -> Chosen:
    """Nothing is evicted without a window."""
    evicts = "evicted" in chosen and dict(chosen["evicted"].fields)["evicted"]
    return {"window": Value(Window.BELOW)} if evicts else {}


def _fields(chosen: Chosen) -> Fields:
    return {field: option for value in chosen.values() for field, option in value.fields}


def _clash(chosen: Chosen, scales: bool) -> bool:
    """Combinations that are a case but not one worth having."""
    fields = _fields(chosen)
    quantised = fields.get("cache_dtype", "").startswith(("float8", "int8"))
    bare = fields.get("v_scale") is Scaling.NONE or fields.get("k_scale") is Scaling.NONE
    if quantised and bare and scales:
        return True
    if fields.get("shared_blocks", 0) and "phase" in chosen:
        return chosen["phase"].name not in (Phase.DECODE, Phase.MIXED)
    if fields.get("shared_blocks", 0) * fields.get("block_size", 1) > 64:
        return True
    if "evicted" in chosen and "window" in chosen and fields["evicted"]:
        return chosen["window"].name in (Window.NONE, Window.WIDE)
    return False


__all__ = ["FACTORS", "Chosen", "Offers", "Value"]
