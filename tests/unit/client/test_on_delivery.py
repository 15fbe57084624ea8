"""What an application's callback may do to the thread that calls it."""

from __future__ import annotations

import sys

import pytest

from gateway.client.producer import Producer
from gateway.client.receipt import Receipt
from gateway.errors import TuttiError, Unknown
from tests.unit.client.fake import FakeGateway


def test_a_callback_that_exits_stops_no_outcome(caplog: pytest.LogCaptureFixture) -> None:
    """`sys.exit()` is no `Exception`: it would end the producer's thread in silence, and nothing had an outcome any more."""
    called = []

    def leave(error: TuttiError | None, receipt: Receipt) -> None:
        called.append(receipt.offset)
        sys.exit(1)

    with FakeGateway() as gateway, Producer(gateway.url) as p:
        assert p.send("t", b"0", on_delivery=leave).result(10) == 0
        assert p.send("t", b"1", on_delivery=leave).result(10) == 1
        assert p.send("t", b"2").result(10) == 2
        assert p.flush(10) == 0
    assert called == [0, 1]
    assert "on_delivery of a record to topic t raised" in caplog.text


@pytest.mark.parametrize("fault", [SystemExit(1), ValueError("a defect")])
def test_whatever_ends_the_thread_is_told_to_who_waits(fault: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeGateway() as gateway, Producer(gateway.url) as p:
        assert p.send("t", b"0").result(10) == 0

        def fail(now: float) -> None:
            raise fault

        monkeypatch.setattr(p._delivery, "work", fail)
        with pytest.raises(Unknown, match="ended by a fault of its own"):
            p.send("t", b"1").result(10)
