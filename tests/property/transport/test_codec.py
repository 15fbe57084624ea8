"""Properties of the wire codec: every message decodes to what was encoded, in either form, and other bytes are refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.property.core.test_codec import all_messages
from tutti.data.frames.frame import Frame, Kind
from tutti.errors import FormatError
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.messages import Fetched, Forward, Message, Order, Vote
from tutti_gateway.transport.codec import (
    Refusal,
    decode,
    decode_introduction,
    decode_refusal,
    encode,
    encode_introduction,
    encode_refusal,
)
from tutti_gateway.transport.interface import Introduction

INTRODUCTION = Introduction(release="1", group="g", gateway="jfk", incarnation=b"i" * 16, process=b"p" * 8, address="h:1")


def frame(size: int, *, progress: bytes = b"", placed: bool = True) -> Frame:
    made = Frame(Kind.BATCH, bytes(range(256)) * (size // 256) + bytes(size % 256), progress=progress, producer=1, epoch=1, count=1)
    if placed:
        made.stamp(1 << 16 | 1, 7, 3)
    return made


@given(all_messages)
def test_every_message_round_trips(message: Message) -> None:
    parts = encode(message)
    again = decode([bytes(part) for part in parts])
    assert again == message


@given(st.lists(st.integers(0, 3 * limits.JOINED_BODY_BYTES_MAX), min_size=1, max_size=5), st.binary(max_size=20), st.booleans())
def test_frames_of_any_size_come_as_they_were_and_large_bodies_are_not_copied(
    sizes: list[int], progress: bytes, placed: bool
) -> None:
    frames = tuple(frame(size, progress=progress, placed=placed) for size in sizes)
    parts = encode(Order(9, frames) if placed else Forward(9, frames))
    large = [one.body for one in frames if one.body_length > limits.JOINED_BODY_BYTES_MAX]
    assert len(parts) == 1 + len(large)
    assert all(part is body for part, body in zip(parts[1:], large, strict=True))
    again = decode([memoryview(bytes(part)) for part in parts])
    assert isinstance(again, Order | Forward)
    assert again.frames == frames


@given(all_messages, st.data())
def test_truncated_flipped_or_split_differently_it_is_refused_or_another_message(message: Message, data: st.DataObject) -> None:
    parts = [bytearray(part) for part in encode(message)]
    which = data.draw(st.integers(0, len(parts) - 1))
    if data.draw(st.booleans()) and parts[which]:
        parts[which][data.draw(st.integers(0, len(parts[which]) - 1))] ^= data.draw(st.integers(1, 255))
    elif data.draw(st.booleans()):
        parts[which] = parts[which][: data.draw(st.integers(0, len(parts[which])))]
    else:
        parts.insert(which, bytearray(data.draw(st.binary(max_size=200))))
    with contextlib.suppress(FormatError):
        decode([bytes(part) for part in parts])


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=4))
def test_any_bytes_are_refused_or_a_message(parts: list[bytes]) -> None:
    with contextlib.suppress(FormatError):
        decode([bytes(part) for part in parts])
    for other in (decode_introduction, decode_refusal):
        with contextlib.suppress(FormatError):
            other(parts[0])


def test_handshakes_and_refusals_round_trip() -> None:
    assert decode_introduction(encode_introduction(INTRODUCTION)) == INTRODUCTION
    refusal = Refusal(1, "g", "jfk", "another group")
    assert decode_refusal(encode_refusal(refusal)) == refusal


def test_a_refusal_that_no_gateway_makes_is_malformed() -> None:
    for reason in ("x" * limits.REFUSAL_BYTES_MAX, "\x1b[31m"):
        with pytest.raises(FormatError):
            decode_refusal(encode_refusal(Refusal(1, "g", "jfk", reason)))


def test_as_many_frames_as_a_fetch_may_bring_come_as_they_were() -> None:
    frames = [frame(0) for _ in range(limits.FETCHED_FRAMES_MAX - 1)]
    fetched = Fetched(view=0, first=7, frames=(*frames, frame(100_000)), source=9, stop=7)
    assert decode(encode(fetched)) == fetched


def test_a_message_without_frames_is_small() -> None:
    assert len(encode(Vote(1 << 16 | 1, 1_000_000))[0]) < 40
