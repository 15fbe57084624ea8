"""Tests of the post history in a producer's progress: the next sequence, repeats with their offsets, and conflicts."""

from __future__ import annotations

import pytest

from tutti.errors import FormatError
from tutti_connect.http.produce.post_history import OFFSET_UNKNOWN, POSTS_ENCODED_MAX, History, Verdict

A, B, C = b"a" * 8, b"b" * 8, b"c" * 8


def committed(*posts: tuple[int, bytes, int]) -> History:
    """A history of posts: (records, digest, offset)."""
    history = History()
    for post in posts:
        history.committed(*post)
    return history


def test_each_post_has_its_verdict() -> None:
    history = committed((3, A, 10), (2, B, 20))
    assert history.expected == 6
    judged = {
        (6, 4, C): Verdict.NEXT,
        (7, 1, C): Verdict.GAP,
        (5, 2, B): Verdict.OVERLAP,
        (1, 9, A): Verdict.OVERLAP,
        (1, 3, A): Verdict.REPEAT,
        (4, 2, B): Verdict.REPEAT,
        (4, 2, A): Verdict.DIFFERENT,
        (1, 2, A): Verdict.DIFFERENT,
        (2, 2, A): Verdict.DIFFERENT,
        (1, 5, A): Verdict.DIFFERENT,
        (5, 1, B): Verdict.DIFFERENT,
    }
    assert {asked: history.classify(*asked)[0] for asked in judged} == judged
    _, post = history.classify(4, 2, B)
    assert post is not None
    assert post.offset == 20


def test_a_new_producer_begins_with_one() -> None:
    history = History()
    assert history.classify(1, 1, A)[0] is Verdict.NEXT
    assert history.classify(2, 1, A)[0] is Verdict.GAP


def test_progress_informs_the_next_process() -> None:
    """The last commit is stored without its offset, which is not known yet; earlier ones have theirs."""
    history = committed((3, A, 10), (2, B, 20))
    told = History.decode(9, history.progress(4, C), "p")
    assert told.expected == 10
    assert [(post.first, post.records, post.digest, post.offset) for post in told.posts] == [
        (1, 3, A, 10),
        (4, 2, B, 20),
        (6, 4, C, OFFSET_UNKNOWN),
    ]
    assert told.range_of(6) == (22, None)
    assert told.range_of(4) == (13, 21)
    told.set_offset(told.posts[-1], 30)
    assert told.classify(6, 4, C) == (Verdict.REPEAT, told.posts[-1])
    assert told.posts[-1].offset == 30


def test_progress_is_bounded_and_older_posts_are_reported() -> None:
    history = History()
    for number in range(50):
        progress = history.progress(2, A)
        assert len(progress) <= 256
        history.committed(2, A, number * 2)
    told = History.decode(100, progress, "p")
    assert len(told.posts) == POSTS_ENCODED_MAX
    oldest = told.posts[0].first
    assert told.classify(oldest, 2, A)[0] is Verdict.REPEAT
    assert told.classify(oldest - 2, 2, A)[0] is Verdict.OLD
    assert told.classify(oldest - 1, 2, A)[0] is Verdict.DIFFERENT, "it is cut otherwise than what is known"
    low, high = told.range_of(1)
    assert (low, high) == (0, told.posts[0].offset)


def test_another_program_under_the_name_is_detected() -> None:
    progress = committed((3, A, 10)).progress(4, B)
    assert History.decode(8, progress, "p").classify(8, 1, A)[0] is Verdict.OLD, "the log is further than the progress knows"
    assert History.decode(5, b"", "p").expected == 6
    with pytest.raises(FormatError, match="producer p of the log was used by another program"):
        History.decode(5, b"an offset of Kafka", "p")
    with pytest.raises(FormatError, match="corrupt"):
        History.decode(2, committed((3, A, 10)).progress(4, B)[:2] + (2).to_bytes(8, "little") + progress[10:], "p")


def test_each_count_has_its_own_mark_and_its_begin() -> None:
    history = committed((1, b"a" * 8, 7), (2, b"b" * 8, 9))
    told = History.decode(4, history.progress(1, b"c" * 8), "p")
    assert (told.count, told.begin, told.range_of(1)[0]) == (history.count, 7, 7)
    assert History.decode(0, b"", "p").count != history.count, "it was forgotten, or there was none"
    late = committed((1, b"a" * 8, OFFSET_UNKNOWN))
    assert late.begin == OFFSET_UNKNOWN
    late.set_offset(late.posts[0], 5)
    assert late.begin == 5


def test_a_place_that_is_not_known_moves_nothing_back() -> None:
    history = committed((1, A, 100), (1, B, OFFSET_UNKNOWN))
    told = History.decode(3, history.progress(1, C), "p")
    assert told.range_of(3)[0] == 101
    assert told.range_of(2) == (101, None)
