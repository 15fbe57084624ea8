"""Tests of batch validation: valid batches pass, invalid ones do not, and the refusal names the fault."""

from typing import Literal

import pytest

from tests.unit.node.fakes import batch_frame
from tutti import limits as common_limits
from tutti.data.frames.bodies import TxnBody, encode_body
from tutti.data.frames.frame import PROGRESS_BYTES_MAX, STAGED, Frame, Kind, payload_crc
from tutti.errors import FormatError, TooLarge
from tutti_gateway.core import limits
from tutti_gateway.node.clients.batch_validation import BatchValidator, check_body, check_header


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_good_batches_pass(compression: Literal["lz4", "zstd"] | None) -> None:
    frames = [batch_frame((b"a", None, b"c"), progress=b"here", compression=compression), batch_frame((b"",))]
    good, refused = BatchValidator().check(1, frames)
    assert good == frames
    assert refused == []


def test_the_largest_accepted_frame_is_within_the_bound_of_frames() -> None:
    frame = Frame(Kind.BATCH, bytes(common_limits.BODY_BYTES_MAX), progress=bytes(PROGRESS_BYTES_MAX), first_sequence=1, count=1)
    check_header(frame)
    assert frame.size <= limits.FRAME_BYTES_MAX


def check_frame(frame: Frame) -> None:
    check_header(frame)
    check_body(frame)


def broken(frame: Frame, **fields: object) -> Frame:
    for name, value in fields.items():
        setattr(frame, name, value)
    return frame


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"body_crc": 1}, "arrived corrupt"),
        ({"progress": b"other"}, "arrived corrupt"),
        ({"count": 0}, "is invalid: it needs"),
        ({"count": 3}, "the header has 3"),
        ({"first_sequence": 0}, "sequences start at 1"),
        ({"first_sequence": 2**63 - 1}, "is invalid: it needs"),
        ({"min_timestamp": 0}, "the header has 0"),
        ({"flags": 1}, "compression None"),
    ],
)
def test_inconsistent_batches_are_refused_by_name(fields: dict[str, object], what: str) -> None:
    with pytest.raises(FormatError, match=what):
        check_frame(broken(batch_frame((b"a", b"b")), **fields))


def transaction(*staged: int, counts: tuple[int, ...] = (2,), **fields: int) -> Frame:
    body = encode_body(TxnBody(staged, counts))
    return broken(Frame(Kind.TXN, body, producer=1, epoch=1, first_sequence=1, count=2, topic=1), **fields)


def test_transactions_pass_by_their_form() -> None:
    good, refused = BatchValidator().check(
        1, [transaction(5), transaction(9, 7, counts=(1, 1)), broken(batch_frame((b"a",)), flags=STAGED)]
    )
    assert (len(good), refused) == (3, [])
    wrong = [
        transaction(counts=()),
        transaction(5, 5, counts=(1, 1)),
        transaction(5, counts=(1,)),
        transaction(5, 6),
        transaction(5, flags=STAGED),
        transaction(5, raw_length=7),
        broken(Frame(Kind.TXN, b"\xc1", producer=1, epoch=1, first_sequence=1, count=2, topic=1)),
    ]
    good, refused = BatchValidator().check(1, wrong)
    assert (good, [answer.code for answer in refused]) == ([], ["malformed"] * len(wrong))


def test_a_lane_accepts_nothing_of_a_transaction() -> None:
    good, refused = BatchValidator().check(1, [transaction(5), broken(batch_frame((b"a",)), flags=STAGED)], lane=True)
    assert not good
    assert all("belongs to a transaction" in answer.reason for answer in refused)
    assert len(refused) == 2


def test_every_flipped_byte_is_found() -> None:
    frame = batch_frame((b"hello", b"world"))
    body = bytes(frame.body)
    for at in range(0, len(body), 7):
        damaged = bytearray(body)
        damaged[at] ^= 0x10
        with pytest.raises(FormatError, match="arrived corrupt"):
            check_frame(broken(batch_frame((b"hello", b"world")), body=bytes(damaged)))


def test_damage_with_a_fitting_crc_never_crashes() -> None:
    frame = batch_frame((b"hello", b"world"), compression="lz4")
    body = bytes(frame.body)
    refused = 0
    for at in range(len(body)):
        damaged = bytearray(body)
        damaged[at] ^= 0xFF
        changed = broken(batch_frame((b"hello", b"world"), compression="lz4"), body=bytes(damaged))
        changed.body_crc = payload_crc(b"", changed.body)
        try:
            check_frame(changed)
        except FormatError:
            refused += 1
    assert refused > len(body) // 4


def test_a_record_over_the_limit_is_refused_by_its_limit() -> None:
    with pytest.raises(TooLarge, match=str(common_limits.RECORD_BYTES_MAX)):
        check_frame(batch_frame((b"small", bytes(common_limits.RECORD_BYTES_MAX + 1))))
    check_frame(batch_frame((bytes(common_limits.RECORD_BYTES_MAX), bytes(common_limits.RECORD_BYTES_MAX - 4096))))


def test_a_batch_over_the_limit_is_refused_by_its_limit() -> None:
    with pytest.raises(TooLarge, match=str(common_limits.BODY_BYTES_MAX)):
        check_frame(batch_frame([bytes(common_limits.MIB)] * 9))
    with pytest.raises(TooLarge, match=str(common_limits.RAW_BYTES_MAX)):
        check_frame(broken(batch_frame(), raw_length=common_limits.RAW_BYTES_MAX + 1))


def test_a_bomb_is_refused_before_it_is_decompressed() -> None:
    bomb = batch_frame([bytes(common_limits.MIB)] * 40, compression="zstd")
    assert bomb.body_length < common_limits.MIB
    bomb.raw_length = 1
    with pytest.raises(FormatError, match="decompresses"):
        check_frame(bomb)


def test_refusals_carry_identity_and_code() -> None:
    good, refused = BatchValidator().check(1, [batch_frame(sequence=5), broken(batch_frame(sequence=6), body_crc=9)])
    assert [frame.first_sequence for frame in good] == [5]
    assert [(answer.producer, answer.epoch, answer.first_sequence, answer.code) for answer in refused] == [(1, 1, 6, "malformed")]


def test_no_client_has_more_decompressed_in_a_turn_than_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = [batch_frame([bytes(common_limits.MIB)] * 8, sequence=1 + 8 * number, compression="zstd") for number in range(4)]
    monkeypatch.setattr(limits, "INFLATED_BYTES_A_TURN_MAX", 20 * common_limits.MIB)
    gate = BatchValidator()
    good, refused = gate.check(1, frames)
    assert good == frames[:2]
    assert [(answer.first_sequence, answer.code, answer.retry) for answer in refused] == [(17, "busy", True), (25, "busy", True)]
    assert gate.check(2, frames[:2])[0] == frames[:2]
    gate.reset_budgets()
    assert gate.check(1, frames[2:])[0] == frames[2:]
