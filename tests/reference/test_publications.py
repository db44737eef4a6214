"""Must-hit against a brute force over everything that was ever published and handed out."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.harness.contract import CacheKey
from kvassay.reference.publications import Publications
from kvassay.reference.tags import TagBook

SIZE = 2
KEYS = [(0, 0, 0, 0), (0, 0, 0, 1), (0, 1, 0, 0), (1, 0, 0, 0)]
KEY = st.integers(0, len(KEYS) - 1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), KEY, st.permutations(range(5)), st.integers(0, 4)),
        st.tuples(st.just("hand out"), st.integers(0, 4)),
        st.tuples(st.just("press")),
        st.tuples(st.just("confirm"), KEY, st.integers(0, 4)),
    ),
    max_size=12,
)


class Log:
    """The whole history in lists, judged from the start at each question."""

    def __init__(self, unit: int) -> None:
        self.unit = unit
        self.published: list[tuple[int, int, int]] = []  # time, tag, block
        self.handed_out: list[tuple[int, int]] = []
        self.known: list[tuple[int, int]] = []
        self.pressed = 0

    def untouched(self, block: int, start: int, stop: int) -> bool:
        return not any(b == block and start < t <= stop for t, b in self.handed_out)

    def resident(self, tag: int, now: int) -> bool:
        """Every block it was published in, as far as it was left at the last publication."""
        mine = [(time, block) for time, each, block in self.published if each == tag]
        if not mine:
            return False
        last = max(time for time, _ in mine)
        sites = [(time, block) for time, block in mine if self.untouched(block, time, last)]
        times = [time for time, each in self.known if each == tag]
        return max(times) >= self.pressed and all(
            self.untouched(block, time, now) for time, block in sites
        )

    def must_hit(self, tags: list[int], limit: int, now: int) -> int:
        stops = range(self.unit, limit + 1, self.unit)
        missing = (s - self.unit for s in stops if not self.resident(tags[s - 1], now))
        return next(missing, limit // self.unit * self.unit)


@settings(max_examples=400, deadline=None)
@given(STEPS, st.sampled_from([1, 2, 4]))
def test_must_hit_is_what_no_correct_manager_can_have_lost(
    steps: list[tuple[object, ...]], unit: int
) -> None:
    book, log, publications = TagBook(), Log(unit), Publications(unit, SIZE)
    tags = [book.of_key(CacheKey(key)) for key in KEYS]
    tenancy = dict.fromkeys(range(5), 1)
    for now, (kind, *rest) in enumerate(steps, start=1):
        if kind == "publish":
            which, table, stop = rest
            list(publications.publish(tags[which], table, tenancy, 0, stop, now))
            for end in range(unit, stop + 1, unit):
                tag = tags[which][end - 1]
                log.known.append((now, tag))
                for block in {table[p // SIZE] for p in range(end - unit, end)}:
                    log.published.append((now, tag, block))
        elif kind == "hand out":
            tenancy[rest[0]] += 1
            log.handed_out.append((now, rest[0]))
        elif kind == "press":
            publications.pressure = log.pressed = now
        else:
            which, hit = rest
            publications.confirm(tags[which], hit, now)
            log.known += [(now, tags[which][end - 1]) for end in range(unit, hit + 1, unit)]
        for each in tags:
            for limit in range(5):
                expected = log.must_hit(each, limit, now)
                assert publications.must_hit(each, limit, tenancy) == expected


def published(block_of_key: dict[tuple[int, ...], list[int]]) -> tuple[Publications, TagBook]:
    book, publications = TagBook(), Publications(SIZE, SIZE)
    tenancy = dict.fromkeys(range(9), 1)
    for key, table in block_of_key.items():
        tags = book.of_key(CacheKey(key))
        list(publications.publish(tags, table, tenancy, 0, len(key), 1))
    return publications, book


def test_publishing_yields_each_block_with_its_index() -> None:
    tags = TagBook().of_key(CacheKey(range(5)))
    tenancy = dict.fromkeys(range(9), 1)
    pages = Publications(unit=SIZE, block_size=SIZE)
    assert list(pages.publish(tags, [7, 8, 3], tenancy, 0, 5, 1)) == [(7, 0), (8, 1)]
    wide = Publications(unit=4, block_size=SIZE)
    assert list(wide.publish(tags, [7, 8, 3], tenancy, 3, 5, 1)) == [(7, 0), (8, 1)]
    tokens = Publications(unit=1, block_size=SIZE)
    assert list(tokens.publish(tags, [7, 8, 3], tenancy, 3, 5, 1)) == [(8, 1), (3, 2)]


def test_a_duplicate_is_lost_as_soon_as_one_of_its_blocks_is_handed_out() -> None:
    tenancy = dict.fromkeys(range(9), 1)
    publications, book = published({(1, 2): [0]})
    tags = book.of_key(CacheKey((1, 2)))
    assert publications.duplicates == 0
    list(publications.publish(tags, [4], tenancy, 0, 2, 2))
    assert publications.duplicates == 1
    assert publications.must_hit(tags, 2, tenancy) == 2
    assert publications.must_hit(tags, 2, {**tenancy, 4: 2}) == 0
    assert publications.published(tags, 2) == 2


def test_a_publication_retires_the_sites_that_are_gone() -> None:
    publications, book = published({(1, 2): [0]})
    tags = book.of_key(CacheKey((1, 2)))
    later = {**dict.fromkeys(range(9), 1), 0: 2}
    assert publications.must_hit(tags, 2, later) == 0
    list(publications.publish(tags, [5], later, 0, 2, 3))
    entry = publications.entries[tags[1]]
    assert (entry.sites, entry.past) == ({(5, 1)}, {(0, 1)})
    assert publications.must_hit(tags, 2, later) == 2


def test_a_truncation_makes_what_it_cuts_into_withdrawable() -> None:
    publications, book = published({(1, 2, 3, 4): [0, 1]})
    tenancy = dict.fromkeys(range(9), 1)
    tags = book.of_key(CacheKey((1, 2, 3, 4)))
    publications.doubt(tags, 3, [7, 8])
    assert publications.must_hit(tags, 4, tenancy) == 4
    publications.doubt(tags, 3, [0, 1])
    assert publications.must_hit(tags, 4, tenancy) == 2
    assert publications.entries[tags[3]].withdrawable
    assert not publications.entries[tags[1]].withdrawable


def test_a_withdrawable_entry_is_sure_again_once_it_is_computed_from_nothing() -> None:
    publications, book = published({(1, 2): [0]})
    tenancy = dict.fromkeys(range(9), 1)
    tags = book.of_key(CacheKey((1, 2)))
    publications.doubt(tags, 1, [0])
    list(publications.publish(tags, [4], tenancy, 0, 2, 2))
    assert publications.must_hit(tags, 2, tenancy) == 0
    gone = {**tenancy, 0: 2, 4: 2}
    list(publications.publish(tags, [5], gone, 0, 2, 3))
    assert publications.must_hit(tags, 2, gone) == 2
