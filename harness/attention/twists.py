"""Ways to read an attention problem wrongly, on purpose.

Each twist is the oracle with one mistake. They serve twice: a kernel made from a twist is the
control that a check must convict, and when a kernel is wrong, the twist whose result it agrees with
is the best explanation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvassay.harness.attention.wrong import Anomaly
from kvassay.harness.contract import AttentionBatch
from kvassay.reference import attention as oracle
from kvassay.reference.attention import Attended, Sequence

Apply = Callable[[AttentionBatch], Attended]


@dataclass(frozen=True)
class Twist:
    """One mistake."""

    name: str
    words: str
    """As in "it looks as if ..."."""
    invariant: str
    anomaly: Anomaly
    apply: Apply


def _on_batch(change: Callable[[AttentionBatch], AttentionBatch]) -> Apply:
    return lambda batch: oracle.attend(change(batch))


def _on_sequences(change: Callable[[AttentionBatch, Sequence], Sequence]) -> Apply:
    def apply(batch: AttentionBatch) -> Attended:
        right = oracle.attend(batch)
        output, lse = right.output.clone(), right.lse.clone()
        for sequence in oracle.sequences(batch):
            output[sequence.rows], lse[sequence.rows] = oracle.softmax(change(batch, sequence))
        return Attended(output, lse)

    return apply


def _hiding(hidden: Callable[[AttentionBatch, Sequence], Tensor]) -> Apply:
    """Keys are left out: `hidden` says which, ``bool [q, n]``."""

    def change(batch: AttentionBatch, sequence: Sequence) -> Sequence:
        logits = sequence.logits.masked_fill(hidden(batch, sequence), -torch.inf)
        return replace(sequence, logits=logits)

    return _on_sequences(change)


def _last_key(batch: AttentionBatch, sequence: Sequence) -> Tensor:
    n = sequence.visible.shape[1]
    last = torch.where(sequence.visible, torch.arange(n), -1).amax(1, keepdim=True)
    return torch.eq(torch.arange(n), last)


def _first_key(batch: AttentionBatch, sequence: Sequence) -> Tensor:
    n = sequence.visible.shape[1]
    first = torch.where(sequence.visible, torch.arange(n), n).amin(1, keepdim=True)
    return torch.eq(torch.arange(n), first)


def _middle_block(batch: AttentionBatch, sequence: Sequence) -> Tensor:
    n, size = sequence.visible.shape[1], batch.key_cache.shape[1]
    middle = (n // 2) // size
    return (torch.arange(n) // size == middle).expand_as(sequence.visible)


def _last_part(batch: AttentionBatch, sequence: Sequence) -> Tensor:
    n = sequence.visible.shape[1]
    return (torch.arange(n) >= n - max(1, n // 8)).expand_as(sequence.visible)


def _longer(batch: AttentionBatch) -> AttentionBatch:
    """Every row sees one key more: of the next slot, where the table still covers it."""
    size = batch.key_cache.shape[1]
    room = batch.seq_lens % size != 0
    return replace(batch, seq_lens=batch.seq_lens + room.to(batch.seq_lens.dtype))


def _rolled_heads(cache: Tensor) -> Tensor:
    codes = cache.view(torch.int8) if cache.element_size() == 1 else cache
    return codes.roll(1, dims=2).view(cache.dtype)


def _swapped_blocks(batch: AttentionBatch) -> AttentionBatch:
    """The block in the middle of every sequence is read from its table column less one."""
    table, size = batch.block_table.clone(), batch.key_cache.shape[1]
    for index, length in enumerate(batch.seq_lens.tolist()):
        middle = (length // 2) // size
        if middle >= 1:
            table[index, middle] = table[index, middle - 1]
    return replace(batch, block_table=table)


def _top_left(batch: AttentionBatch) -> Attended:
    """Causal from the first key on, whatever the context."""
    right = oracle.attend(batch)
    output, lse = right.output.clone(), right.lse.clone()
    for sequence in oracle.sequences(replace(batch, causal=False)):
        q, n = sequence.visible.shape
        late = torch.arange(n)[None, :] > torch.arange(q)[:, None]
        masked = replace(sequence, logits=sequence.logits.masked_fill(late, -torch.inf))
        output[sequence.rows], lse[sequence.rows] = oracle.softmax(masked)
    return Attended(output, lse)


def _base_two(batch: AttentionBatch) -> Attended:
    right = oracle.attend(batch)
    return Attended(right.output, right.lse / torch.log(torch.tensor(2.0)).item())


def _gain(factor: float) -> Apply:
    def apply(batch: AttentionBatch) -> Attended:
        right = oracle.attend(batch)
        return Attended(right.output * factor, right.lse)

    return apply


def _window(by: int) -> Callable[[AttentionBatch], AttentionBatch]:
    def change(batch: AttentionBatch) -> AttentionBatch:
        if batch.window_left is None:
            return batch
        return replace(batch, window_left=max(0, batch.window_left + by))

    return change


def _scaled_twice(batch: AttentionBatch) -> AttentionBatch:
    dim = batch.query.shape[2]
    scale = dim**-0.5 if batch.scale is None else batch.scale
    return replace(batch, scale=scale * scale)


def _per_head_mean(scale: object) -> object:
    """A scale per head or token taken as one for all."""
    if isinstance(scale, Tensor) and scale.dim() == 1:
        return float(scale[0])
    return None


def _twist(
    name: str, words: str, invariant: str, anomaly: Anomaly, apply: Apply
) -> tuple[str, Twist]:
    return name, Twist(name, words, invariant, anomaly, apply)


def _without(field: str) -> Apply:
    return _on_batch(lambda batch: replace(batch, **{field: None}))  # type: ignore[arg-type]


TWISTS: dict[str, Twist] = dict(
    (
        _twist(
            "last-key",
            "the last visible key of each row is left out",
            "K1",
            Anomaly.OUTPUT,
            _hiding(_last_key),
        ),
        _twist(
            "first-key",
            "the first visible key of each row is left out",
            "K1",
            Anomaly.OUTPUT,
            _hiding(_first_key),
        ),
        _twist(
            "extra-key", "each row sees one key too many", "K5", Anomaly.CAUSAL, _on_batch(_longer)
        ),
        _twist(
            "block-dropped",
            "the block in the middle is left out",
            "K1",
            Anomaly.OUTPUT,
            _hiding(_middle_block),
        ),
        _twist(
            "block-repeated",
            "the block in the middle is read as the one before it",
            "K8",
            Anomaly.ADDRESS,
            _on_batch(_swapped_blocks),
        ),
        _twist(
            "last-part",
            "the last eighth of the keys is left out",
            "K4",
            Anomaly.PARTITION,
            _hiding(_last_part),
        ),
        _twist(
            "top-left", "the causal mask starts at the first key", "K5", Anomaly.CAUSAL, _top_left
        ),
        _twist(
            "not-causal",
            "there is no causal mask",
            "K5",
            Anomaly.CAUSAL,
            _on_batch(lambda batch: replace(batch, causal=False)),
        ),
        _twist(
            "wide-window",
            "the window is one key too wide",
            "K6",
            Anomaly.WINDOW,
            _on_batch(_window(1)),
        ),
        _twist(
            "narrow-window",
            "the window is one key too narrow",
            "K6",
            Anomaly.WINDOW,
            _on_batch(_window(-1)),
        ),
        _twist("no-window", "there is no window", "K6", Anomaly.WINDOW, _without("window_left")),
        _twist(
            "next-head",
            "each head reads the KV of its neighbour",
            "K7",
            Anomaly.HEAD,
            _on_batch(
                lambda batch: replace(
                    batch,
                    key_cache=_rolled_heads(batch.key_cache),
                    value_cache=_rolled_heads(batch.value_cache),
                )
            ),
        ),
        _twist(
            "next-head-k",
            "each head reads the keys of its neighbour",
            "K7",
            Anomaly.HEAD,
            _on_batch(lambda batch: replace(batch, key_cache=_rolled_heads(batch.key_cache))),
        ),
        _twist(
            "no-scale",
            "the logits are not scaled",
            "K9",
            Anomaly.SCORE,
            _on_batch(lambda batch: replace(batch, scale=1.0)),
        ),
        _twist(
            "scale-twice",
            "the logits are scaled twice",
            "K9",
            Anomaly.SCORE,
            _on_batch(_scaled_twice),
        ),
        _twist(
            "default-scale", "the scale given is ignored", "K9", Anomaly.SCORE, _without("scale")
        ),
        _twist("no-softcap", "there is no soft cap", "K9", Anomaly.SCORE, _without("softcap")),
        _twist("no-alibi", "there is no ALiBi", "K9", Anomaly.SCORE, _without("alibi_slopes")),
        _twist("no-sinks", "there are no sinks", "K9", Anomaly.SCORE, _without("sinks")),
        _twist(
            "no-k-scale", "the keys' scale is missing", "K10", Anomaly.SCALE, _without("k_scale")
        ),
        _twist(
            "no-v-scale", "the values' scale is missing", "K10", Anomaly.SCALE, _without("v_scale")
        ),
        _twist(
            "k-scale-first-head",
            "the first head's scale is used for all keys",
            "K10",
            Anomaly.SCALE,
            _on_batch(lambda batch: replace(batch, k_scale=_per_head_mean(batch.k_scale))),
        ),
        _twist(
            "v-scale-first-head",
            "the first head's scale is used for all values",
            "K10",
            Anomaly.SCALE,
            _on_batch(lambda batch: replace(batch, v_scale=_per_head_mean(batch.v_scale))),
        ),
        _twist("gain", "the output is 1 % too large", "K10", Anomaly.SCALE, _gain(1.01)),
        _twist("base-2", "the LSE has base 2", "K1", Anomaly.LSE, _base_two),
    )
)
"""All twists by name."""
