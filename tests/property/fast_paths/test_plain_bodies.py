"""Properties of the check of plain bodies: the answer does not depend on the bodies that were checked before, and a simple check
gives the same answer.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tutti.data.frames import plain_body
from tutti.data.frames.frame import Frame, Kind
from tutti.data.frames.plain_body import check_plain, encode_plain, plain_layout

KNOWN_MAX = 6  # layouts that are kept, so that the table fills up
START_US = 1_700_000_000_000_000


def plain_frame(chance: Random) -> Frame:
    count = chance.choice((1, 1, 1, 2, 2, 3, 9, 33))
    values = [chance.choice((b"", b"a", b"bc", b"value", None)) for _ in range(count)]
    keys: Sequence[bytes | None] | None = chance.choice(
        (None, [b"k"] * count, [chance.choice((None, b"", b"key")) for _ in values])
    )
    times = [START_US + number * chance.choice((0, 0, 1)) for number in range(count)]
    body, raw_length = encode_plain(keys, values, struct.pack(f"<{count}q", *times))
    low, high = min(times), max(times)
    return Frame(Kind.BATCH, body, count=count, min_timestamp=low, max_timestamp=high, raw_length=raw_length)


def changed(frame: Frame, chance: Random) -> Frame:
    """The frame with another count, time or length, or with another byte or number in its body."""
    body, layout = bytearray(frame.body), plain_body.plain_layout(frame.body, frame.count)
    assert layout is not None
    how = chance.randrange(8)
    if how == 0:
        frame.count = max(0, frame.count + chance.choice((-1, 1)))
    elif how == 1:
        del body[-chance.randint(1, len(body)) :]
    elif how == 2:
        body += bytes(8)
    elif how == 3:
        body[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
    elif how == 4:
        body[chance.choice((layout.key_validity, layout.value_validity))] ^= 1 << chance.randrange(8)
    elif how == 5:
        name = chance.choice(("min_timestamp", "max_timestamp"))
        setattr(frame, name, getattr(frame, name) + chance.choice((-1, 1)))
    else:
        offsets = chance.choice((layout.key_offsets, layout.value_offsets)) + 4 * chance.randint(0, frame.count)
        at = chance.choice((offsets, offsets, 4 * chance.randrange(len(body) // 4)))
        body[at : at + 4] = struct.pack("<i", chance.choice((-1, 0, 1, 2, 5, 6, 2**31 - 1)))
    frame.body, frame.body_length = bytes(body), len(body)
    return frame


def simple(frame: Frame) -> bool:
    """The check of a plain body, written without fast paths."""
    body, count = bytes(frame.body), frame.count
    if len(body) < plain_body._METADATA.size or frame.codec or not count:
        return False
    rows, key_size, value_size, key_nulls, value_nulls = plain_body._NUMBERS.unpack_from(body)
    if rows != count or not all(0 <= nulls <= count for nulls in (key_nulls, value_nulls)):
        return False
    if not all(0 <= size <= plain_body._DATA_BYTES_MAX for size in (key_size, value_size)):
        return False
    layout = plain_body._layout.__wrapped__(count, key_size, key_nulls, value_size, value_nulls)
    if len(body) != layout.end or body[: len(layout.metadata)] != layout.metadata or frame.raw_length != layout.raw_length:
        return False

    def column(validity: int, offsets: int, size: int, nulls: int) -> bool:
        ends = struct.unpack_from(f"<{count + 1}i", body, offsets)
        present = sum(body[validity + number // 8] >> number % 8 & 1 for number in range(count)) if nulls else count
        return ends[0] == 0 and ends[-1] <= size and list(ends) == sorted(ends) and count - present == nulls

    # The zeros of records without keys have no null bitmap, although all keys may be null.
    no_keys = not key_size and not any(body[layout.key_validity : layout.key_data])
    keys = key_nulls in (0, count) if no_keys else column(layout.key_validity, layout.key_offsets, key_size, key_nulls)
    values = column(layout.value_validity, layout.value_offsets, value_size, value_nulls)
    times = struct.unpack_from(f"<{count}q", body, layout.times)
    stated = (frame.min_timestamp, frame.max_timestamp)
    return keys and values and not any(body[layout.headers :]) and (min(times), max(times)) == stated


@given(st.integers(0, 2**32))
@settings(max_examples=60)
def test_an_answer_does_not_depend_on_earlier_bodies_and_equals_that_of_a_simple_check(seed: int) -> None:
    chance = Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain_body, "_LAYOUTS_KEPT", KNOWN_MAX)
        known: dict[bytes, plain_body.Layout] = {}
        for _ in range(40):
            frame = plain_frame(chance)
            if chance.random() < 0.6:
                changed(frame, chance)
            patch.setattr(plain_body, "_checked", known)
            warm = check_plain(frame), plain_layout(frame.body, frame.count)
            patch.setattr(plain_body, "_checked", {})
            cold = check_plain(frame), plain_layout(frame.body, frame.count)
            assert warm == cold
            assert bool(warm[0]) is simple(frame)
            assert len(known) <= KNOWN_MAX


def test_a_known_layout_is_found_for_its_count_and_length_alone() -> None:
    body, _ = encode_plain(None, [b"x", b"y"], struct.pack("<2q", START_US, START_US))
    layout = plain_layout(body, 2)
    assert layout is not None
    assert plain_layout(body, 2) is layout
    assert plain_layout(body, 1) is plain_layout(body, 3) is plain_layout(body[:-8], 2) is plain_layout(body + bytes(8), 2) is None
