"""Contract v1: what an implementation offers, and the data that pass between it and the harness.

Everything here is a `typing.Protocol` or plain data: an implementation inherits nothing and needs
to import only what it wants to name (an adapter in another interpreter imports nothing at all).
The required part of each protocol is small; every further method is tied to a `Capability`.
Operating and inspecting are separate: inspection (`COUNTERS`, `REFCOUNTS`, `WALK`, `PEEK`,
`EVENTS`) is optional, read-only and returns owned snapshots.

This module stands on the ground: it imports nothing of the project, and all may import it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

CONTRACT_VERSION = 1
TORN = -2
"""What `read` of STORAGE tells of a slot whose parts do not hold the same tag."""


# ------------------------------------------------------------------------------------------ errors


class OutOfBlocks(RuntimeError):
    """The pool cannot serve this operation; nothing that can be read has changed.

    The text starts with ``OOM``. An implementation need not import this class: any
    `RuntimeError` whose text starts with ``OOM`` is understood.
    """

    def __init__(self, detail: str = "no block is free or can be evicted") -> None:
        super().__init__(f"OOM: {detail}")


def is_out_of_blocks(error: BaseException) -> bool:
    """Whether `error` is the contract's way to say that the pool is exhausted."""
    return isinstance(error, RuntimeError) and str(error).startswith("OOM")


class ContractError(ValueError):
    """A registration or declaration that does not keep the contract; says what is wrong."""


# -------------------------------------------------------------------------------------- vocabulary


class Capability(StrEnum):
    """The closed list of what an implementation may offer beyond the required methods."""

    # of a CacheManager
    PREFIX_CACHE = "prefix_cache"
    SALT = "salt"
    ADAPTER = "adapter"
    SPANS = "spans"
    COMMIT = "commit"
    CHUNKED = "chunked"
    DRAFTS = "drafts"
    FORK = "fork"
    COPIES = "copies"
    TRUNCATE = "truncate"
    EVICT = "evict"
    RESET = "reset"
    DRAIN = "drain"
    QUERY = "query"
    PEEK = "peek"
    EVENTS = "events"
    GROUPS = "groups"
    STORAGE = "storage"
    VALIDATES_INPUT = "validates_input"
    COUNTERS = "counters"
    REFCOUNTS = "refcounts"
    WALK = "walk"
    ZEROES = "zeroes"
    PRIORITY = "priority"
    ATTEND = "attend"  # with CAUSAL and LSE from below
    # of a PrefixIndex (with EVICT, RESET, PEEK, WALK and COUNTERS from above)
    LOCK = "lock"
    # of a PagedAttention kernel
    CAUSAL = "causal"
    WINDOW = "window"
    SOFTCAP = "softcap"
    ALIBI = "alibi"
    SINKS = "sinks"
    SCALES = "scales"
    LSE = "lse"
    OUTPUT = "output"


class Outcome(StrEnum):
    """How a request left."""

    FINISHED = "finished"
    ABORTED = "aborted"
    PREEMPTED = "preempted"
    FAILED = "failed"


class Publish(StrEnum):
    """When KV becomes visible to other requests' look-ups."""

    COMMIT = "commit"
    RESERVATION = "reservation"
    RELEASE = "release"


class Order(StrEnum):
    """Which cached entry goes first when room is needed."""

    NONE = "none"
    LRU = "lru"
    LFU = "lfu"
    FIFO = "fifo"
    FILO = "filo"
    PRIORITY = "priority"


class Stamp(StrEnum):
    """What counts as an access of the replacement policy."""

    RESERVE = "reserve"
    """Slots are reserved: the request's whole table so far."""
    HIT = "hit"
    """A look-up counts tokens: the blocks of the hit."""
    COMMIT = "commit"
    """Tokens are published (whenever `publish` says): the prefix they belong to."""
    RELEASE = "release"
    """A block leaves a live table (release, truncation, copy-on-write, remap)."""
    LOOKUP = "lookup"
    """A look-up, also one whose admission is then refused."""


