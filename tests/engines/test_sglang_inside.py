"""The device inside SGLang: the stock engine is acquitted on evidence, faults are convicted.

Each engine is in a process of its own: SGLang builds its process groups but once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import util
from typing import Any

import pytest

from kvassay.harness.inside.evidence import Met
from kvassay.impls.engines import sglang_inside as adapter
from kvassay.impls.faulty.sglang_inside import FAULTS

WHOLE = ("sglang", "gguf", "torchvision", "transformers")
pytestmark = pytest.mark.skipif(
    any(util.find_spec(name) is None for name in WHOLE),
    reason=f"needs SGLang as a whole: {adapter.INSTALL}",
)
REQUESTS = 200
PLAYED = """
import json, sys
from dataclasses import replace
from kvassay.impls.engines.sglang_inside import WatchedSglang, scene
from kvassay.impls.faulty.sglang_inside import FAULTS

def build():
    engine = WatchedSglang()
    if sys.argv[1] in FAULTS:
        FAULTS[sys.argv[1]].patch(engine)
    return engine

played = replace(scene(int(sys.argv[2])), build=build).play(to_the_first=sys.argv[1] in FAULTS)
watch = played.watch
print(json.dumps({
    "convicted": [[one.invariant, str(one)] for one in watch.convictions.values()],
    "never met": [str(one) for one in watch.never_met],
    "met": {str(one): count for one, count in watch.met.items()},
    "judged": len(watch.verdicts()),
    "seconds": played.seconds,
}))
"""


def play(name: str) -> dict[str, Any]:
    """What came of an engine, faulty or stock."""
    command = [sys.executable, "-c", PLAYED, name, str(REQUESTS)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_importing_the_adapter_does_not_import_sglang() -> None:
    code = "import kvassay.impls.engines.sglang_inside, sys; sys.exit('sglang' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_stock_sglang_is_acquitted_on_evidence() -> None:
    found = play("stock")
    assert not found["convicted"]
    assert not found["never met"]
    assert found["met"][str(Met.READ)] > 1000 * REQUESTS
    assert found["judged"] > 0.9 * REQUESTS


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_convicted(name: str) -> None:
    invariants = {invariant for invariant, _ in play(name)["convicted"]}
    assert invariants
    assert invariants <= FAULTS[name].accepted
