"""Tests of the link to the gateway: requests to it are rare, and its silence delays callers only briefly."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from tests.support.reads_process import FakeGateway
from tests.support.waiting import wait_until
from tutti.errors import Refused, Unavailable
from tutti_gateway.core import limits
from tutti_gateway.reads.common import gateway_link as gateway_module
from tutti_gateway.reads.common.gateway_link import GatewayLink


@pytest.fixture
def link(gateway: FakeGateway) -> Iterator[GatewayLink]:
    link = GatewayLink(gateway.url, os.dup(gateway.status_fd))
    yield link
    link.close()


def test_one_answer_serves_all_concurrent_requests(
    gateway: FakeGateway, link: GatewayLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STATUS_FRESH_US", 60_000_000)
    monkeypatch.setattr(limits, "STATUS_WAIT_US_MAX", 60_000_000)
    told: list[object] = []
    callers = [threading.Thread(target=lambda: told.append(link.status())) for _ in range(20)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(20)
    assert len(told) == 20
    assert all(isinstance(status, dict) and status["state"] == "primary" for status in told)
    assert gateway.asked == 1
    assert link.state() == "primary"


def test_cached_answers_are_a_moment_old_at_most(gateway: FakeGateway, link: GatewayLink) -> None:
    wait_until(lambda: link.state() == "primary")
    gateway.state = "halted"
    wait_until(lambda: link.state() == "halted")
    wait_until(lambda: (link.status() or {}).get("state") == "halted")


def test_silence_is_reported_and_ends(gateway: FakeGateway, link: GatewayLink, monkeypatch: pytest.MonkeyPatch) -> None:
    assert link.status() is not None
    gateway.state = None
    wait_until(lambda: link.status() is None)
    assert "did not answer within 1 s" in link.reason
    assert link.state() == "unknown"
    with pytest.raises(Unavailable):
        link.save_offset("spark", 5)
    gateway.state = "primary"
    wait_until(lambda: link.status() is not None)
    assert link.reason == ""
    gateway.denies = "space"
    with pytest.raises(Refused, match="not now"):
        link.save_offset("spark", 5)


def test_commits_wait_in_order_within_their_deadline_and_abandoned_ones_are_not_sent(
    gateway: FakeGateway, link: GatewayLink
) -> None:
    link.save_offset("spark", 1)
    ended: list[float] = []
    began = time.monotonic()

    def save(offset: int, given_up: Callable[[], bool]) -> None:
        with pytest.raises(Unavailable):
            link.save_offset("spark", offset, is_cancelled=given_up)
        ended.append(time.monotonic() - began)

    gateway.state = None
    savers = [threading.Thread(target=save, args=(offset, bool)) for offset in range(20, 40)]
    savers += [threading.Thread(target=save, args=(9, lambda: True))]
    for saver in savers:
        saver.start()
    wait_until(lambda: bool(ended))
    for saver in savers:
        saver.join(20)
    assert len(ended) == 21
    assert max(ended) < 15  # and not a second for each
    gateway.state = "primary"
    with pytest.raises(Unavailable, match="given up"):
        link.save_offset("spark", 9, is_cancelled=lambda: True)
    link.save_offset("spark", 50)
    assert 9 not in [offset for _, offset in gateway.saved]


def test_a_status_request_waits_only_for_the_first_answer(
    gateway: FakeGateway, link: GatewayLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STATUS_WAIT_US_MAX", 4_000_000)
    gateway.state = None
    asking = threading.Thread(target=link.status)
    asking.start()
    wait_until(link._status_lock.locked)
    began = time.monotonic()
    assert link.state() == "unknown"
    assert time.monotonic() - began < 3
    asking.join(20)


def test_an_answer_for_another_request_is_ignored(gateway: FakeGateway, link: GatewayLink, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reads process that died may have left an answer in the socket."""
    monkeypatch.setattr(limits, "STATUS_WAIT_US_MAX", 60_000_000)
    gateway.state = "halted"
    with socket.socket(fileno=os.dup(gateway.status_fd)) as dead:
        dead.send(b"deadbeef")
        wait_until(lambda: gateway.asked == 1)
    gateway.state = "primary"
    assert (link.status() or {})["state"] == "primary"


def test_a_removed_gateway_is_ignored(gateway: FakeGateway, link: GatewayLink) -> None:
    gateway._desk._socket.shutdown(socket.SHUT_RDWR)
    assert link.status() is None
    assert "does not answer" in link.reason


def test_concurrent_callers_share_one_request_for_the_frontier(gateway: FakeGateway, link: GatewayLink) -> None:
    assert link.confirm()
    gateway.confirms = False
    assert not link.confirm()
    gateway.confirms, gateway.holds = True, True
    answers: list[bool] = []
    callers = [threading.Thread(target=lambda: answers.append(link.confirm())) for _ in range(20)]
    for caller in callers:
        caller.start()
    wait_until(lambda: len(link._confirming._waiters) == 19)  # type: ignore[attr-defined]  # who waits for the question under way
    assert gateway.indexes == 3
    assert link.status() is not None  # it waits for no frontier
    gateway.holds = False
    gateway.held.pop()(True)
    for caller in callers:
        caller.join(20)
    assert answers == [True] * 20
    assert gateway.indexes == 4


def test_a_gateway_that_does_not_answer_confirms_nothing(
    gateway: FakeGateway, link: GatewayLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "READ_INDEX_US_MAX", 10_000)
    gateway.confirms = None
    assert not link.confirm()
    assert not GatewayLink(gateway.url, None).confirm()


class SilentSocket:
    """A status socket that leaves requests unanswered on demand."""

    def __init__(self) -> None:
        self.waits_us: list[int] = []
        self.over = threading.Semaphore(0)

    def request(self, word: bytes, wait_us: int) -> bytes:
        self.waits_us.append(wait_us)
        self.over.acquire()
        raise TimeoutError

    def close(self) -> None: ...


def test_a_caller_waits_no_longer_than_its_own_time_for_the_question_before_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    link = GatewayLink("tutti://127.0.0.1:1", None)
    asked = SilentSocket()
    monkeypatch.setattr(link, "_socket", asked)
    first = threading.Thread(target=link.confirm, daemon=True)
    first.start()
    wait_until(lambda: len(asked.waits_us) == 1)
    monkeypatch.setattr(limits, "READ_INDEX_US_MAX", 10_000)
    answers: list[bool] = []
    second = threading.Thread(target=lambda: answers.append(link.confirm()), daemon=True)
    second.start()
    second.join(20)
    assert answers == [False]
    assert len(asked.waits_us) == 1  # that one is still under way
    asked.over.release()
    first.join(20)


def test_the_next_question_has_the_time_that_is_left_to_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(gateway_module, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(limits, "READ_INDEX_US_MAX", 60_000_000)
    link = GatewayLink("tutti://127.0.0.1:1", None)
    asked = SilentSocket()
    monkeypatch.setattr(link, "_socket", asked)
    answers: list[bool] = []
    callers = [threading.Thread(target=lambda: answers.append(link.confirm()), daemon=True) for _ in range(3)]
    callers[0].start()
    wait_until(lambda: len(asked.waits_us) == 1)
    now_s = 110.0
    for caller in callers[1:]:
        caller.start()
    wait_until(lambda: len(link._confirming._waiters) == 2)  # type: ignore[attr-defined]  # who waits for the question under way
    now_s = 160.0
    asked.over.release(2)
    for caller in callers:
        caller.join(20)
    assert answers == [False] * 3
    assert asked.waits_us == [60_000_000, 10_000_000]
