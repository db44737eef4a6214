"""vLLM as a whole, in this process: token ids in, one event per step and request out.

One thread owns the engine: it takes in what was submitted, steps while anybody is unfinished, and
stamps what a step brought the moment the step returns. So a request that comes during a step waits
for its end, as in vLLM's server. Engines in one process step one at a time: vLLM keeps the batch
that it is working on in a global.

By default the model is a small one with random weights (`random_llama`), decoding is greedy and
goes on to `max_tokens`. Importing this file does not import vLLM; building an engine does, in about
10 s. `serving` starts the same model behind vLLM's HTTP server.
"""

from __future__ import annotations

import atexit
import os
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any

from kvassay.harness.contract import (
    Capability,
    Declaration,
    Engine,
    GenerationRequest,
    TokenEvent,
)
from kvassay.harness.engines.random_llama import SMALL, write_model
from kvassay.harness.registry import implementation
from kvassay.impls.engines import vllm_serving
from kvassay.impls.engines.mailbox import Item, Mailbox
from kvassay.impls.engines.quiet import quietly
from kvassay.impls.engines.vllm import PACKAGE

INSTALL = (
    "pip install torch==2.13.0 && pip install --no-deps -r impls/engines/vllm_requirements.txt "
    "-r impls/engines/vllm_engine_requirements.txt"
)
_GIB = 2**30
_STEPPING = threading.Lock()
"""Held while any engine of this process is built, steps or ends."""
_alive: set[int] = set()
"""Engines of this process, by `id`."""
_ended: list[Any] = []
"""Those that are to be torn down with the last one, since any takes the process groups along that
all of them share; to be collected is to be torn down."""

Deliver = Callable[[Item], None]
Order = tuple[Callable[[], None], Deliver]
"""What the engine's thread is to do, and whom to tell if it ends before."""


@lru_cache(maxsize=1)
def library() -> SimpleNamespace:
    """The engine's own names, imported once."""
    # Read at import and when an engine is built: the worker is to run in this process.
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    with quietly("vllm"):
        import torch
        from vllm import SamplingParams
        from vllm.engine.arg_utils import EngineArgs
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.llm_engine import LLMEngine
        from vllm.v1.executor import Executor
    return SimpleNamespace(
        EngineArgs=EngineArgs,
        Executor=Executor,
        LLMEngine=LLMEngine,
        SamplingParams=SamplingParams,
        delta=RequestOutputKind.DELTA,
        torch=torch,
    )


