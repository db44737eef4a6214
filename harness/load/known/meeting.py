"""What was there to be got wrong in a scene, by what the server really said."""

from __future__ import annotations

from collections import Counter

from kvassay.harness.load.known.met import Met
from kvassay.harness.load.known.scene import Performed, Scene
from kvassay.harness.load.known.truth import Fate, fates, good_enough
from kvassay.harness.metrics.timeline import Ending
from kvassay.harness.serving.script import Comment, Cut, Error, Finish, Role, Tokens, Usage


def met_in(scene: Scene, performed: Performed) -> Counter[Met]:
    """States, and how often each was met."""
    played = performed.server.played
    truth = fates(scene)
    met: Counter[Met] = Counter()
    met[Met.TOKENS] = sum(isinstance(part, Tokens) for part in played)
    met[Met.ROLE] = sum(isinstance(part, Role) for part in played)
    met[Met.COMMENT] = sum(isinstance(part, Comment) for part in played)
    met[Met.SEVERAL] = sum(isinstance(part, Tokens) and len(part.ids) > 1 for part in played)
    met[Met.UNTOLD] = sum(isinstance(part, Tokens) and not part.told for part in played)
    met[Met.ERROR] = sum(isinstance(part, Error) for part in played)
    met[Met.CUT] = sum(isinstance(part, Cut) for part in played)
    met[Met.ABORTED] = sum(isinstance(p, Finish) and p.reason == "abort" for p in played)
    told = [part.cached for part in played if isinstance(part, Usage)]
    met[Met.HIT] = sum(bool(cached) for cached in told)
    met[Met.SILENT] = sum(cached is None for cached in told)
    met[Met.LATE_HEAD] = sum(call.script.head_at > 0 for call in scene.calls)
    met[Met.REFUSED] = sum(call.script.status != 200 for call in scene.calls)
    met[Met.WARM_UP] = len(scene.warm_up)
    spoke = [fate for fate in truth if fate.ending is Ending.COMPLETE and fate.carrying]
    met[Met.OBJECTIVES] = 0 < (good_enough(scene, spoke) or 0) < len(spoke)
    return met + _of_fates(truth)


def _of_fates(truth: list[Fate]) -> Counter[Met]:
    met: Counter[Met] = Counter()
    for fate in truth:
        met[Met.NO_TOKEN] += fate.ending is Ending.COMPLETE and not fate.carrying
        met[Met.WAITED] += fate.sent > fate.at
        met[Met.TRUNCATED] += fate.ending is Ending.TRUNCATED
        met[Met.GAVE_UP] += fate.ending is Ending.CANCELLED
        first = fate.carrying[0][0] if fate.carrying else fate.ended
        met[Met.DURING_STALL] += sum(fate.at < other.at < first for other in truth)
    return met