class Tie(StrEnum):
    """Which of the blocks stamped by one operation goes first."""

    TAIL_FIRST = "tail_first"
    """The last block of the prefix: what is left is still a prefix that can be hit."""
    HEAD_FIRST = "head_first"
    """The first block of the prefix; what is behind it stays, and cannot be hit until then."""
    ANY = "any"
    """Either: not to be relied on."""


class Granularity(StrEnum):
    """The unit in which eviction frees."""

    BLOCK = "block"
    """As many blocks as were asked for, and no more; of an index, rounded up to whole pages."""
    PAGE = "page"
    """The same, in the word of an index, whose blocks are pages."""
    LEAF = "leaf"
    """Whole leaves of a tree, so that the last may free more than is still wanted."""
    ALL = "all"
    """Everything that is idle, however little was asked for."""


class Dedup(StrEnum):
    """What becomes of a prefix that was computed twice."""

    KEEP = "keep"
    """Each request keeps the blocks that it has computed; a table entry never changes."""
    REMAP = "remap"
    """Once a block is committed, the table may show the one that holds the same KV already."""


class Refusal(StrEnum):
    """What a refused operation may do besides raising."""

    CLEAN = "clean"
    MAY_EVICT = "may_evict"
    MAY_DROP_WINDOW = "may_drop_window"


class Reclaim(StrEnum):
    """When a block without owner can be handed out again."""

    RELEASE = "release"
    RESET = "reset"


class Placement(StrEnum):
    """Whether a request's blocks may lie anywhere in the pool."""

    ANY = "any"
    CONTIGUOUS = "contiguous"


class EventSemantics(StrEnum):
    """How a mirror of the cache must count a store and a removal of the same entry."""

    MULTISET = "multiset"
    SET = "set"


class EmptyRow(StrEnum):
    """What a kernel writes for a row that may attend to no key."""

    ZERO = "zero"
    NAN = "nan"
    UNTOUCHED = "untouched"


class Tail(StrEnum):
    """What may stand in slots that a kernel must not read."""

    FINITE = "finite"
    ANY = "any"


class Determinism(StrEnum):
    """Up to which change of circumstances results stay equal to the bit."""

    NONE = "none"
    RUN = "run"
    BATCH = "batch"
    CHUNK = "chunk"
    PREFIX = "prefix"


class Rounding(StrEnum):
    """Where a kernel rounds to its storage type; see the attention budget.

    FP8 (products of operands in FP8) is refused when a kernel is built: it is not modelled yet.
    """

    P = "P"
    P_PART = "P+part"
    S = "S"
    EAGER = "eager"
    Q_PRE = "Qpre"
    TF32 = "tf32"
    FP8 = "fp8"
    IEEE = "ieee"