@cache
def default_model() -> Path:
    """The folder of the small model with random weights; it goes with the process."""
    folder = Path(mkdtemp(prefix="random-llama-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return write_model(folder)


@implementation(
    "vllm-engine",
    kind=Engine,
    declaration=Declaration(capabilities=frozenset({Capability.PREFIX_CACHE, Capability.SALT})),
    package=PACKAGE,
    install=INSTALL,
)
class VllmEngine:
    """An engine and the thread that steps it.

    `model` is a folder; `num_blocks` usable blocks of `block_size` tokens, a multiple of 32 on
    CPUs; `step_tokens` the most that a step computes; `threads` is how many compute it (None: as
    many as torch likes). Further arguments are those of vLLM's ``EngineArgs``.
    """

    serving = staticmethod(vllm_serving.serving)

    def __init__(
        self,
        *,
        model: Path | None = None,
        prefix_caching: bool = True,
        block_size: int = 32,
        num_blocks: int = 2048,
        step_tokens: int | None = None,
        threads: int | None = None,
        **arguments: Any,
    ) -> None:
        chosen: dict[str, Any] = {
            "model": str(model or default_model()),
            "skip_tokenizer_init": True,
            "enforce_eager": True,
            "use_tqdm_on_load": False,
            "dtype": "float32",
            "enable_prefix_caching": prefix_caching,
            "block_size": block_size,
            # One more than usable: block 0 is the null block. The memory is only an upper bound.
            "num_gpu_blocks_override": num_blocks + 1,
            "kv_cache_memory_bytes": 4 * _GIB,
            "max_num_batched_tokens": step_tokens or 2048,
            **arguments,
        }
        # What the pool could never hold is refused at once, not tried again and again.
        chosen.setdefault(
            "max_model_len", min(SMALL.max_position_embeddings, num_blocks * block_size)
        )
        if step_tokens is not None:
            chosen.setdefault("max_num_seqs", min(step_tokens, 128))
        self.block_size = block_size
        self._orders: SimpleQueue[Order | None] = SimpleQueue()
        self._open = True
        self._gate = threading.Lock()
        self._deliver: dict[str, Deliver] = {}
        self._engine: Any = None
        self._failure: BaseException | None = None
        self._preemptions = 0
        built = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(chosen, threads, built), name="vllm-engine", daemon=True
        )
        self._thread.start()
        built.wait()
        if self._failure is not None:
            raise self._failure

    # ------------------------------------------------------------------------------------- callers

    async def stream(self, request: GenerationRequest) -> AsyncIterator[TokenEvent]:
        """An event for each step that brought tokens; leaving early aborts the request.

        Options: ``salt``, and the fields of vLLM's ``SamplingParams``. `ValueError` for a request
        that vLLM refuses, or whose name is in use.
        """
        mailbox = Mailbox()
        deliver = mailbox.deliver  # one object: an abort is known by it
        self._order(lambda: self._add(request, deliver), deliver)
        try:
            async for event in mailbox.events():
                yield event
        finally:
            if not mailbox.ended:
                with suppress(RuntimeError):  # it is closed, and everything with it
                    self._order(lambda: self._abort(request.request, deliver), deliver)

    def reset(self) -> None:
        """Forget everything cached; `ValueError` while requests are unfinished."""
        answers: SimpleQueue[Any] = SimpleQueue()
        self._order(
            lambda: answers.put(not self._deliver and self._engine.reset_prefix_cache()),
            answers.put,
        )
        answer = answers.get()
        if isinstance(answer, BaseException):
            raise answer
        if not answer:
            raise ValueError("reset: expected no unfinished request")

    def preemptions(self) -> int:
        """How often a request lost its blocks to another, so far."""
        return self._preemptions

    def close(self) -> None:
        """End the thread and let go of the engine; what is unfinished fails."""
        self._orders.put(None)
        self._thread.join()

    def _order(self, action: Callable[[], None], tell: Deliver) -> None:
        with self._gate:
            if not self._open:
                raise RuntimeError("the engine is closed") from self._failure
            self._orders.put((action, tell))

    # ------------------------------------------------------------------------ the engine's thread

    def _run(self, chosen: dict[str, Any], threads: int | None, built: threading.Event) -> None:
        try:
            with _STEPPING, quietly("vllm"):
                if threads is not None:
                    # Of this thread's own parallel regions.
                    library().torch.set_num_threads(threads)
                self._engine = _build(chosen)
                self._count_preemptions()
                _alive.add(id(self))
            built.set()
            while self._take_orders():
                if self._engine.has_unfinished_requests():
                    self._step()
        except BaseException as error:
            self._failure = error
        finally:
            self._refuse_the_rest()
            self._let_go()
            built.set()

    def _count_preemptions(self) -> None:
        scheduler = self._engine.engine_core.engine_core.scheduler
        preempt = scheduler._preempt_request

        def counted(*arguments: Any, **named: Any) -> Any:
            self._preemptions += 1
            return preempt(*arguments, **named)

        scheduler._preempt_request = counted

    def _refuse_the_rest(self) -> None:
        with self._gate:
            self._open = False
        left = self._failure or RuntimeError("the engine was closed")
        for deliver in self._deliver.values():
            deliver(left)
        with suppress(Empty):
            while True:
                order = self._orders.get_nowait()
                if order is not None:
                    order[1](left)

    def _let_go(self) -> None:
        engine, self._engine = self._engine, None
        with _STEPPING, quietly("vllm"):
            _alive.discard(id(self))
            if engine is not None:
                _ended.append(engine)
            while _ended and not _alive:
                _ended.pop().engine_core.shutdown()

    def _take_orders(self) -> bool:
        """Do what was ordered, waiting for it if there is nothing to step; False at the end."""
        wait = not self._engine.has_unfinished_requests()
        while True:
            try:
                order = self._orders.get(block=wait)
            except Empty:
                return True
            if order is None:
                return False
            order[0]()
            wait = False

    def _step(self) -> None:
        with _STEPPING, quietly("vllm"):
            outputs = self._engine.step()
        now = time.monotonic()
        for output in outputs:
            (generated,) = output.outputs
            event = TokenEvent(
                request=output.request_id,
                tokens=tuple(generated.token_ids),
                time=now,
                finish_reason=generated.finish_reason if output.finished else None,
                cached_tokens=output.num_cached_tokens,
                logprobs=_logprobs(generated),
            )
            deliver = self._deliver.get(output.request_id)
            if deliver is not None:
                deliver(event)
            if output.finished:
                self._deliver.pop(output.request_id, None)

    def _add(self, request: GenerationRequest, deliver: Deliver) -> None:
        if request.request in self._deliver:
            deliver(ValueError(f"request: {request.request!r} is unfinished; expected a new name"))
            return
        options = {"temperature": 0.0, "ignore_eos": True, **request.options}
        if options.pop("logprobs", False):
            options["logprobs"] = 0  # of the chosen token alone
        prompt: dict[str, Any] = {"prompt_token_ids": list(request.prompt)}
        salt = options.pop("salt", None)
        if salt is not None:
            prompt["cache_salt"] = salt
        try:
            parameters = library().SamplingParams(
                max_tokens=request.max_tokens,
                detokenize=False,
                output_kind=library().delta,
                **options,
            )
            with quietly("vllm"):
                self._engine.add_request(request.request, prompt, parameters)
        except Exception as error:  # the engine lives on: this request alone was wrong
            deliver(ValueError(f"request {request.request!r}: {error}"))
            return
        self._deliver[request.request] = deliver

    def _abort(self, request: str, deliver: Deliver) -> None:
        if self._deliver.get(request) is deliver:  # not a later request of the same name
            del self._deliver[request]
            self._engine.abort_request([request])


def _logprobs(generated: Any) -> tuple[float, ...] | None:
    """Of the tokens that were chosen."""
    if generated.logprobs is None:
        return None
    pairs = zip(generated.logprobs, generated.token_ids, strict=True)
    return tuple(float(options[token].logprob) for options, token in pairs)


def _build(chosen: dict[str, Any]) -> Any:
    vllm = library()
    config = vllm.EngineArgs(disable_log_stats=True, **chosen).create_engine_config()
    return vllm.LLMEngine(
        vllm_config=config,
        executor_class=vllm.Executor.get_class(config),
        log_stats=False,
        multiprocess_mode=False,
    )
