"""The device inside vLLM: the stock engine is acquitted on evidence, faults are convicted."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any

import pytest

from kvassay.harness.inside.evidence import Met
from kvassay.impls.engines import vllm_inside as adapter

REQUESTS = 120
FAULTS = ("row-not-moved", "hit-not-touched")
"""One of the worker, one of the pool. ``kvassay bench inside`` has all of them."""


@pytest.fixture(autouse=True)
def _needs_vllm() -> None:
    pytest.importorskip("vllm", reason=f"needs vLLM: {adapter.INSTALL}")


def test_importing_the_adapter_does_not_import_vllm() -> None:
    code = "import kvassay.impls.engines.vllm_inside, sys; sys.exit('vllm' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def scene(name: str, **more: Any) -> Any:
    build = partial(adapter.WatchedVllm, **adapter.ENGINES[name], **more)
    return adapter.scene_of(build, REQUESTS)


@pytest.mark.parametrize("name", ["full", "hybrid-async"])
def test_stock_vllm_is_acquitted_on_evidence(name: str) -> None:
    watch = scene(name).play().watch
    assert not watch.convictions
    assert not watch.never_met
    assert watch.met[Met.READ] > 100_000
    assert bool(watch.met[Met.IN_FLIGHT]) == name.endswith("async")
    assert len(watch.verdicts()) > 0.9 * REQUESTS
    windows = {"full": [None], "hybrid-async": [adapter.WINDOW, None]}
    assert [group.window for group in watch.groups] == windows[name]
    assert {group.memory for group in watch.groups} == {0}, "groups lie in the same tensors"


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_convicted(name: str) -> None:
    from kvassay.impls.faulty.vllm_inside import FAULTS as PLANTED

    one = PLANTED[name]
    watch = one.scene.play(to_the_first=True).watch
    found = {conviction.invariant for conviction in watch.convictions.values()}
    assert found
    assert found <= one.fault.accepted


def test_an_engine_that_nobody_watches_has_the_stock_backend() -> None:
    engine = adapter.WatchedVllm(watched=False)
    layers = engine.runner.compilation_config.static_forward_context.values()
    names = {type(layer.impl).__name__ for layer in layers}
    engine.close()
    assert names == {"CPUAttentionBackendImpl"}
