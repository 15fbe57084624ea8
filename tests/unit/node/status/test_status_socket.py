"""Tests of the status socket: it answers while the client port is not drained, a halted gateway still reads its clients' messages,
and each request gets one answer.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import cast

import pytest
from msgspec import json

from tests.unit.node.driver_harness import A, Bench, placed, submit, takes
from tests.unit.node.fakes import batch_frame
from tests.unit.node.status.test_reads_supervisor import wait_for
from tests.unit.node.status.test_status import Bench as Told
from tutti import limits as common_limits
from tutti.data.client_protocol import Duplicate
from tutti.data.lane_name import LaneName
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import Persist, ReadIndex
from tutti_gateway.core.protocol.events import ReadIndexAsked, Submitted, WriteFailed
from tutti_gateway.node.disk.lane_thread import LaneFacts
from tutti_gateway.node.status.status_socket import ReadIndexRequest, StatusRequest, StatusSocketServer
from tutti_gateway.reads.common.gateway_link import UNKNOWN, GatewayLink


def test_a_halted_gateway_reads_its_clients_messages_although_its_window_is_full() -> None:
    bench = Bench(undecided_bytes_max=1000)
    bench.hello()
    bench.answers[Submitted] = [Persist(1, (placed(batch_frame([b"x" * 900]), 1),))]
    bench.say(submit(A, batch_frame([b"x" * 900])))
    assert not takes(bench)
    bench.happen(WriteFailed("Input/output error"))
    assert takes(bench)
    bench.lookups.queued = [(1, [Duplicate(1, 1, 1, 1)] * limits.LOOKUPS_MAX)]
    assert not takes(bench)


def test_the_status_is_served_in_any_state_of_the_port() -> None:
    bench = Bench(undecided_bytes_max=0)
    assert not takes(bench)
    told: list[bytes] = []
    assert bench.happen(StatusRequest(told.append)) == []
    assert told == [b'{"state":"primary"}']


def test_the_socket_forwards_requests_from_before_it_opened_and_drops_unread_answers() -> None:
    asked: list[StatusRequest | ReadIndexRequest] = []
    with contextlib.closing(StatusSocketServer()) as desk, socket.socket(fileno=os.dup(desk.child_fd)) as reads:
        reads.settimeout(10)
        reads.send(b"question")
        desk.open(asked.append, lambda position: None)
        wait_for(lambda: bool(asked))
        answer = cast("StatusRequest", asked[0]).answer
        answer(b"{}")
        assert reads.recv(100) == b"question{}"
        for _ in range(10_000):  # more than the socket holds
            answer(b"x" * 100)
        reads.close()
    answer(b"late")


def test_a_position_that_could_not_be_read_is_handed_on() -> None:
    positions: list[int] = []
    lanes: list[bytes] = []
    with contextlib.closing(StatusSocketServer()) as desk, socket.socket(fileno=os.dup(desk.child_fd)) as reads:
        desk.open(lambda asked: None, positions.append, lanes.append)
        reads.send(b"damaged:" + (7).to_bytes(8, "little"))
        reads.send(b"lanebad:" + bytes(range(8)))
        wait_for(lambda: (positions, lanes) == ([7], [bytes(range(8))]))


def test_a_client_rejected_by_the_reads_process_is_counted_once() -> None:
    counted: list[tuple[str, int]] = []
    refused = {"unknown": 2}
    with contextlib.closing(StatusSocketServer()) as desk:
        desk.open(
            lambda asked: cast("StatusRequest", asked).answer(b"{}"),
            lambda position: None,
            refused=lambda reason, times: counted.append((reason, times)),
        )
        link = GatewayLink("tutti://127.0.0.1:1", os.dup(desk.child_fd), refused=lambda: refused)
        with contextlib.closing(link):
            assert link.status() == {}
            assert counted == [("unknown", 2)], "before the status is answered"
            refused["unknown"], refused["missing"] = 5, 1
            wait_for(lambda: link.status() == {} and len(counted) == 3)
    assert counted == [("unknown", 2), ("unknown", 3), ("missing", 1)]


def test_a_question_about_the_frontier_is_the_stacks_to_answer() -> None:
    bench = Bench()
    told: list[bool] = []
    bench.answers[ReadIndexAsked] = []
    bench.happen(ReadIndexRequest(told.append))
    assert bench.stack.events[-1] == ReadIndexAsked(1)
    assert told == []
    bench.answers[ReadIndexAsked] = [ReadIndex(2, True), ReadIndex(1, False)]
    bench.happen(ReadIndexRequest(told.append))
    assert told == [True, False]


def test_the_desk_hands_a_question_about_the_frontier_on_and_answers_it() -> None:
    with (
        contextlib.closing(StatusSocketServer()) as desk,
        contextlib.closing(GatewayLink("tutti://127.0.0.1:1", os.dup(desk.child_fd))) as link,
    ):
        desk.open(lambda asked: cast("ReadIndexRequest", asked).answer(True), lambda position: None)
        assert link.confirm()


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STATUS_WAIT_US_MAX", 60_000_000)


@pytest.mark.usefixtures("_patient")
def test_a_status_with_the_maximum_number_of_lanes_is_sent_completely() -> None:
    """Each disk that an origin ever had leaves a lane, for ever."""
    status = Told()
    for number in range(limits.LANES_MAX):
        lane = LaneName(1 + number % common_limits.ROSTER_MAX, os.urandom(16))
        status.lanes.facts[lane] = LaneFacts(number, 2**40 + number)
        status.lanes.damaged[lane] = f"{lane.text}/log/{number:020}.seg cannot be read at byte {number}"
    said = status.documents.status()
    assert len(said) > 4 * limits.STATUS_PLAIN_BYTES_MAX
    with contextlib.closing(StatusSocketServer()) as desk:
        desk.open(lambda asked: cast("StatusRequest", asked).answer(said), lambda position: None)
        with contextlib.closing(GatewayLink("tutti://127.0.0.1:1", os.dup(desk.child_fd))) as link:
            assert link.status() == json.decode(said), link.reason


@pytest.mark.usefixtures("_patient")
def test_an_answer_that_is_none_is_no_end_of_reads() -> None:
    with contextlib.closing(StatusSocketServer()) as desk:
        desk.open(lambda asked: cast("StatusRequest", asked).answer(b'{"state":'), lambda position: None)
        with contextlib.closing(GatewayLink("tutti://127.0.0.1:1", os.dup(desk.child_fd))) as link:
            assert link.state() == UNKNOWN
            assert "does not answer" in link.reason
