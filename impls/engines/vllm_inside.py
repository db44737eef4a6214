"""The device inside vLLM: a whole engine in this process, whose attention backend tells a `Watch`.

`WatchedVllm` registers the backend through vLLM's own seam, ``register_backend``, on the CPU
platform; scheduler, cache manager, model runner and kernel are the stock ones. Of each forward pass
the watch hears tokens and positions from a hook on the model, slots and tables from one layer of
each cache group (its layers share them), and whose rows they are from the runner's input batch.
What a request has to find is known from what was submitted and what came back.

vLLM turns asynchronous scheduling off on CPUs; `asynchronous` turns it on again behind its back, so
that steps are scheduled before the tokens of those before them are known. Layer groups without
attention (Mamba) are refused. Importing this file does not import vLLM.
"""

from __future__ import annotations

import atexit
import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any

from kvassay.harness.engines.random_llama import Sizes, write_model
from kvassay.harness.inside.batch import Batch, LayerGroup
from kvassay.harness.inside.playing import Answer
from kvassay.harness.inside.scene import Scene
from kvassay.harness.inside.traffic import Wanted
from kvassay.harness.inside.watch import Watch
from kvassay.impls.engines.quiet import quietly
from kvassay.impls.engines.vllm_engine import INSTALL as INSTALL
from kvassay.impls.engines.vllm_engine import library

BACKEND = "kvassay.impls.engines.vllm_inside_backend.WatchedBackend"
VOCABULARY = 1024
LONGEST = 420
"""Tokens of a request, its output included: it fits the small pool alone."""
WINDOW = 48
"""Not a multiple of the block size, 32."""
LAYERS = {
    "full": ("full_attention",) * 2,
    "window": ("sliding_attention",) * 2,
    "hybrid": ("sliding_attention", "full_attention") * 2,
}
"""Models by name: the attention of each layer."""
_TINY = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
_SMALL_POOL = {
    "block_size": 32,
    "num_gpu_blocks_override": 25,
    "kv_cache_memory_bytes": 2**28,
    "max_num_batched_tokens": 96,
    "max_num_seqs": 8,
    "max_model_len": 448,
}
NULL_BLOCK = 0
WINDOWED_BLOCKS = 13
"""Of the pool where all layers have windows: with more of them, none would ever be short."""
ENGINES: dict[str, dict[str, Any]] = {
    "full": {"model": "full"},
    "window": {"model": "window"},
    "hybrid": {"model": "hybrid"},
    "full-async": {"model": "full", "asynchronous": True},
    "hybrid-async": {"model": "hybrid", "asynchronous": True},
}
"""Engines by name: the arguments of `WatchedVllm`."""


@lru_cache(maxsize=1)
def _vllm() -> SimpleNamespace:
    """What an engine is made of, and its seam for attention, imported once."""
    of_engines = vars(library())
    with quietly("vllm"):
        from vllm.forward_context import get_forward_context
        from vllm.v1.attention import selector
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
        from vllm.v1.kv_cache_interface import AttentionSpec
    return SimpleNamespace(
        **of_engines,
        AttentionSpec=AttentionSpec,
        cpu=AttentionBackendEnum.CPU_ATTN,
        context=get_forward_context,
        forget_choice=selector._cached_get_attn_backend.cache_clear,
        register=register_backend,
    )


def scene_of(build: Callable[[], WatchedVllm], requests: int = 300) -> Scene:
    """An engine under traffic of its size."""
    return Scene(build, longest=LONGEST, vocabulary=VOCABULARY, requests=requests)


