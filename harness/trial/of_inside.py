"""Engines seen from inside: their scene, played until somebody is convicted, or to its end."""

from __future__ import annotations

from kvassay.harness.inside.playing import Stuck
from kvassay.harness.inside.scene import Scene
from kvassay.harness.trial.found import Effort, Found, Judged
from kvassay.harness.trial.planted import Planted

CHECK = "inside"


def judge(planted: Planted, scene: Scene, effort: Effort) -> Judged:
    """One run; of a control all of it, and under the pressure that a verdict needs."""
    broken = _broken(scene, to_the_first=planted.is_fault)
    found = [Found(CHECK, name, told, _again) for name, told in broken.items()]
    return Judged(found, examples=1)


def _again(scene: Scene) -> frozenset[str]:
    return frozenset(_broken(scene, to_the_first=True))


def _broken(scene: Scene, *, to_the_first: bool) -> dict[str, str]:
    """What convicts, by invariant; `RuntimeError` for a whole run that met too little."""
    try:
        watch = scene.play(to_the_first=to_the_first).watch
    except Stuck as stuck:
        return {"S2": str(stuck)}
    if watch.never_met and not to_the_first:
        raise RuntimeError(f"never met: {', '.join(watch.never_met)}")
    convictions = list(watch.convictions.values())
    return {one.invariant: str(one) for one in reversed(convictions)}
