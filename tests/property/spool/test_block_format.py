"""Properties of spool segments: the blocks that are read are those that were written, or none, for any truncation and any changed
byte.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from tutti.batching.receipt import SpoolPosition
from tutti.data.frames.frame import payload_crc
from tutti.errors import Damaged, FormatError, Refused
from tutti.spool.block_format import (
    HEAD_BYTES,
    Block,
    BlockIterator,
    Head,
    decode_head,
    encode_block,
    encode_head,
    find_block_heads,
    is_torn,
    seed_of,
)
from tutti.spool.commit_mark import EpochStart, State, committed_position, decode_mark, decode_state, encode_mark, encode_state

NUMBER, SPOOL = 7, b"s" * 16
SEED = seed_of(SPOOL, NUMBER)

contents = st.lists(st.tuples(st.binary(max_size=300), st.integers(1, 50), st.binary(max_size=40), st.booleans()), max_size=12)


def segment_of(some: list[tuple[bytes, int, bytes, bool]]) -> tuple[bytes, list[Block]]:
    """A segment, each block synced alone, and its blocks."""
    data, blocks, records = encode_head(Head(NUMBER, SPOOL, 1, 2, b"p")), [], 0
    for body, count, progress, whole in some:
        records += count
        crc = payload_crc(progress, body)
        block = Block(
            SpoolPosition(NUMBER, records), "topic", progress, body, 2, whole, count, 3, crc, -1, 5, len(data), len(data), 0
        )
        parts = encode_block(block, SEED)
        data += b"".join(parts)
        blocks.append(block)
    return data, blocks


def fetching(data: bytes) -> Callable[[int, int], bytes]:
    return lambda size, at: data[at : at + size]


def told(block: Block) -> tuple[object, ...]:
    return (
        block.position,
        block.topic,
        block.progress,
        bytes(block.body),
        block.flags,
        block.atomic,
        block.crc,
        block.synced,
        block.start,
    )


def read(data: bytes) -> list[tuple[object, ...]]:
    """All that can be read from the begin on."""
    walk, found = BlockIterator(fetching(data), NUMBER, SEED), []
    with suppress(FormatError):
        for block in walk:
            found.append(told(block))  # noqa: PERF401 - what came before an error counts too
    return found


@given(contents)
def test_written_blocks_are_read(some: list[tuple[bytes, int, bytes, bool]]) -> None:
    data, blocks = segment_of(some)
    assert decode_head(data[:HEAD_BYTES]) == Head(NUMBER, SPOOL, 1, 2, b"p")
    assert read(data) == [told(block) for block in blocks]
    assert [head.position for head in find_block_heads(fetching(data), HEAD_BYTES, len(data), NUMBER, SEED)] == [
        one.position for one in blocks
    ]
    assert BlockIterator(fetching(data), NUMBER, seed_of(SPOOL, NUMBER + 1)).at == HEAD_BYTES


@settings(max_examples=60)
@given(contents.filter(bool), st.data())
def test_a_torn_end_gives_a_prefix_and_is_recognised_as_torn(
    some: list[tuple[bytes, int, bytes, bool]], data: st.DataObject
) -> None:
    whole, blocks = segment_of(some)
    at = data.draw(st.integers(HEAD_BYTES, len(whole)))
    part = whole[:at] + data.draw(st.sampled_from([b"", bytes(20), b"TSB1" * 30]))
    found = read(part)
    assert found == [told(block) for block in blocks][: len(found)]
    assert len(found) >= sum(block.synced <= at for block in blocks) - 1
    end = blocks[len(found)].start if len(found) < len(blocks) else len(whole)
    assert is_torn(fetching(part), end, len(part), NUMBER, SEED)


@settings(max_examples=60)
@given(contents.filter(bool), st.data())
def test_a_changed_byte_is_found_and_is_not_a_torn_end_before_another_block(
    some: list[tuple[bytes, int, bytes, bool]], data: st.DataObject
) -> None:
    whole, blocks = segment_of(some)
    at = data.draw(st.integers(HEAD_BYTES, len(whole) - 1))
    spoilt = bytearray(whole)
    spoilt[at] ^= data.draw(st.integers(1, 255))
    hit = max(number for number, block in enumerate(blocks) if block.start <= at)
    assert read(bytes(spoilt)) == [told(block) for block in blocks][:hit]
    assert is_torn(fetching(bytes(spoilt)), blocks[hit].start, len(whole), NUMBER, SEED) == (hit == len(blocks) - 1)


@given(st.binary(max_size=600), st.integers(0, 511), st.integers(1, 255))
def test_heads_and_states_that_are_changed_are_refused(noise: bytes, at: int, change: int) -> None:
    state = State(SPOOL, "jfk", log="a" * 32, aside=(SpoolPosition(1, 2),), since=EpochStart(1, 2, b"\xff"))
    assert decode_state(encode_state(state)) == state
    for data, decode in ((encode_head(Head(NUMBER, SPOOL, 1, 2, b"p")), decode_head), (encode_state(state), decode_state)):
        spoilt = bytearray(data)
        spoilt[at % len(data)] ^= change
        for wrong in (bytes(spoilt), data[: at % len(data)], noise):
            try:
                decode(wrong)
            except (FormatError, Damaged):
                continue
            raise AssertionError(f"{wrong!r} was taken")


places = st.builds(SpoolPosition, st.integers(0, 6), st.integers(0, 6))


@given(places, st.binary(max_size=220), st.binary(max_size=256))
def test_marks_round_trip(place: SpoolPosition, progress: bytes, plain: bytes) -> None:
    mark, own = decode_mark(encode_mark(SPOOL, place, progress))
    assert mark == (SPOOL, place)
    assert own == progress
    if not plain.startswith(b"\0TSP"):
        assert decode_mark(plain) == (None, plain)


@given(places, places, st.integers(0, 6), st.dictionaries(st.integers(1, 6), st.integers(0, 6)), st.booleans())
def test_the_log_position_is_used_only_if_it_belongs_to_this_spool(
    known: SpoolPosition, there: SpoolPosition, sent: int, counts: dict[int, int], ours: bool
) -> None:
    state = State(SPOOL, "jfk", known=known, done=known, sent=sent)
    word = EpochStart(1, 9, encode_mark(SPOOL if ours else b"t" * 16, there, b""))
    try:
        place = committed_position(state, word, counts)
    except Refused:
        if ours:
            assert there < known or there.records > counts.get(there.segment, 6) or there.segment > max(counts, default=0)
        else:
            assert any(number <= sent and count and SpoolPosition(number, count) > known for number, count in counts.items())
        return
    assert place == (there if ours else known)
