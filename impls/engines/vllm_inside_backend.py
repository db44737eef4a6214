"""vLLM's CPU attention backend, with a place for somebody who looks on.

vLLM imports this module by its name when it builds an engine (`vllm_inside` registers it through
``register_backend``); nothing else does. A layer that nobody looks at does what the stock one does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend, CPUAttentionBackendImpl


class WatchedImpl(CPUAttentionBackendImpl):
    """Tells of each write and, right before it reads, of each read."""

    wrote: Callable[[torch.Tensor], None] | None = None
    """Hears the slot mapping by which new KV was written."""
    reads: Callable[[Any], None] | None = None
    """Hears the metadata by which attention is about to read."""

    def do_kv_cache_update(
        self,
        layer: torch.nn.Module,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """As the stock one."""
        super().do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)
        if self.wrote is not None:
            self.wrote(slot_mapping)

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Any,
        *output: Any,
        **named: Any,
    ) -> torch.Tensor:
        """As the stock one."""
        if self.reads is not None and attn_metadata is not None:
            self.reads(attn_metadata)
        return super().forward(layer, query, key, value, kv_cache, attn_metadata, *output, **named)


class WatchedBackend(CPUAttentionBackend):
    """The stock backend with `WatchedImpl`."""

    @staticmethod
    def get_impl_cls() -> type[WatchedImpl]:
        """What computes."""
        return WatchedImpl
