"""Properties of message decoding: any bytes are a message or a FormatError, and use little memory until they are a message."""

from __future__ import annotations

import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.core.test_codec import all_messages
from tutti.errors import FormatError
from tutti_gateway.core.protocol import codec, messages
from tutti_gateway.core.protocol.messages import Message

small = st.integers(0, 5)
all_views = st.one_of(
    st.builds(messages.Heartbeat, sent_us=st.integers(0, 2**40), echo_us=st.integers(0, 2**50), misses=st.booleans()),
    st.builds(messages.Probe),
    st.builds(messages.Propose, small, st.just((1, 2, 3))),
    st.builds(messages.State, view=small, accepted=small, end=small, chain=small, frontier=small, base=small, table=st.just(())),
    st.builds(messages.Reject, small, small, st.text(max_size=3)),
    st.builds(messages.Install, view=small, members=st.just((1, 2, 3)), end=small, chain=small, base=small, table=st.just(())),
    st.builds(messages.Installed, small),
    st.builds(messages.Fetch, small, small, small),
    st.builds(messages.FetchSnapshot, small, small, small),
    st.builds(messages.FetchedSnapshot, view=small, position=small, size=small, at=small, data=st.binary(max_size=9), source=small),
    st.builds(messages.Fetched, view=small, first=small, frames=st.just(()), source=small, stop=small),
    st.builds(messages.Missing, small, st.just(((1, 2),)), small),
    st.builds(messages.Repairing, small, st.just(((1, 2),))),
    st.builds(messages.Repair, small, st.just(())),
)


@settings(max_examples=300)
@given(all_messages | all_views, st.data())
def test_bytes_are_a_message_or_a_format_error(message: Message, data: st.DataObject) -> None:
    good = codec.encode(message)
    at = data.draw(st.integers(0, len(good)))
    kind = data.draw(st.sampled_from(["cut", "set", "insert", "swap"]))
    junk = data.draw(st.binary(min_size=1, max_size=9) | st.sampled_from(sorted(JUNK)).map(JUNK.__getitem__))
    bad = {
        "cut": good[:at],
        "set": good[:at] + junk + good[at + len(junk) :],
        "insert": good[:at] + junk + good[at:],
        "swap": good[at:] + good[:at],
    }[kind]
    try:
        codec.encode(codec.decode_message(bad))
    except FormatError:
        return


#: What bytes can announce, and not hold.
JUNK = {
    "huge array": b"\xdd\xff\xff\xff\xff",
    "huge map": b"\xdf\xff\xff\xff\xff",
    "huge text": b"\xdb\xff\xff\xff\xff",
    "huge binary": b"\xc6\xff\xff\xff\xff",
    "deep": b"\x91" * 5000,
    "no text": b"\xa4\xff\xfe\xfd\xfc",
    "extension": b"\xc7\x05\x01abcde",
    "time": b"\xd6\xff\x00\x00\x00\x00",
    "zeros": b"\xc4\x60" + bytes(96),
    "a number instead of a frame": b"\x05",
    "a text instead of a frame": b"\xd9\x60" + b"T" * 96,
    "a map instead of a frame": b"\x81\x01\x02",
    "high": b"\xcf" + b"\xff" * 8,
    "low": b"\xd3\x80" + bytes(7),
    "never used": b"\xc1",
}


def test_a_large_announced_length_takes_little_memory() -> None:
    announced = b"\xdd\xff\xff\xff\xff"
    order = codec.encode(messages.Order(1, ()))
    assert order.count(b"\x90") == 1
    tracemalloc.start()
    for bad in (order.replace(b"\x90", announced), announced, order.replace(b"\x90", b"\xdf\xff\xff\xff\xff")):
        try:
            codec.decode_message(bad)
        except FormatError:
            continue
        raise AssertionError(f"{bad!r} is no message")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000
