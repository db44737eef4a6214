"""A device that computes: any Hugging Face causal language model, with a registered kernel in it.

The model's own attention is replaced through the library's `AttentionInterface`; everything else of
it runs as it is, on the tokens of all chunks of a step packed into one row, each with its position.
In every layer all keys and values are written into the harness's memory first, then the kernel
attends through the manager's block tables. transformers is imported when a model is made.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from kvassay.harness.contract import (
    AttentionBatch,
    Capability,
    ContractError,
    Declaration,
    PagedAttention,
)
from kvassay.harness.rig.device import Work
from kvassay.harness.rig.plan import Transfer
from kvassay.harness.rig.store import Slots, Store

NAME = "kvassay"
"""What the library knows the attention by."""
SMALL: Mapping[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    "initializer_range": 0.15,
}
"""A small Llama; weights this large make the logits react to every token of the context, which
those of the default size do not."""
_STEP: ContextVar[_Step] = ContextVar("step")


def random_llama(seed: int = 0, **changed: Any) -> Any:
    """A Llama with random weights, `SMALL` but for what is changed; nothing is downloaded."""
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(LlamaConfig(**{**SMALL, **changed})).eval()


def load(path: str, dtype: torch.dtype = torch.float32) -> Any:
    """A causal language model from a folder on this machine."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype, local_files_only=True).eval()


@dataclass(frozen=True)
class Logits:
    """Scores behind one token: ``[vocabulary]``."""

    values: Tensor

    def best(self, count: int) -> list[tuple[float, int]]:
        """Log-probabilities in float64; of equal ones the lower token first."""
        values = torch.log_softmax(self.values.double(), dim=0)
        found = torch.sort(values, descending=True, stable=True)
        pairs = zip(found.values[:count].tolist(), found.indices[:count].tolist(), strict=True)
        return list(pairs)


class LanguageModel:
    """A model over a memory of its own, attending with a kernel."""

    def __init__(
        self,
        model: Any,
        kernel: PagedAttention,
        declaration: Declaration,
        num_blocks: int,
        block_size: int,
    ) -> None:
        """Raises `ContractError` for a kernel that is not causal.

        The model's attention is exchanged for good; several devices may share it, not at a time.
        """
        if not declaration.has(Capability.CAUSAL):
            raise ContractError("the rig needs a kernel with CAUSAL")
        self._kernel = kernel
        self._declaration = declaration
        self._where = str(getattr(kernel, "device", "cpu"))
        self._model = _attending(model).to(self._where)
        self._picks = "logits_to_keep" in inspect.signature(model.forward).parameters
        self.store = Store(num_blocks, block_size, declaration.tail, self._where)

    @torch.no_grad()
    def run(self, transfers: Sequence[Transfer], work: Sequence[Work]) -> Mapping[str, Logits]:
        """One pass over all tokens of a step."""
        self.store.move(transfers)
        if not work:
            return {}
        token = _STEP.set(_Step(self.store, self._kernel, self._declaration, work, self._where))
        try:
            logits = self._logits(work)
        finally:
            _STEP.reset(token)
        names = [one.name for one in work if one.samples]
        return {name: Logits(row) for name, row in zip(names, logits, strict=True)}

    def _logits(self, work: Sequence[Work]) -> Tensor:
        """Behind the last token of everything that samples: ``[chunks, vocabulary]``."""
        tokens = [token for one in work for token in one.tokens]
        positions = [position for one in work for position in one.positions]
        ends = accumulate(len(one.tokens) for one in work)
        wanted = [end - 1 for end, one in zip(ends, work, strict=True) if one.samples]
        last = torch.tensor(wanted, dtype=torch.long, device=self._where)
        picked = {"logits_to_keep": last} if self._picks else {}
        logits: Tensor = self._model(
            input_ids=torch.tensor([tokens], device=self._where),
            position_ids=torch.tensor([positions], device=self._where),
            use_cache=False,
            **picked,
        ).logits[0]
        return logits if self._picks else logits[last]


class _Step:
    """What every layer's attention needs to know of a step."""

    def __init__(
        self,
        store: Store,
        kernel: PagedAttention,
        declaration: Declaration,
        work: Sequence[Work],
        device: str,
    ) -> None:
        self._store = store
        self._kernel = kernel
        self._declaration = declaration
        self._slots: Slots = store.slots((one.table, one.start, one.stop) for one in work)
        self._table = store.tables([one.table for one in work])
        starts = [0, *accumulate(len(one.tokens) for one in work)]
        self._starts = torch.tensor(starts, dtype=torch.int32, device=device)
        lengths = [one.stop for one in work]
        self._lengths = torch.tensor(lengths, dtype=torch.int32, device=device)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, asked: Mapping[str, Any]
    ) -> Tensor:
        """Write, then attend: ``[num_tokens, num_q_heads, head_dim]``."""
        for name, capability in (
            ("window_left", Capability.WINDOW),
            ("softcap", Capability.SOFTCAP),
            ("sinks", Capability.SINKS),
        ):
            if asked[name] is not None and not self._declaration.has(capability):
                raise ContractError(f"the model asks for {name}: a kernel needs {capability.name}")
        keys, values = self._store.write(layer, self._slots, key, value)
        batch = AttentionBatch(
            query=query.contiguous(),
            key_cache=keys,
            value_cache=values,
            block_table=self._table,
            seq_lens=self._lengths,
            query_start=self._starts,
            **asked,
        )
        output: Tensor = self._kernel(batch).output
        return output


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: object, **asked: Any
) -> tuple[Tensor, None]:
    """What the library calls in every layer, with tensors ``[1, heads, num_tokens, head_dim]``."""
    if not getattr(module, "is_causal", True):
        raise ContractError("the rig runs models with causal attention only")
    window = asked.get("sliding_window")
    wanted = {
        "scale": asked.get("scaling"),
        "window_left": None if window is None else window - 1,
        "softcap": asked.get("softcap"),
        "sinks": asked.get("s_aux"),
    }
    q, k, v = (each[0].transpose(0, 1) for each in (query, key, value))
    return _STEP.get().attend(module.layer_idx, q, k, v, wanted)[None], None


def _attending(model: Any) -> Any:
    """The model, with the rig's attention; the library makes no mask for what it does not know."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, _attention)
    model.set_attn_implementation(NAME)
    return model