@dataclass(frozen=True)
class Declaration:
    """What an implementation says about itself; the harness convicts only against this.

    Every value that differs from the default is shown in the verdict table. None of them can
    excuse wrong KV, a leak or a crash.
    """

    capabilities: frozenset[Capability] = frozenset()
    """What is offered beyond the required methods; given as any iterable of names."""
    unit: int | str = "block_size"
    """Hit law: hits come in multiples of this many tokens."""
    reserve: int = 1
    """Hit law: trailing tokens of a prompt that are never counted as a hit."""
    drop: int = 0
    """Hit law: further units dropped from every hit (EAGLE-style drafting)."""
    publish: Publish = Publish.COMMIT
    publish_on: frozenset[Outcome] = frozenset(Outcome)
    """With publish=release: the outcomes after which a request's KV is published."""
    order: Order = Order.NONE
    stamps: frozenset[Stamp] = frozenset()
    """Which operations count as an access for `order`."""
    tie: Tie = Tie.TAIL_FIRST
    granularity: Granularity = Granularity.BLOCK
    dedup: Dedup = Dedup.KEEP
    refusal: Refusal = Refusal.CLEAN
    reclaim: Reclaim = Reclaim.RELEASE
    placement: Placement = Placement.ANY
    lookahead: int = 0
    """Blocks a table may hold beyond ceil(length / block_size)."""
    watermark: int = 0
    """Blocks that admission and reservation keep free; append does not."""
    reserved_ids: tuple[int, ...] = ()
    """Block ids that are no storage: null and padding blocks."""
    max_requests: int | None = None
    max_tokens: int | None = None
    """Longest request, in tokens."""
    events: EventSemantics = EventSemantics.MULTISET
    window: int | None = None
    """Of a manager without GROUPS: the keys that a query sees, its own included; None: all."""
    rounding: Rounding = Rounding.P
    empty_row: EmptyRow = EmptyRow.ZERO
    tail: Tail = Tail.FINITE
    steps: int = 1
    """Engines: steps within which some request must advance."""
    determinism: Determinism = Determinism.NONE

    def __post_init__(self) -> None:
        for name, kind in _ENUM_FIELDS.items():
            object.__setattr__(self, name, _member(kind, getattr(self, name), name))
        for name, kind in _SET_FIELDS.items():
            values = getattr(self, name)
            if isinstance(values, str):
                raise ContractError(f"{name}: expected a collection of names, got {values!r}")
            members = frozenset(_member(kind, value, name) for value in values)
            object.__setattr__(self, name, members)
        object.__setattr__(self, "reserved_ids", tuple(self.reserved_ids))
        self._check_numbers()
        if self.order is not Order.NONE and not self.stamps and self.order in _STAMPED:
            raise ContractError(f"order={self.order} needs stamps: which operations are accesses?")
        self._check_windows()

    def _check_windows(self) -> None:
        """What a window has passed is gone, so nothing may take a request back there."""
        if not self.windowed:
            return
        if self.has(Capability.GROUPS) and self.window is not None:
            raise ContractError("window: with GROUPS, each GroupSpec has a window of its own")
        if self.has(Capability.STORAGE):
            raise ContractError("STORAGE is not driven beside GROUPS or a window by this version")
        for capability in (Capability.TRUNCATE, Capability.DRAFTS):
            if self.has(capability):
                name = capability.value.upper()
                raise ContractError(f"{name} is not defined beside GROUPS or a window")

    def _check_numbers(self) -> None:
        if self.unit != "block_size" and (not isinstance(self.unit, int) or self.unit < 1):
            raise ContractError(f"unit: expected 'block_size' or an int >= 1, got {self.unit!r}")
        for name in ("reserve", "drop", "lookahead", "watermark"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 0:
                raise ContractError(f"{name}: expected an int >= 0, got {value!r}")
        for name in ("max_requests", "max_tokens", "window"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ContractError(f"{name}: expected None or an int >= 1, got {value!r}")
        if not isinstance(self.steps, int) or self.steps < 1:
            raise ContractError(f"steps: expected an int >= 1, got {self.steps!r}")

    def has(self, *capabilities: Capability) -> bool:
        """Whether all of `capabilities` are declared."""
        return self.capabilities.issuperset(capabilities)

    @property
    def windowed(self) -> bool:
        """Whether tables may be several, or hold only what a window shows."""
        return self.has(Capability.GROUPS) or self.window is not None

    def hit_unit(self, block_size: int) -> int:
        """Tokens per hit unit for a given block size."""
        return block_size if isinstance(self.unit, str) else self.unit


_STAMPED = (Order.LRU, Order.LFU, Order.PRIORITY)
_ENUM_FIELDS: dict[str, type[StrEnum]] = {
    "publish": Publish,
    "order": Order,
    "tie": Tie,
    "granularity": Granularity,
    "dedup": Dedup,
    "refusal": Refusal,
    "reclaim": Reclaim,
    "placement": Placement,
    "events": EventSemantics,
    "rounding": Rounding,
    "empty_row": EmptyRow,
    "tail": Tail,
    "determinism": Determinism,
}
_SET_FIELDS: dict[str, type[StrEnum]] = {
    "capabilities": Capability,
    "publish_on": Outcome,
    "stamps": Stamp,
}


def _member(kind: type[StrEnum], value: object, name: str) -> StrEnum:
    try:
        return kind(str(value))
    except ValueError:
        known = ", ".join(member.value for member in kind)
        raise ContractError(f"{name}: unknown value {value!r}; expected one of {known}") from None


# -------------------------------------------------------------------------------------------- keys


@dataclass(frozen=True)
class Span:
    """A multimodal placeholder: tokens [start, start + length) stand for one content."""

    start: int
    length: int
    content: str
    """Identity of the content; equal ids mean equal content, and hence equal length."""


@dataclass(frozen=True)
class CacheKey:
    """What KV depends on: equal keys up to a position mean equal KV up to it.

    The epoch (number of resets so far) belongs to the identity too, but is not written here.
    """

    tokens: Sequence[int]
    """Any sequence of non-negative ints."""
    salt: str | None = None
    """Tenant isolation; the generator never draws the empty string."""
    adapter: str | None = None
    """LoRA or other weight variant."""
    spans: tuple[Span, ...] = ()
    """Multimodal placeholders, in order, not overlapping."""


# --------------------------------------------------------------------------------------- snapshots


@dataclass(frozen=True)
class Counters:
    """Blocks of a CacheManager by state; the three add up to `num_blocks`."""

    free: int
    """Neither in use nor cached."""
    cached: int
    """Cached and idle: no live request holds it."""
    used: int
    """Held by a live request."""


@dataclass(frozen=True)
class IndexCounters:
    """Tokens of a PrefixIndex by state: ``evictable + protected == total``."""

    evictable: int
    protected: int
    total: int


class EventKind(StrEnum):
    """What happened to the cache's visible content."""

    STORED = "stored"
    REMOVED = "removed"
    CLEARED = "cleared"


@dataclass(frozen=True)
class CacheEvent:
    """One change of what look-ups can find.

    STORED carries `entries` that follow each other below `parent`; each stands for one hit unit
    of `tokens`. REMOVED carries `entries` only, CLEARED nothing. The first call of
    `take_events` may start the recording; it then describes what is resident at that moment.
    """

    kind: EventKind
    entries: tuple[Hashable, ...] = ()
    """Opaque ids, one per hit unit."""
    parent: Hashable | None = None
    """Entry before the first one; None at the start of a prompt."""
    tokens: tuple[int, ...] = ()
    salt: str | None = None
    adapter: str | None = None
    spans: tuple[Span, ...] = ()
    """Spans that touch `tokens`; starts are relative to the first of them, and may be negative."""


@dataclass(frozen=True)
class GroupSpec:
    """One KV cache group: layers that share a block table.

    The query at position q sees the keys of all positions up to q; with a `window`, of the last
    `window` of them, its own included.
    """

    name: str
    window: int | None = None
    """Keys that a query sees; None: all of them."""
    block_size: int | None = None
    """Tokens per block; None: the manager's. Others are not driven by this version."""


@dataclass(frozen=True)
class Node:
    """Snapshot of one node of a prefix tree."""

    id: Hashable
    parent: Hashable | None
    tokens: tuple[int, ...]
    values: tuple[int, ...]
    locks: int = 0


@dataclass(frozen=True)
class Match:
    """Answer of a PrefixIndex: matched tokens, their values, and a handle to lock them by."""

    length: int
    values: Sequence[int]
    handle: Any = None


# --------------------------------------------------------------------------------------- protocols


@runtime_checkable
class CacheManager(Protocol):
    """Block pool, block tables and, where there is one, the prefix cache.

    What a scheduler talks to. `OutOfBlocks` comes from `admit`, `reserve`, `append` and `fork`,
    also when the request could never fit, and leaves every live request as it was.

    By capability, beside the four methods below:

    ===========  ==================================================================================
    COMMIT       ``commit(request, num_tokens)``: the KV of the first `num_tokens` is now written;
                 cumulative, committed < num_tokens <= length, else `ValueError`; what was hit
                 counts as committed from the start
    CHUNKED      ``begin(request, key) -> int``: look-up; pins what it counts, and from then on
                 ``block_table`` shows the blocks of the hit. ``reserve(request, num_tokens) ->
                 int``: slots for the next `num_tokens` of the prompt; returns how many leading
                 tokens now have slots. `append` is legal once the whole prompt has them
    DRAFTS       ``append(request, tokens, drafts=n)``: the last `n` are unverified;
                 ``accept(request, n)`` keeps the first `n` of them and drops the rest. Until then
                 neither `append` nor `fork` is legal, and no draft is published
    FORK         ``fork(parent, children)``: all children or OutOfBlocks; the parent is committed
    COPIES       ``take_copies() -> [(source, destination)]`` of whole blocks, drained after every
                 successful operation, done as if all sources were read before any is written
    TRUNCATE     ``truncate(request, num_tokens)``: 1 <= num_tokens <= length
    EVICT        ``evict(num_blocks) -> int``: number of blocks freed
    RESET        ``reset()``: forgets everything cached; `ValueError` while requests are live,
                 and only then
    DRAIN        ``drain()``: finishes what was deferred
    QUERY        ``can_admit(key) -> bool``: a yes binds the next operation, if it admits that key
    PEEK         ``peek(key) -> int``: what `admit` would return, without being an access
    EVENTS       ``take_events() -> list[CacheEvent]``
    GROUPS       ``groups``, a sequence of `GroupSpec`; ``block_table(request, group)`` takes the
                 name of one. The factory is called with ``groups=`` and may insist on others
    STORAGE      ``write(group, slots, tags)``, ``read(group, slots) -> tags``: see below
    COUNTERS     ``counters() -> Counters``
    REFCOUNTS    ``refcounts() -> Mapping[int, int]``: for each block in use, the number of live
                 requests whose table holds it
    WALK         ``walk() -> list[Node]``
    ZEROES       ``take_zeroes() -> [block]``: to be cleared by the device before use
    PRIORITY     ``admit(..., priority=0)``, ``begin(..., priority=0)``
    ATTEND       ``attend(requests, batch) -> AttentionResult``: attention over the live `requests`,
                 through the manager's own table; with CAUSAL and LSE as a kernel claims them
    ===========  ==================================================================================

    With GROUPS a request has a table in each group, over one pool: a block belongs to one group at
    a time, and counts (`counters`, `evict`, `num_blocks`) are blocks of all groups together. A hit
    is one number for all of them, resident in each. Where a group has a window of W tokens, or the
    manager declares a `window` and no GROUPS:

    * with the KV of n tokens written, the next query stands at position n and sees ``low = max(0, n
      - W + 1)`` onwards. Blocks that end at or before `low` have been *passed*: their entries may
      become null, an id in `reserved_ids`, in the next operation on the request (or in the `commit`
      that writes the n tokens). An entry that is not null shows what it showed, held or not; what
      a null entry showed, the request holds no longer;
    * all positions from `low` on have slots, those that are still to be written too; while they are
      reserved, n is what was written before (the hit, when a request is admitted);
    * a hit of h tokens is resident from ``max(0, h - W + 1)`` on; entries before that may be null;
    * a refused `append` or `reserve` may null what has been passed, if ``refusal=may_drop_window``;
    * TRUNCATE and DRAFTS are not defined: what has been passed cannot come back.

    *STORAGE* is for an engine that owns its tensors: what is judged is then what they hold.
    Slots are ``block * block_size + offset``, blocks as the engine numbers them; `group` is 0.
    ``write`` puts ``tags[i]``, an int from -1 to 2**31 - 1, into everything that the engine keeps
    for ``slots[i]``: the keys and the values of every layer, as many elements as an int of 32 bits
    takes. ``read`` returns what `write` was given, or `TORN` for a slot whose parts do not all hold
    the same. What an operation copies, a fork or a copy on write, the engine has copied when the
    operation returns, by its own code; `take_copies` is not needed then, and where it is there, it
    tells those who keep KV elsewhere. Not beside GROUPS or a
    window yet.

    *ATTEND* is for a manager whose table no kernel but its own can read. Sequence b of `batch` is
    ``requests[b]``, and no request comes twice. Key and value cache hold what was written through
    ``block_table``, block id for row: ids lie below `num_blocks` plus the number of `reserved_ids`.
    Everything of `batch` may be used but ``batch.block_table``, which the manager is to know
    better; `rounding`, `empty_row`, `tail` and `determinism` are declared as a kernel does. The
    result is judged as a kernel's, and so is a refusal. Nothing but the result may be written.
    """

    num_blocks: int
    """Usable blocks; null and padding blocks are not counted."""
    block_size: int
    """Tokens per block; 1 for a token-granular cache."""

    def admit(self, request: str, key: CacheKey) -> int:
        """Slots for the whole prompt; returns the leading tokens already resident."""
        ...

    def append(self, request: str, tokens: Sequence[int]) -> None:
        """Slots for further tokens."""
        ...

    def block_table(self, request: str) -> Sequence[int]:
        """Physical block of logical block 0, 1, ..."""
        ...

    def release(self, request: str, outcome: Outcome = Outcome.FINISHED) -> None:
        """The request leaves; its id may be used again."""
        ...


@runtime_checkable
class PrefixIndex(Protocol):
    """The prefix tree by itself: token values in, token values out.

    By capability: LOCK ``lock(handle)``, ``unlock(handle)``; EVICT ``evict(num_tokens)`` returns
    the values freed; RESET; PEEK; WALK; COUNTERS ``counters() -> IndexCounters``. A handle is
    valid until the next mutation unless locked, then `KeyError`.
    """

    def match(self, key: CacheKey) -> Match:
        """Longest resident prefix; an access."""
        ...

    def insert(self, key: CacheKey, values: Sequence[int]) -> int:
        """Leading tokens that were there already; an access; never evicts, may OutOfBlocks."""
        ...


@dataclass(frozen=True)
class AttentionBatch:
    """Packed ragged batch over a paged KV cache, and what is to be computed of it.

    Sequence b has ``seq_lens[b]`` keys; position p of it is in slot ``p % block_size`` of block
    ``block_table[b, p // block_size]``. Its queries are rows ``query_start[b] : query_start[b +
    1]``, and the last of them stands at position ``seq_lens[b] - 1`` (bottom-right alignment).
    Slots at or past the length, and table columns past the last block needed, are not to be read.
    Tensors are torch's, on one device, and none but `output` and `lse` may be written.
    """

    query: Any
    """``[num_tokens, num_q_heads, head_dim]``, packed over the sequences."""
    key_cache: Any
    """``[physical_blocks, block_size, num_kv_heads, head_dim]``, of any strides."""
    value_cache: Any
    """``[physical_blocks, block_size, num_kv_heads, head_dim_v]``; may be a view of the keys."""
    block_table: Any
    """``int32 [num_seqs, max_blocks]``."""
    seq_lens: Any
    """``int32 [num_seqs]``: keys per sequence, those of its queries included."""
    query_start: Any
    """``int32 [num_seqs + 1]``: first row of each sequence, then the number of rows."""
    scale: float | None = None
    """Factor of the logits; None stands for ``head_dim ** -0.5``."""
    causal: bool = True
    """Whether a query at position p sees the keys at 0..p only, or all of its sequence."""
    window_left: int | None = None
    """Keys before the query's own position that stay visible; None: all of them."""
    softcap: float | None = None
    """Logits become ``softcap * tanh(logit / softcap)``, after scale, before bias and mask."""
    alibi_slopes: Any = None
    """``float32 [num_q_heads]``: ``slope * (key position - query position)`` is added."""
    sinks: Any = None
    """``float32 [num_q_heads]``: a further logit per head, of a key whose value is 0."""
    k_scale: Any = None
    """What a stored key is multiplied by: a float or a scalar tensor, or a float32 tensor
    ``[num_kv_heads]`` or ``[physical_blocks, block_size, num_kv_heads]``."""
    v_scale: Any = None
    """The same for values."""
    output: Any = None
    """With OUTPUT: where the output goes; every row of the batch is written, nothing else."""
    lse: Any = None
    """With OUTPUT and LSE: where the LSE goes."""


@dataclass(frozen=True)
class AttentionResult:
    """What a kernel returns."""

    output: Any
    """``[num_tokens, num_q_heads, head_dim_v]`` in the query's type."""
    lse: Any = None
    """With LSE: natural-log sum of the exponentials of a row's logits, its sink included,
    ``float32 [num_tokens, num_q_heads]``."""


@runtime_checkable
class PagedAttention(Protocol):
    """An attention kernel that reads K and V through block tables.

    What it does not compute it refuses with `ValueError` or `NotImplementedError`. By capability:
    CAUSAL ``causal=True``, WINDOW, SOFTCAP, ALIBI, SINKS, SCALES, LSE, OUTPUT (writes into the
    batch's buffers and returns them). Optional attributes: ``device``, the torch device that it
    wants its tensors on ("cpu" where there is none); ``time_limit``, seconds that one call may take
    before it counts as hanging (60 where there is none); ``paths``, how often each of its execution
    paths was taken, by name, so that one that never was is reported.
    """

    def __call__(self, batch: AttentionBatch) -> AttentionResult: ...


@dataclass(frozen=True)
class GenerationRequest:
    """One request to a whole server, as token ids."""

    request: str
    prompt: Sequence[int]
    max_tokens: int
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TokenEvent:
    """One streamed chunk; `tokens` may be empty, `time` is monotonic seconds."""

    request: str
    tokens: tuple[int, ...]
    time: float
    finish_reason: str | None = None
    cached_tokens: int | None = None
    logprobs: tuple[float, ...] | None = None
    """Natural, one for each of `tokens`; None where the engine does not tell them."""


@runtime_checkable
class Engine(Protocol):
    """A whole server, in process or over HTTP."""

    def stream(self, request: GenerationRequest) -> AsyncIterator[TokenEvent]: ...


METHODS: Mapping[type, tuple[str, ...]] = {
    CacheManager: ("admit", "append", "block_table", "release"),
    PrefixIndex: ("match", "insert"),
    PagedAttention: ("__call__",),
    Engine: ("stream",),
}
"""The required methods of each kind."""

ATTRIBUTES: Mapping[type, tuple[str, ...]] = {CacheManager: ("num_blocks", "block_size")}
"""The required attributes, ints of at least 1."""

CAPABILITY_METHODS: Mapping[type, Mapping[Capability, tuple[str, ...]]] = {
    CacheManager: {
        Capability.PREFIX_CACHE: (),
        Capability.SALT: (),
        Capability.ADAPTER: (),
        Capability.SPANS: (),
        Capability.COMMIT: ("commit",),
        Capability.CHUNKED: ("begin", "reserve"),
        Capability.DRAFTS: ("accept",),
        Capability.FORK: ("fork",),
        Capability.COPIES: ("take_copies",),
        Capability.TRUNCATE: ("truncate",),
        Capability.EVICT: ("evict",),
        Capability.RESET: ("reset",),
        Capability.DRAIN: ("drain",),
        Capability.QUERY: ("can_admit",),
        Capability.PEEK: ("peek",),
        Capability.EVENTS: ("take_events",),
        Capability.GROUPS: (),
        Capability.STORAGE: ("write", "read"),
        Capability.VALIDATES_INPUT: (),
        Capability.COUNTERS: ("counters",),
        Capability.REFCOUNTS: ("refcounts",),
        Capability.WALK: ("walk",),
        Capability.ZEROES: ("take_zeroes",),
        Capability.PRIORITY: (),
        Capability.ATTEND: ("attend",),
        Capability.CAUSAL: (),
        Capability.LSE: (),
    },
    PrefixIndex: {
        Capability.LOCK: ("lock", "unlock"),
        Capability.EVICT: ("evict",),
        Capability.RESET: ("reset",),
        Capability.PEEK: ("peek",),
        Capability.WALK: ("walk",),
        Capability.COUNTERS: ("counters",),
        Capability.SALT: (),
        Capability.ADAPTER: (),
        Capability.SPANS: (),
        Capability.VALIDATES_INPUT: (),
    },
    PagedAttention: {
        Capability.CAUSAL: (),
        Capability.WINDOW: (),
        Capability.SOFTCAP: (),
        Capability.ALIBI: (),
        Capability.SINKS: (),
        Capability.SCALES: (),
        Capability.LSE: (),
        Capability.OUTPUT: (),
        Capability.VALIDATES_INPUT: (),
    },
    Engine: {
        Capability.PREFIX_CACHE: (),
        Capability.SALT: (),
        Capability.ADAPTER: (),
        Capability.PRIORITY: (),
    },
}
"""Which capabilities a kind may declare, and the methods each of them needs."""
