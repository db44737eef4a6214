"""Traffic that puts engines under pressure, and the loop over it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import pytest

from kvassay.harness.inside.playing import PATIENCE, Answer, Nobody, Stuck, play
from kvassay.harness.inside.traffic import Traffic, Wanted


def traffic(seed: int = 0) -> Traffic:
    return Traffic(seed, block_size=4, longest=40, vocabulary=60, output=6)


class Echo:
    """Answers everybody one token a step, or nobody."""

    def __init__(self, *, mute: bool = False) -> None:
        self.mute, self.aborted, self.most = mute, 0, 0
        self.live: dict[str, int] = {}
        self.wanted: dict[str, int] = {}

    def submit(self, wanted: Wanted) -> None:
        self.live[wanted.name] = self.wanted[wanted.name] = wanted.max_tokens
        self.most = max(self.most, len(self.live))

    def abort(self, request: str) -> None:
        del self.live[request]
        self.aborted += 1

    def step(self) -> Iterable[Answer]:
        for name in [] if self.mute else list(self.live):
            self.live[name] -= 1
            yield Answer(name, (7,), self.live[name] == 0)
        self.live = {name: left for name, left in self.live.items() if left}


class Ear(Nobody):
    """Writes down what it hears."""

    def __init__(self, *, convicts: str | None = None) -> None:
        self.tokens: Counter[str] = Counter()
        self.gone: dict[str, bool] = {}
        self._convicts = convicts

    @property
    def convictions(self) -> list[str]:  # type: ignore[override]
        return [name for name in self.tokens if name == self._convicts]

    def received(self, request: str, tokens: Sequence[int]) -> None:
        self.tokens[request] += len(tokens)

    def left(self, request: str, *, aborted: bool = False) -> None:
        self.gone[request] = aborted


def test_the_same_seed_draws_the_same() -> None:
    first, second, other = (traffic(seed) for seed in (0, 0, 1))
    assert [first.draw() for _ in range(50)] == [second.draw() for _ in range(50)]
    assert first.draw() != other.draw()


def test_requests_fit_and_are_of_every_kind() -> None:
    source = traffic()
    drawn = [source.draw() for _ in range(400)]
    assert all(0 < len(one.key.tokens) + one.max_tokens <= 40 for one in drawn)
    prompts = [tuple(one.key.tokens) for one in drawn]
    assert any(count > 1 for count in Counter(prompts).values()), "nobody repeats a prompt"
    heads = Counter(prompt[:4] for prompt in prompts)
    behind: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for prompt in prompts:
        behind.setdefault(prompt[4:8], set()).add(prompt[:4])
    assert heads.most_common(1)[0][1] > 20, "nobody shares a beginning"
    assert max(len(before) for block, before in behind.items() if len(block) == 4) > 1
    assert {len(prompt) % 4 for prompt in prompts} == {0, 1, 2, 3}
    assert {one.key.salt for one in drawn} == {None, "a", "b"}
    assert any(one.aborted_after for one in drawn)


def test_everybody_is_played_to_the_end_or_to_the_abort() -> None:
    engine, ear = Echo(), Ear()
    heard: list[int] = []
    play(engine, ear, traffic(), 600, together=5, tell=heard.append)
    assert len(ear.gone) == 600
    assert sum(ear.gone.values()) == engine.aborted > 0
    assert 1 < engine.most <= 5
    assert heard[-1] == 600
    waited = [name for name, aborted in ear.gone.items() if not aborted]
    assert all(ear.tokens[name] == engine.wanted[name] for name in waited)


def test_the_first_conviction_ends_it_where_that_is_asked() -> None:
    for to_the_first in (True, False):
        ear = Ear(convicts="r3")
        play(Echo(), ear, traffic(), 100, together=2, to_the_first=to_the_first)
        assert (len(ear.gone) < 10) == to_the_first


def test_an_engine_that_brings_nothing_is_given_up() -> None:
    with pytest.raises(Stuck, match=f"no token in {PATIENCE + 1} steps"):
        play(Echo(mute=True), Nobody(), _patient(), 20)


def _patient() -> Traffic:
    """Callers who do not give up before us."""
    source = traffic()
    draw = source.draw

    def patient() -> Wanted:
        one = draw()
        return Wanted(one.name, one.key, one.max_tokens)

    source.draw = patient  # type: ignore[method-assign]
    return source
