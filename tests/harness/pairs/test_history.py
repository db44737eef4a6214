"""Numbers of a token: the same for the same history, other for every other history."""

from __future__ import annotations

import pytest
import torch

from kvassay.harness.contract import CacheKey, Span
from kvassay.harness.pairs.form import Form
from kvassay.harness.pairs.history import History, fingerprint
from kvassay.reference.tags import TagBook

FORM = Form("float32", head_dim=8, num_q_heads=4, num_kv_heads=2, causal=True)
KEY = CacheKey((5, 6, 7))


def numbers(key: CacheKey, epoch: int = 0, form: Form = FORM) -> tuple[torch.Tensor, ...]:
    """K, V and queries of a key, in a run of its own."""
    book = TagBook()
    book.of_key(CacheKey((9, 9)))  # other tags first: they are numbered as they come up
    history, tags = History(book, form), book.of_key(key, epoch)
    return history.keys(tags), history.values(tags), history.queries(tags)


def test_shapes_and_types() -> None:
    key, value, query = numbers(KEY, form=Form("bfloat16", 8, 4, 2, causal=True))
    assert key.shape == value.shape == (3, 2, 8)
    assert query.shape == (3, 4, 8)
    assert {key.dtype, value.dtype, query.dtype} == {torch.bfloat16}


def test_the_same_history_has_the_same_numbers_in_every_run() -> None:
    for one, other in zip(numbers(KEY), numbers(KEY), strict=True):
        assert torch.equal(one, other)


def test_a_prefix_has_the_numbers_that_it_has_in_the_whole() -> None:
    whole, part = numbers(KEY)[0], numbers(CacheKey((5, 6)))[0]
    assert torch.equal(whole[:2], part)


@pytest.mark.parametrize(
    ("other", "epoch"),
    [
        (CacheKey((4, 6, 7)), 0),
        (CacheKey((5, 5, 7)), 0),
        (CacheKey((5, 6, 7), salt="a"), 0),
        (CacheKey((5, 6, 7), adapter="a"), 0),
        (CacheKey((5, 6, 7), spans=(Span(0, 1, "x"),)), 0),
        (CacheKey((5, 6, 7)), 1),
    ],
    ids=["first token", "second token", "salt", "adapter", "content", "epoch"],
)
def test_the_last_token_tells_all_that_came_before(other: CacheKey, epoch: int) -> None:
    for one, different in zip(numbers(KEY), numbers(other, epoch), strict=True):
        assert not (one[-1] == different[-1]).any()


def test_salt_and_adapter_of_one_name_are_not_confused() -> None:
    salted, adapted = numbers(CacheKey((5,), salt="a")), numbers(CacheKey((5,), adapter="a"))
    assert not (salted[0] == adapted[0]).any()


def test_many_tags_have_many_fingerprints() -> None:
    book = TagBook()
    tags = book.of_key(CacheKey(tuple(range(600))))
    history = History(book, FORM)
    key = history.keys(tags)
    assert len({fingerprint(book, tag) for tag in tags}) == 600
    assert torch.equal(history.keys(tags), key)
    assert [history.named(key[at]) for at in (0, 299, 599)] == [tags[0], tags[299], tags[599]]
    assert history.named(torch.zeros(2, 8)) is None
