"""vLLM's manager under speculative decoding: drafts have slots, but no key until accepted.

A step reserves slots for the token that is certain and for its drafts; vLLM caches no block beyond
``request.num_tokens``, which counts verified tokens alone. What is rejected is taken off
``num_computed_tokens``, and its slots are written again by the next step: blocks that only
rejected drafts had are kept by the request, so a table may be longer than its tokens
(``lookahead``). A server drafts a few tokens at a time; here as many as two blocks hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvassay.harness.contract import CacheManager, Capability
from kvassay.harness.registry import implementation
from kvassay.impls.engines.vllm import DECLARATION, INSTALL, PACKAGE, VllmManager


@implementation(
    "vllm-drafts",
    kind=CacheManager,
    declaration=replace(
        DECLARATION, capabilities=DECLARATION.capabilities | {Capability.DRAFTS}, lookahead=2
    ),
    package=PACKAGE,
    install=INSTALL,
)
class DraftingVllmManager(VllmManager):
    """`vllm`, with drafts that are accepted in part."""

    stages = None  # timed as `vllm`

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self._drafts: dict[str, list[int]] = {}

    def append(self, request: str, tokens: Sequence[int], drafts: int = 0) -> None:
        live = self._requests[request]
        self._reserve(live, len(tokens))
        verified = len(tokens) - drafts
        live.append_output_token_ids(list(tokens[:verified]))
        self._drafts[request] = list(tokens[verified:])
        self._publish(live, live.num_tokens)
        # As after the step: computed, drafts and all.
        live.num_computed_tokens += drafts

    def accept(self, request: str, num_tokens: int) -> None:
        live, drafts = self._requests[request], self._drafts.pop(request)
        live.append_output_token_ids(drafts[:num_tokens])
        self._publish(live, live.num_tokens)
