"""The device inside SGLang: its scheduler and model runner in this process, telling a `Watch`.

`WatchedSglang` registers a backend through SGLang's own seam, ``register_attention_backend``, in
the place of ``torch_native``, which needs no GPU, and steps the stock scheduler as its event loop
does, without overlap. Pages are of one token, so that a table is a row of the worker's
``req_to_token``, and slot 0 is padding. What came back is read off the requests' own
``output_ids``. An aborted request that is running ends with the pass that it is in; it has left
when it is gone.

This needs SGLang as a whole (`INSTALL`), not only what `sglang_stub` makes importable. Importing
this file does not import it. One engine in a process: SGLang builds its process groups but once.
"""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Iterable
from functools import lru_cache
from importlib import util
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from kvassay.harness.inside.batch import Batch, LayerGroup
from kvassay.harness.inside.playing import Answer
from kvassay.harness.inside.scene import Scene
from kvassay.harness.inside.traffic import Wanted
from kvassay.harness.inside.watch import Watch
from kvassay.impls.engines.quiet import quietly
from kvassay.impls.engines.vllm_inside import LONGEST, VOCABULARY, model_of

INSTALL = "tox run -e sglang-inside"
BACKEND = "torch_native"
PADDING_SLOT = 0
TOKENS = 640
"""Of the pool; the longest request takes two thirds of them."""
_TO_BE_GONE = 1000
"""Steps that an aborted request may take."""


def _stand_ins() -> None:
    """For what SGLang imports for notebooks alone, and for operators of a torchvision with CUDA."""
    if util.find_spec("IPython") is None:
        display: Any = ModuleType("IPython.display")
        display.HTML = display.display = None
        sys.modules |= {"IPython": ModuleType("IPython"), "IPython.display": display}
    sys.modules.setdefault("torchvision._meta_registrations", ModuleType("none"))


@lru_cache(maxsize=1)
def _sglang() -> SimpleNamespace:
    """The engine's own names, imported once."""
    _stand_ins()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # Admit requests as if their answers were short: those that are running must be retracted.
    os.environ.setdefault("SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION", "1")
    with quietly("sglang"):
        from sglang.srt.layers.attention import attention_registry, torch_native_backend
        from sglang.srt.managers import io_struct, scheduler
        from sglang.srt.observability.req_time_stats import SchedulerReqTimeStats
        from sglang.srt.sampling.sampling_params import SamplingParams
        from sglang.srt.server_args import PortArgs, ServerArgs
    return SimpleNamespace(
        Abort=io_struct.AbortReq,
        Backend=torch_native_backend.TorchNativeAttnBackend,
        PortArgs=PortArgs,
        Request=io_struct.TokenizedGenerateReqInput,
        SamplingParams=SamplingParams,
        Scheduler=scheduler.Scheduler,
        ServerArgs=ServerArgs,
        SpawnRanks=scheduler.SpawnRanks,
        Times=SchedulerReqTimeStats,
        backends=attention_registry.ATTENTION_BACKENDS,
        publish=scheduler.publish,
        register=attention_registry.register_attention_backend,
    )