@cache
def model_of(kind: str) -> Path:
    """The folder of a tiny model of `LAYERS` with random weights; it goes with the process."""
    layers = LAYERS[kind]
    folder = Path(mkdtemp(prefix=f"inside-{kind}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_model(folder, Sizes(**_TINY, num_hidden_layers=len(layers)))
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config |= {"layer_types": layers, "sliding_window": WINDOW}
    path.write_text(json.dumps(config), encoding="utf-8")
    return folder


class WatchedVllm:
    """An engine under the harness's traffic (`harness.inside.playing.Engine`), and its watch.

    `model` is a name of `LAYERS`. With `watched` False it is the stock engine with the stock
    backend. Further arguments are those of vLLM's ``EngineArgs``; by default the pool has 24 blocks
    of 32 tokens (12 with windows alone) for 8 requests. One such engine at a time: `close` it
    before the next.
    """

    def __init__(
        self,
        model: str = "full",
        *,
        watched: bool = True,
        asynchronous: bool = False,
        **arguments: Any,
    ) -> None:
        vllm = _vllm()
        chosen = {
            "model": str(model_of(model)),
            "skip_tokenizer_init": True,
            "enforce_eager": True,
            "use_tqdm_on_load": False,
            "dtype": "float32",
            "enable_prefix_caching": True,
            "disable_log_stats": True,
            **_SMALL_POOL,
            **({"num_gpu_blocks_override": WINDOWED_BLOCKS} if model == "window" else {}),
            **arguments,
        }
        self._threads = vllm.torch.get_num_threads()
        _compute_with(1)  # a step of a model this small is over before a second one has woken up
        vllm.forget_choice()
        if watched:
            vllm.register(vllm.cpu, BACKEND)
        try:
            with quietly("vllm"):
                self._engine = _build(chosen, asynchronous)
        finally:
            vllm.cpu.clear_override()
        self.core = self._engine.engine_core.engine_core
        worker = self.core.model_executor.driver_worker
        self.runner = getattr(worker, "worker", worker).model_runner
        self._names: dict[str, str] = {}
        """What callers call requests, by what vLLM calls them."""
        self.groups = _groups(self.runner)
        self.watch = Watch(self.groups, None if asynchronous else self._table)
        if watched:
            self._attach()

    @property
    def pool(self) -> Any:
        """The block pool of its cache manager."""
        return self.core.scheduler.kv_cache_manager.block_pool

    @property
    def tables(self) -> Sequence[Any]:
        """The worker's block tables, one for each layer group."""
        tables: Sequence[Any] = self.runner.input_batch.block_table.block_tables
        return tables

    # ------------------------------------------------------------------------------------- callers

    def submit(self, wanted: Wanted) -> None:
        """Into vLLM's queue."""
        prompt: dict[str, Any] = {"prompt_token_ids": list(wanted.key.tokens)}
        if wanted.key.salt is not None:
            prompt["cache_salt"] = wanted.key.salt
        vllm = _vllm()
        parameters = vllm.SamplingParams(
            temperature=0.0,
            ignore_eos=True,
            max_tokens=wanted.max_tokens,
            detokenize=False,
            output_kind=vllm.delta,
        )
        with quietly("vllm"):
            inner = self._engine.add_request(wanted.name, prompt, parameters)
        self._names[inner] = wanted.name

    def abort(self, request: str) -> None:
        """As a client who hangs up."""
        self._engine.abort_request([request])

    def step(self) -> Iterable[Answer]:
        """One step of vLLM."""
        with quietly("vllm"):
            outputs = self._engine.step()
        return [
            Answer(one.request_id, tuple(one.outputs[0].token_ids), one.finished) for one in outputs
        ]

    def close(self) -> None:
        """Let go of the engine, finished or not."""
        with quietly("vllm"):
            self._engine.engine_core.shutdown()
        _compute_with(self._threads)

    # -------------------------------------------------------------------------------------- inside

    def _attach(self) -> None:
        """Look on at the model and at the first layer of each group."""
        layers = self.runner.compilation_config.static_forward_context
        first = [group.layer_names[0] for group in self.runner.kv_cache_config.kv_cache_groups]
        for number, name in enumerate(first):
            layer = layers[name].impl
            layer.wrote = lambda slots, number=number: self._wrote(number, slots)
            layer.reads = lambda metadata, number=number: self._reads(number, metadata)
        self.runner.model.register_forward_pre_hook(
            lambda _, positional, named: self._passes(first[0], *positional, **named),
            with_kwargs=True,
        )

    def _passes(self, layer: str, input_ids: Any, positions: Any, *_: Any, **__: Any) -> None:
        """The model is called: by whom, with what."""
        metadata = _vllm().context().attn_metadata
        if metadata is None:  # a call to warm up
            return
        requests = self.runner.input_batch.req_ids
        known = self.core.scheduler.requests
        self.watch.passes(
            Batch(
                [self._names[one] for one in requests],
                metadata[layer].query_start_loc.numpy(),
                metadata[layer].seq_lens.numpy(),
                input_ids.numpy(),
                positions.numpy(),
                [known[one].num_preemptions if one in known else 0 for one in requests],
            )
        )

    def _wrote(self, group: int, slots: Any) -> None:
        self.watch.wrote(group, slots.numpy())

    def _reads(self, group: int, metadata: Any) -> None:
        self.watch.reads(group, metadata.block_table.numpy())

    def _table(self, request: str, group: int) -> Sequence[int]:
        """The cache manager's own table; empty if it has none."""
        (inner,) = (inner for inner, name in self._names.items() if name == request)
        blocks: Sequence[int] = self.core.scheduler.kv_cache_manager.get_block_ids(inner)[group]
        return blocks


def _compute_with(threads: int) -> None:
    """So many threads; vLLM makes ``torch.set_num_threads`` itself do nothing."""
    _vllm().torch._C.set_num_threads(threads)


def _build(chosen: dict[str, Any], asynchronous: bool) -> Any:
    vllm = _vllm()
    config = vllm.EngineArgs(**chosen).create_engine_config()
    config.scheduler_config.async_scheduling = asynchronous
    return vllm.LLMEngine(
        vllm_config=config,
        executor_class=vllm.Executor.get_class(config),
        log_stats=False,
        multiprocess_mode=False,
    )


def _groups(runner: Any) -> list[LayerGroup]:
    """The engine's cache groups; those whose layers lie in one tensor share a memory."""
    layers = runner.compilation_config.static_forward_context
    found, places = [], []
    for group in runner.kv_cache_config.kv_cache_groups:
        spec = group.kv_cache_spec
        if not isinstance(spec, _vllm().AttentionSpec):
            raise ValueError(f"{group.layer_names}: expected attention, got {type(spec).__name__}")
        cache = layers[group.layer_names[0]].kv_cache
        if cache.data_ptr() not in places:
            places.append(cache.data_ptr())
        windows = [layers[name].impl.sliding_window for name in group.layer_names]
        # One table serves all layers of a group: what the widest of them reads.
        window = None if min(windows) < 0 else max(windows)
        found.append(
            LayerGroup(
                spec.block_size,
                runner.kv_cache_config.num_blocks,
                window,
                places.index(cache.data_ptr()),
                frozenset({NULL_BLOCK}),
            )
        )
    return found
