"""Tags: equal exactly where everything the KV depends on is equal, judged by comparing tuples."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.harness.contract import CacheKey, Span
from kvassay.reference.tags import TagBook, elements_of, spans_fit

NAMES = st.sampled_from([None, "a", "b"])


@st.composite
def keys(draw: st.DrawFn) -> CacheKey:
    tokens = tuple(draw(st.lists(st.integers(0, 1), min_size=1, max_size=5)))
    spans: tuple[Span, ...] = ()
    if draw(st.booleans()):
        start = draw(st.integers(0, len(tokens) - 1))
        length = draw(st.integers(1, len(tokens) - start))
        spans = (Span(start, length, draw(st.sampled_from(["a", "x"]))),)
    return CacheKey(tokens, draw(NAMES), draw(NAMES), spans)


def identity(key: CacheKey, epoch: int, group: int, position: int) -> tuple[object, ...]:
    """All that the KV of one position depends on, written down without interning anything."""
    behind = []
    for place in range(position + 1):
        inside = [s for s in key.spans if s.start <= place < s.start + s.length]
        content = [(s.content, place - s.start) for s in inside]
        behind.append((key.tokens[place], content))
    return (group, epoch, key.salt, key.adapter, behind)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(keys(), st.integers(0, 1), st.integers(0, 1)), min_size=2, max_size=4))
def test_two_tags_are_equal_exactly_if_the_keys_are_up_to_there(
    drawn: list[tuple[CacheKey, int, int]],
) -> None:
    book = TagBook()
    named = [
        (tag, identity(key, epoch, group, position))
        for key, epoch, group in drawn
        for position, tag in enumerate(book.of_key(key, epoch, group))
    ]
    for tag, what in named:
        for other, other_what in named:
            assert (tag == other) == (what == other_what)


def test_each_component_alone_tells_two_keys_apart() -> None:
    book, plain = TagBook(), CacheKey((1, 2, 3))
    variants = {
        "salt": book.of_key(CacheKey((1, 2, 3), salt="a")),
        "adapter": book.of_key(CacheKey((1, 2, 3), adapter="a")),
        "both names swapped": book.of_key(CacheKey((1, 2, 3), salt="b", adapter="a")),
        "both names": book.of_key(CacheKey((1, 2, 3), salt="a", adapter="b")),
        "span": book.of_key(CacheKey((1, 2, 3), spans=(Span(0, 1, "a"),))),
        "epoch": book.of_key(plain, epoch=1),
        "group": book.of_key(plain, group=1),
    }
    last = [tags[-1] for tags in variants.values()]
    assert len({*last, book.of_key(plain)[-1]}) == len(last) + 1
    assert book.of_key(CacheKey([1, 2, 3])) == book.of_key(plain)


def test_keys_agree_up_to_where_they_part() -> None:
    book = TagBook()
    one = book.of_key(CacheKey((1, 2, 3, 4), spans=(Span(2, 2, "x"),)))
    other = book.of_key(CacheKey((1, 2, 3, 4), spans=(Span(2, 2, "y"),)))
    assert one[:2] == other[:2]
    assert not set(one[2:]) & set(other[2:])


def test_a_tag_can_be_read_back() -> None:
    book, key = TagBook(), CacheKey((5, 6, 7), salt="s", adapter="l", spans=(Span(1, 2, "x"),))
    tags = book.of_key(key, epoch=2)
    namespace, elements = book.path(tags[-1])
    assert namespace == (0, 2, "s", "l")
    assert elements == list(elements_of(key)) == [5, (6, "x", 0), (7, "x", 1)]


def test_a_key_goes_on_where_it_ended() -> None:
    book = TagBook()
    whole = book.of_key(CacheKey((1, 2, 3, 4)))
    begun = book.of_key(CacheKey((1, 2)))
    assert [*begun, *book.chain(begun[-1], (3, 4))] == whole
    assert book.chain(begun[0], (3, 4)) != whole[2:]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-1, 5), st.integers(-1, 3)), max_size=3),
    st.integers(0, 6),
)
def test_spans_fit_if_each_position_is_covered_once_and_in_order(
    drawn: list[tuple[int, int]], length: int
) -> None:
    spans = [Span(start, count, "x") for start, count in drawn]
    covered = [start + offset for start, count in drawn for offset in range(count)]
    legal = (
        all(count >= 1 for _, count in drawn)
        and covered == sorted(set(covered))
        and all(0 <= position < length for position in covered)
    )
    assert spans_fit(spans, length) == legal
