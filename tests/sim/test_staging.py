"""Proves that each checker of transactions fires: every promise is broken once on purpose."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim.staging import Staging
from tests.sim.violation import Violation
from tutti.data.frames.bodies import ForgetBody, TrimBody, TxnBody, encode_body
from tutti.data.frames.frame import STAGED, Frame, Kind
from tutti.data.log_state import LogState


def two() -> Staging:
    """Producer 1 has staged two records at position 7, and one at position 8."""
    staging = Staging()
    for position, tokens in ((7, ("s-1", "s-2")), (8, ("s-3",))):
        frame = Frame(Kind.BATCH, b"", flags=STAGED, producer=1, epoch=1, first_sequence=position, count=len(tokens), topic=1)
        frame.stamp(1 << 16 | 1, position, 0)
        staging.add(frame, tokens)
    return staging


def txn(*parts: tuple[int, int], first: int = 1, count: int = 0) -> Frame:
    body = TxnBody(tuple([position for position, _ in parts]), tuple([records for _, records in parts]))
    return Frame(Kind.TXN, encode_body(body), producer=2, epoch=1, first_sequence=first, count=count or sum(body.counts), topic=1)


def visible(*frames: Frame, staging: Staging | None = None) -> Staging:
    staging = staging or two()
    for frame in frames:
        staging.visible("g1", frame)
    return staging


def forgotten() -> Staging:
    staging = two()
    staging.let_go(Frame(Kind.FORGET, encode_body(ForgetBody((1,), 1))))
    return staging


def trimmed() -> Staging:
    staging = two()
    staging.let_go(Frame(Kind.TRIM, encode_body(TrimBody(8, 0))))
    return staging


def fenced() -> Staging:
    staging = two()
    staging.let_go(Frame(Kind.EPOCH, b"", producer=1, epoch=2))
    return staging


def failed() -> Staging:
    staging = two()
    staging.told_failed(2, 1, 1)
    return staging


def test_a_transaction_has_exactly_its_staged_batches_in_order() -> None:
    staging = two()
    assert staging.visible("g1", txn((8, 1), (7, 2))) == ["s-3", "s-1", "s-2"]
    assert (staging.open, staging.spent) == ({}, {7, 8})
    staging.told_committed(2, 1, 1)
    staging.told_staged("s-2", 8)
    staging.same("g1", LogState())


BROKEN: dict[str, Callable[[], object]] = {
    "spent": lambda: visible(txn((7, 2)), txn((7, 2), first=3)),
    "named twice": lambda: visible(txn((8, 1), (8, 1))),
    "never staged": lambda: visible(txn((9, 1))),
    "a part of a batch": lambda: visible(txn((7, 1))),
    "more records than it names": lambda: visible(txn((7, 2), count=3)),
    "of a producer that is forgotten": lambda: visible(txn((7, 2)), staging=forgotten()),
    "below the start": lambda: visible(txn((7, 2)), staging=trimmed()),
    "of an epoch that is over": lambda: visible(txn((7, 2)), staging=fenced()),
    "though it failed": lambda: visible(txn((7, 2)), staging=failed()),
    "failed though it is there": lambda: visible(txn((7, 2))).told_failed(2, 1, 1),
    "acknowledged and in no log": lambda: two().told_committed(2, 1, 1),
    "told another place": lambda: two().told_staged("s-3", 7),
    "staged twice": lambda: two().add(Frame(Kind.BATCH, b""), ("s-3",)),
    "states differ": lambda: two().same("g1", LogState()),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_promise_of_a_transaction_is_found(name: str) -> None:
    with pytest.raises(Violation):
        BROKEN[name]()