class WatchedSglang:
    """An engine under the harness's traffic (`harness.inside.playing.Engine`), and its watch.

    Further arguments are those of SGLang's ``ServerArgs``.
    """

    def __init__(self, **arguments: Any) -> None:
        sglang = _sglang()
        chosen = {
            "model_path": str(model_of("full")),
            "device": "cpu",
            "attention_backend": BACKEND,
            "skip_tokenizer_init": True,
            "max_total_tokens": TOKENS,
            "context_length": TOKENS - 8,
            "max_running_requests": 8,
            "chunked_prefill_size": 96,
            "disable_overlap_schedule": True,
            "dtype": "float32",
            "mem_fraction_static": 0.2,
            "sampling_backend": "pytorch",
            "grammar_backend": "none",
            "log_level": "error",
            **arguments,
        }
        stock = sglang.backends[BACKEND]
        sglang.register(BACKEND)(lambda runner: _watched(self, runner))
        try:
            with quietly("sglang"):
                self.scheduler = _build(chosen)
        finally:
            sglang.backends[BACKEND] = stock
        self._rows = self.scheduler.tp_worker.model_runner.req_to_token_pool
        self._batch: Any = None
        self._requests: dict[str, Any] = {}
        self._sent: dict[str, int] = {}
        self._answers: list[Answer] = []
        slots = int(self.scheduler.max_total_num_tokens) + 1
        self.watch = Watch([LayerGroup(1, slots, null=frozenset({PADDING_SLOT}))])

    # ------------------------------------------------------------------------------------- callers

    def submit(self, wanted: Wanted) -> None:
        """Into SGLang's queue."""
        sglang = _sglang()
        parameters = sglang.SamplingParams(
            max_new_tokens=wanted.max_tokens, temperature=0.0, ignore_eos=True
        )
        parameters.normalize(None)
        self.scheduler.handle_generate_request(
            sglang.Request(
                rid=_inner(wanted.name),
                input_text=None,
                input_ids=array("q", wanted.key.tokens),
                sampling_params=parameters,
                stream=True,
                extra_key=wanted.key.salt,
                time_stats=sglang.Times(),
                return_logprob=False,
                logprob_start_len=-1,
                top_logprobs_num=0,
                token_ids_logprob=None,
                mm_inputs=None,
                input_embeds=None,
                token_type_ids=None,
            )
        )
        self._requests[wanted.name] = self.scheduler.waiting_queue[-1]
        self._sent[wanted.name] = 0

    def abort(self, request: str) -> None:
        """As a client who hangs up; steps on until it is gone."""
        known = self._requests[request]
        self.scheduler.abort_request(_sglang().Abort(rid=_inner(request)))
        for _ in range(_TO_BE_GONE):
            if known.finished() or not self._has(known):
                break
            self._answers += self._step()
        else:
            raise RuntimeError(f"{request} was aborted and is still there")
        self._requests.pop(request, None)

    def step(self) -> Iterable[Answer]:
        """One turn of SGLang's event loop, and what came since the last."""
        before, self._answers = self._answers, []
        return [*before, *self._step()]

    def close(self) -> None:
        """Nothing: what SGLang builds in a process stays."""

    # -------------------------------------------------------------------------------------- inside

    def look(self, layer: Any, forward: Any) -> None:
        """A layer is about to write and then to read."""
        if layer.layer_id or self._batch is None:
            return
        requests, lengths = self._batch.reqs, forward.seq_lens.numpy()
        counts = np.ones(len(requests), dtype=np.int64)
        if not forward.forward_mode.is_decode():
            counts = forward.extend_seq_lens.numpy()
        self.watch.passes(
            Batch(
                [_outer(one.rid) for one in requests],
                np.concatenate([[0], np.cumsum(counts)]),
                lengths,
                forward.input_ids.numpy(),
                forward.positions.numpy(),
                [one.retraction_count for one in requests],
            )
        )
        self.watch.wrote(0, forward.out_cache_loc.numpy())
        self.watch.reads(0, self._rows.req_to_token[forward.req_pool_indices].numpy())

    def _step(self) -> list[Answer]:
        scheduler = self.scheduler
        with quietly("sglang"):
            plan = scheduler.get_next_batch_to_run(
                running_batch=scheduler.running_batch, last_batch=scheduler.last_batch
            )
            scheduler.running_batch = plan.running_batch
            self._batch = scheduler.cur_batch_for_debug = plan.batch_to_run
            if self._batch:
                result = scheduler.run_batch(self._batch)
                scheduler.process_batch_result(self._batch, result)
            scheduler.last_batch = self._batch
        return list(self._news())

    def _news(self) -> Iterable[Answer]:
        for name, one in list(self._requests.items()):
            tokens, finished = tuple(one.output_ids[self._sent[name] :]), one.finished()
            self._sent[name] += len(tokens)
            if finished:
                del self._requests[name]
            if tokens or finished:
                yield Answer(name, tokens, finished)

    def _has(self, request: Any) -> bool:
        scheduler = self.scheduler
        last = scheduler.last_batch.reqs if scheduler.last_batch else ()
        places = (scheduler.waiting_queue, scheduler.running_batch.reqs, last)
        return request is scheduler.chunked_req or any(request in place for place in places)


def scene(requests: int = 300, **arguments: Any) -> Scene:
    """An engine under traffic of its size."""
    return Scene(
        lambda: WatchedSglang(**arguments),
        longest=LONGEST,
        vocabulary=VOCABULARY,
        requests=requests,
        output=64,  # long enough that what was admitted does not fit in the end
        aligned=16,
    )


def _inner(name: str) -> str:
    """SGLang aborts whatever begins with an id, so that none may begin with another."""
    return f"{name}."


def _outer(rid: str) -> str:
    return rid[:-1]


def _build(chosen: dict[str, Any]) -> Any:
    sglang = _sglang()
    arguments = sglang.ServerArgs(**chosen)
    ports = sglang.PortArgs.init_new(arguments)
    ranks = sglang.SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0)
    sglang.publish(arguments, role="scheduler", ranks=ranks)
    scheduler = sglang.Scheduler(arguments, ports)
    for sender in ("send_to_tokenizer", "send_to_detokenizer"):  # nobody is at the other end
        getattr(scheduler.ipc_channels, sender).socket = None
    return scheduler


def _watched(engine: WatchedSglang, runner: Any) -> Any:
    """The stock backend, which has each layer looked at before it does anything."""
    stock = _sglang().Backend

    class Watched(stock):  # type: ignore[misc]
        def forward_extend(
            self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, *more: Any, **named: Any
        ) -> Any:
            engine.look(layer, forward_batch)
            return super().forward_extend(q, k, v, layer, forward_batch, *more, **named)

        def forward_decode(
            self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, *more: Any, **named: Any
        ) -> Any:
            engine.look(layer, forward_batch)
            return super().forward_decode(q, k, v, layer, forward_batch, *more, **named)

    return Watched(runner)
