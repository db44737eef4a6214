"""OpenVINO GenAI's continuous batching as a whole, in this process: token ids in, tokens out.

One thread owns the pipeline: it takes in what was submitted, steps while anybody is unfinished, and
hands on what each step brought. The pipeline reads the model as a GGUF (`gguf_model`); keys and
values are kept in float32, and everything is computed in it. It does not tell which tokens of a
prompt it found, so its prefix cache shows in answers only. Importing this file does not import
OpenVINO.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable
from functools import lru_cache
from pathlib import Path
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from typing import Any

from kvassay.harness.contract import Declaration, Engine, GenerationRequest, TokenEvent
from kvassay.harness.registry import implementation
from kvassay.impls.engines.gguf_model import write_gguf
from kvassay.impls.engines.mailbox import Item, Mailbox

INSTALL = "pip install --no-deps -r impls/engines/openvino_requirements.txt"
F32 = {"KV_CACHE_PRECISION": "f32", "INFERENCE_PRECISION_HINT": "f32"}
Deliver = Callable[[Item], None]


@lru_cache(maxsize=1)
def _library() -> SimpleNamespace:
    """Its own names, imported once."""
    import numpy
    import openvino
    import openvino_genai

    return SimpleNamespace(genai=openvino_genai, Tensor=openvino.Tensor, numpy=numpy)


@implementation(
    "openvino-engine",
    kind=Engine,
    declaration=Declaration(),
    package="openvino_genai",
    install=INSTALL,
)
class OpenVinoEngine:
    """A pipeline and the thread that steps it.

    `model` is a folder; `num_blocks` blocks of 32 tokens, which is what the CPU has; `step_tokens`
    is the most that a step computes. Further arguments are fields of the library's
    ``SchedulerConfig``.
    """

    block_size = 32

    def __init__(
        self,
        *,
        model: Path,
        num_blocks: int = 128,
        step_tokens: int | None = None,
        prefix_caching: bool = True,
        **arguments: Any,
    ) -> None:
        library = _library()
        config = library.genai.SchedulerConfig()
        chosen = {
            "num_kv_blocks": num_blocks,
            "enable_prefix_caching": prefix_caching,
            "max_num_batched_tokens": step_tokens or 256,
            "dynamic_split_fuse": True,
            **arguments,
        }
        for name, value in chosen.items():
            setattr(config, name, value)
        self._pipeline = library.genai.ContinuousBatchingPipeline(
            str(write_gguf(model)), config, "CPU", F32
        )
        self._orders: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._running: dict[int, tuple[str, Any, Deliver]] = {}
        self._number = 0
        # The pipeline's ids are numbers: of each name its own, so that it sees a name again too.
        self._ids: dict[str, int] = {}
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="openvino-engine", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------------------------- callers

    async def stream(self, request: GenerationRequest) -> AsyncIterator[TokenEvent]:
        """An event for each step that brought tokens; leaving early cancels the request.

        `ValueError` for what the pipeline refuses, `RuntimeError` once it has ended.
        """
        if self._failure is not None:
            raise RuntimeError(f"the engine has ended: {self._failure}")
        number = self._number = self._number + 1
        mailbox = Mailbox()
        self._orders.put(lambda: self._add(number, request, mailbox.deliver))
        try:
            async for event in mailbox.events():
                yield event
        finally:
            if not mailbox.ended:
                self._orders.put(lambda: self._cancel(number))

    def close(self) -> None:
        """End the thread and let go of the pipeline."""
        self._orders.put(None)
        self._thread.join()
        self._pipeline = None

    # ------------------------------------------------------------------------ the pipeline's thread

    def _run(self) -> None:
        try:
            while self._take_orders():
                if self._running:
                    self._pipeline.step()
                    self._tell_all()
        except BaseException as error:
            self._failure = error
            for _, _, deliver in self._running.values():
                deliver(RuntimeError(f"the engine has ended: {error}"))

    def _take_orders(self) -> bool:
        """Do what was ordered, waiting for it if there is nothing to step; False at the end."""
        wait = not self._running
        while True:
            try:
                order = self._orders.get(block=wait)
            except Empty:
                return True
            if order is None:
                return False
            order()
            wait = False

    def _add(self, number: int, request: GenerationRequest, deliver: Deliver) -> None:
        library = _library()
        config = library.genai.GenerationConfig()
        config.max_new_tokens = request.max_tokens
        config.do_sample, config.ignore_eos, config.apply_chat_template = False, True, False
        if request.options.get("logprobs"):
            config.logprobs = 1
        id = self._ids.setdefault(request.request, len(self._ids))
        try:
            ids = library.Tensor(library.numpy.array([list(request.prompt)], dtype="int64"))
            handle = self._pipeline.add_request(id, ids, config)
        except Exception as error:  # the pipeline lives on: this request alone was wrong
            deliver(ValueError(f"request {request.request!r}: {error}"))
            return
        self._running[number] = (request.request, handle, deliver)

    def _cancel(self, number: int) -> None:
        if number in self._running:
            self._running.pop(number)[1].cancel()
            self._pipeline.step()

    def _tell_all(self) -> None:
        finished = _library().genai.GenerationStatus
        ends = {finished.FINISHED: "length", finished.IGNORED: "ignored", finished.STOP: "stopped"}
        for number, (name, handle, deliver) in list(self._running.items()):
            status = handle.get_status()
            tokens, logprobs = _new(handle)
            end = ends.get(status)
            if end is not None:
                del self._running[number]
            if tokens or end:
                deliver(TokenEvent(name, tokens, time.monotonic(), end, None, logprobs))


def _new(handle: Any) -> tuple[tuple[int, ...], tuple[float, ...] | None]:
    """Tokens and log-probabilities since the last time."""
    tokens: list[int] = []
    logprobs: list[float] = []
    while handle.can_read():
        for output in handle.read().values():
            tokens += map(int, output.generated_ids)
            logprobs += map(float, output.generated_log_probs)
    return tuple(tokens), tuple(logprobs) if logprobs else None
