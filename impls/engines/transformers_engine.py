"""transformers' continuous batching as a whole, in this process: token ids in, tokens out.

The library's `ContinuousBatchingManager` has a thread of its own that schedules and computes. One
of ours reads its results as they come, and hands each to whoever asked. Hits are what its cache
found when it looked a prompt up, preemptions the requests from which it took the blocks again.
Importing this file does not import transformers.
"""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kvassay.harness.contract import (
    Capability,
    Declaration,
    Engine,
    GenerationRequest,
    TokenEvent,
)
from kvassay.harness.registry import implementation
from kvassay.impls.engines.mailbox import Item, Mailbox
from kvassay.impls.engines.transformers_attention import INSTALL, PACKAGE

NO_END = -1
"""A token that no model generates: outputs go on to their last token."""
Deliver = Callable[[Item], None]


@lru_cache(maxsize=1)
def _library() -> SimpleNamespace:
    """Its own names, imported once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)
    return SimpleNamespace(
        AutoModelForCausalLM=AutoModelForCausalLM,
        ContinuousBatchingConfig=ContinuousBatchingConfig,
        GenerationConfig=GenerationConfig,
        torch=torch,
    )


@implementation(
    "transformers-engine",
    kind=Engine,
    declaration=Declaration(capabilities=frozenset({Capability.PREFIX_CACHE})),
    package=PACKAGE,
    install=INSTALL,
)
class TransformersEngine:
    """A manager and the thread that reads its results.

    `model` is a folder; `num_blocks` blocks of `block_size` tokens (the library calls them pages);
    `step_tokens` is the most that a step computes. Further arguments are those of the library's
    ``ContinuousBatchingConfig``.
    """

    def __init__(
        self,
        *,
        model: Path,
        num_blocks: int = 128,
        block_size: int = 32,
        step_tokens: int | None = None,
        **arguments: Any,
    ) -> None:
        library = _library()
        self.block_size = block_size
        self._hits: dict[str, int] = {}
        self._preempted = 0
        self._waiting: dict[str, tuple[Deliver, int]] = {}
        """By name: whom to tell, and how many tokens were told."""
        self._closed = False
        loaded = library.AutoModelForCausalLM.from_pretrained(
            model, dtype=library.torch.float32, local_files_only=True
        ).eval()
        self._manager = loaded.init_continuous_batching(
            generation_config=library.GenerationConfig(
                do_sample=False, eos_token_id=NO_END, pad_token_id=0
            ),
            continuous_batching_config=library.ContinuousBatchingConfig(
                page_size=block_size,
                num_blocks=num_blocks,
                max_batch_tokens=step_tokens or 512,
                use_cuda_graph=False,
                return_logprobs=True,
                **arguments,
            ),
        )
        self._manager.start()
        self._watch()
        self._reader = threading.Thread(target=self._read, name="transformers-engine", daemon=True)
        self._reader.start()

    def _watch(self) -> None:
        """Note what the cache finds, and who is to start again."""
        while self._manager.batch_processor is None:
            if not self._manager.is_running():
                raise RuntimeError("the manager's thread ended before it had begun")
            time.sleep(0.001)
        processor = self._manager.batch_processor
        search = processor.cache.search_prefix_match
        again = processor.scheduler.add_waiting_request

        def searched(request_id: str, prompt_ids: list[int]) -> int:
            found: int = search(request_id, prompt_ids)
            self._hits[request_id] = found
            return found

        def waits(state: Any) -> Any:
            self._preempted += state.generated_len() > 0 or state.request_id in self._hits
            return again(state)

        processor.cache.search_prefix_match = searched
        processor.scheduler.add_waiting_request = waits

    # ------------------------------------------------------------------------------------- callers

    async def stream(self, request: GenerationRequest) -> AsyncIterator[TokenEvent]:
        """An event for each token; leaving early cancels the request.

        `RuntimeError` for what the engine fails with, and once it has ended.
        """
        mailbox = Mailbox()
        name = request.request
        before = self._waiting.get(name)
        self._waiting[name] = (mailbox.deliver, 0)
        try:
            accepted = self._manager.add_request(
                list(request.prompt),
                request_id=name,
                max_new_tokens=request.max_tokens,
                streaming=True,
                eos_token_id=NO_END,
            )
        except ValueError:  # refused: whoever has the name goes on
            if before is None:
                del self._waiting[name]
            else:
                self._waiting[name] = before
            raise
        try:
            if accepted is None:
                raise RuntimeError(f"the engine takes no more requests: {self._ended()}")
            async for event in mailbox.events():
                yield event
        finally:
            self._waiting.pop(name, None)
            if not mailbox.ended:
                self._manager.cancel_request(name)

    def preemptions(self) -> int:
        """How often a request lost its blocks to another, so far."""
        return self._preempted

    def close(self) -> None:
        """End the threads; what is unfinished fails."""
        self._closed = True
        self._manager.stop(block=True, timeout=10, hard_stop=True)
        self._reader.join()

    # -------------------------------------------------------------------------- the reader's thread

    def _read(self) -> None:
        while not self._closed:
            result = self._manager.get_result(timeout=0.05)
            if result is not None:
                self._tell(result)
            elif not self._manager.is_running() or self._fatal() is not None:
                for name, (deliver, _) in list(self._waiting.items()):
                    self._waiting.pop(name, None)
                    deliver(RuntimeError(f"the engine has ended: {self._ended()}"))
                time.sleep(0.01)

    def _fatal(self) -> BaseException | None:
        error: BaseException | None = self._manager.background_thread_status.fatal_error
        return error

    def _ended(self) -> str:
        return str(self._fatal() or "it was stopped")

    def _tell(self, result: Any) -> None:
        name = result.request_id
        waiting = self._waiting.get(name)
        if waiting is None:
            return
        deliver, seen = waiting
        if result.error is not None:
            deliver(RuntimeError(result.error))
            return
        new = slice(seen, len(result.generated_tokens))
        self._waiting[name] = (deliver, len(result.generated_tokens))
        deliver(
            TokenEvent(
                request=name,
                tokens=tuple(result.generated_tokens[new]),
                time=time.monotonic(),
                finish_reason="length" if result.is_finished() else None,
                cached_tokens=self._hits.get(name, 0),
                logprobs=tuple(result.logprobs[new]),
            )
        )
