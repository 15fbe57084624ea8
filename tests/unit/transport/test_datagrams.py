"""Tests of datagrams: messages are reassembled from datagrams that arrive in any order, twice or not at all, and incomplete
messages are bounded.
"""

from __future__ import annotations

import random

import pytest

from tutti_gateway.core import limits
from tutti_gateway.transport.multicast.datagrams import (
    BEACON,
    DATA,
    OVERHEAD_BYTES,
    Fragmenter,
    Reassembly,
    TokenBucket,
    group_hash,
    parse,
    split_runs,
    verified_payload,
)

GROUP = group_hash("g")
KEY = b"k" * 32
SIZE = limits.MULTICAST_DATAGRAM_BYTES_MIN
ROOM = SIZE - OVERHEAD_BYTES


def take(assembly: Reassembly, data: bytes, now_us: int = 0, key: bytes = b"") -> bytes | None:
    datagram = parse(data, GROUP)
    assert datagram is not None
    payload = verified_payload(data, key)
    assert payload is not None
    message = assembly.add(datagram, payload, now_us)
    return None if message is None else bytes(message)


@pytest.mark.parametrize("key", [b"", KEY])
@pytest.mark.parametrize("size", [0, 1, ROOM - 1, ROOM, ROOM + 1, 10 * ROOM, 123_456])
def test_a_split_message_is_reassembled(key: bytes, size: int) -> None:
    message = random.Random(size).randbytes(size)
    datagrams = Fragmenter("g", b"process1", key, SIZE).fragment(DATA, message)
    assert len(datagrams) == max(1, -(-size // ROOM))
    assert max(map(len, datagrams)) <= SIZE
    assembly = Reassembly()
    assert [take(assembly, data, key=key) for data in datagrams] == [None] * (len(datagrams) - 1) + [message]
    assert assembly.lost == 0


@pytest.mark.parametrize("seed", range(5))
def test_any_received_message_is_right_and_any_lost_one_is_counted(seed: int) -> None:
    chance = random.Random(seed)
    cutter = Fragmenter("g", b"process1", b"", SIZE)
    sent = [chance.randbytes(chance.choice((5, 400, 3000, 20_000))) for _ in range(300)]
    sent[0] = b"first"
    wire: list[tuple[float, bytes]] = []
    whole = set(range(300))
    for place, message in enumerate(sent):
        for data in cutter.fragment(DATA, message):
            if place and chance.random() < 0.01:
                whole.discard(place)
                continue
            copies = 1 + (chance.random() < 0.05)
            wire += [(place + chance.random() * 10 * (place > 0), data) for _ in range(copies)]
    assembly = Reassembly()
    came = [take(assembly, data, int(at)) for at, data in sorted(wire)]
    assert sorted(message for message in came if message is not None) == sorted(sent[place] for place in whole)
    for number in range(limits.MULTICAST_ASSEMBLY_MESSAGES_MAX + 1):  # what is not whole by now is pushed out
        take(assembly, cutter.fragment(DATA, bytes(2 * ROOM))[0], 10_000 + number)
    assert assembly.lost >= 300 - len(whole)


def test_incomplete_messages_are_bounded_in_number_bytes_and_age() -> None:
    cutter = Fragmenter("g", b"process1", b"", limits.MULTICAST_DATAGRAM_BYTES_MAX)
    assembly = Reassembly()
    large = limits.MULTICAST_PAYLOAD_BYTES_MAX
    halves = [cutter.fragment(DATA, bytes(large)) for _ in range(40)]
    for datagrams in halves:
        for data in datagrams[:-1]:
            take(assembly, data)
    assert take(assembly, halves[0][-1]) is None  # given up for the later ones
    assert take(assembly, halves[-1][-1]) == bytes(large)
    assert assembly.lost >= 40 - limits.MULTICAST_ASSEMBLY_BYTES_MAX // large - 1  # the first waits again, for what was dropped
    old = cutter.fragment(DATA, bytes(large))
    for data in old[:-1]:
        take(assembly, data, 0)
    take(assembly, cutter.fragment(DATA, bytes(large))[0], limits.MULTICAST_ASSEMBLY_US_MAX + 1)
    assert take(assembly, old[-1], limits.MULTICAST_ASSEMBLY_US_MAX + 2) is None


def test_a_duplicate_or_old_message_is_delivered_once() -> None:
    cutter = Fragmenter("g", b"process1", b"", SIZE)
    assembly = Reassembly()
    [first] = cutter.fragment(DATA, b"first")
    assert take(assembly, first) == b"first"
    assert take(assembly, first) is None
    for _ in range(limits.MULTICAST_WINDOW + 1):
        [data] = cutter.fragment(DATA, b"x")
    take(assembly, data)
    assert take(assembly, first) is None


def test_a_lost_last_message_shows_by_a_beacon() -> None:
    cutter = Fragmenter("g", b"process1", b"", SIZE)
    assembly = Reassembly()
    take(assembly, cutter.fragment(DATA, b"1")[0])
    cutter.fragment(DATA, b"2")
    assert assembly.lost == 0
    datagram = parse(cutter.fragment(BEACON, b"")[0], GROUP)
    assert datagram is not None
    assembly.update_highest(datagram.number)
    assert assembly.lost == 1


def test_a_late_listener_has_lost_nothing() -> None:
    cutter = Fragmenter("g", b"process1", b"", SIZE)
    for _ in range(100):
        cutter.fragment(DATA, b"x")
    assembly = Reassembly()
    assembly.update_highest(cutter.number)
    assert assembly.lost == 0
    assert take(assembly, cutter.fragment(DATA, b"y")[0]) == b"y"
    assert assembly.lost == 0


@pytest.mark.parametrize("key", [b"", KEY])
def test_one_wrong_bit_anywhere_is_detected(key: bytes) -> None:
    [data] = Fragmenter("g", b"process1", key, SIZE).fragment(DATA, b"message")
    for bit in range(len(data) * 8):
        wrong = bytearray(data)
        wrong[bit // 8] ^= 1 << bit % 8
        datagram = parse(wrong, GROUP)
        assert datagram is None or verified_payload(bytes(wrong), key) is None
    assert verified_payload(data, b"z" * 32) is None
    assert verified_payload(data[:-1], key) is None


def test_foreign_datagrams_are_ignored() -> None:
    chance = random.Random(1)
    [data] = Fragmenter("other", b"process1", b"", SIZE).fragment(DATA, b"message")
    assert parse(data, GROUP) is None
    assert parse(b"", GROUP) is None
    for _ in range(2000):
        parse(chance.randbytes(chance.randrange(100)), GROUP)
        [good] = Fragmenter("g", b"process1", b"", SIZE).fragment(DATA, b"message")
        wrong = bytearray(good)
        wrong[chance.randrange(40)] = chance.randrange(256)
        datagram = parse(wrong, GROUP)
        if datagram is not None:
            assert datagram.fragment < datagram.fragments <= 1 + datagram.size // ROOM
            assert datagram.size <= limits.MULTICAST_PAYLOAD_BYTES_MAX


def test_fragments_that_contradict_each_other_make_no_message() -> None:
    cutter = Fragmenter("g", b"process1", b"", SIZE)
    assembly = Reassembly()
    one = cutter.fragment(DATA, b"a" * 2 * ROOM)
    cutter.number -= 1
    other = cutter.fragment(DATA, b"b" * (2 * ROOM - 1))
    assert take(assembly, one[0]) is None
    assert take(assembly, other[1]) is None
    assert take(assembly, one[1]) == b"a" * 2 * ROOM


def test_the_pace_is_kept_and_the_largest_datagram_passes() -> None:
    pace = TokenBucket(1_000_000, 1000, 0)
    sent = [now for now in range(0, 1_000_000, 100) if pace.may_send(now) and not pace.spend(5000)]  # type: ignore[func-returns-value]  # for what it does
    assert 195 <= len(sent) <= 205
    assert pace.wait_us() > 0 or pace.may_send(1_000_000)


@pytest.mark.parametrize(
    ("sizes", "runs"),
    [([], []), ([5], [(0, 1)]), ([50], [(0, 1)]), ([4, 4, 4], [(0, 2), (2, 3)]), ([50, 1, 50], [(0, 1), (1, 2), (2, 3)])],
)
def test_frames_are_split_into_runs_of_one_at_least(sizes: list[int], runs: list[tuple[int, int]]) -> None:
    assert list(split_runs(sizes, 10)) == runs
