"""Tests of the client port: it receives complete messages within its bounds, reports where answers went, and can reopen."""

import contextlib
import select
import time
from collections.abc import Iterator
from typing import Protocol

import pytest
import zmq

from tests.support.ports import free_port
from tutti import limits as common_limits
from tutti_gateway.core import limits
from tutti_gateway.node.clients.port import ClientPort, Message, SendResult
from tutti_gateway.node.common.port_check import PortInUse


@pytest.fixture
def port() -> Iterator[ClientPort]:
    port = ClientPort("127.0.0.1", 0)
    yield port
    port.close()


class Connect(Protocol):
    """Connects a client."""

    def __call__(self, where: str, receive_high_water_mark: int = 1000) -> zmq.Socket[bytes]:
        """A DEALER connected to an endpoint."""


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Makes DEALERs that are closed at the end."""
    context = zmq.Context()
    with contextlib.ExitStack() as sockets:

        def dealer(where: str, receive_high_water_mark: int = 1000) -> zmq.Socket[bytes]:
            socket = context.socket(zmq.DEALER)
            sockets.callback(socket.close, 0)
            socket.set(zmq.RCVHWM, receive_high_water_mark)
            socket.connect(where)
            return socket

        yield dealer
    context.term()


def endpoint(port: ClientPort) -> str:
    return f"tcp://127.0.0.1:{port.number}"


def _something(port: ClientPort, timeout_ms: int = 100) -> bool:
    poll = select.poll()
    poll.register(port.fd, select.POLLIN)
    return bool(poll.poll(timeout_ms))


def drained(port: ClientPort, count: int, messages_max: int = 100, bytes_max: int = 1 << 30) -> list[Message]:
    got: list[Message] = []
    deadline = time.monotonic() + 10
    while len(got) < count and time.monotonic() < deadline:
        _something(port)
        got.extend(port.drain(messages_max, bytes_max))
    return got


def test_parts_arrive_together_and_in_order(port: ClientPort, connect: Connect) -> None:
    client = connect(endpoint(port))
    client.send_multipart([b"S1", b"body" * 1000, b""])
    client.send(b"C2")
    first, second = drained(port, 2)
    assert [bytes(part) for part in first.parts] == [b"S1", b"body" * 1000, b""]
    assert first.size == 4002
    assert [bytes(part) for part in second.parts] == [b"C2"]
    assert first.routing == second.routing


def test_a_drain_takes_no_more_messages_than_its_limit(port: ClientPort, connect: Connect) -> None:
    most = 4
    client, drains = connect(endpoint(port)), [0]
    deadline = time.monotonic() + 10
    while max(drains) < most and time.monotonic() < deadline:
        for _ in range(10):
            client.send(bytes(100_000))  # of smaller ones all are taken that one system call brings
        while _something(port):
            drains.append(len(port.drain(most, 1 << 30)))
    assert max(drains) == most


def test_a_message_of_too_many_parts_is_emptied_and_the_next_one_is_whole(port: ClientPort, connect: Connect) -> None:
    client = connect(endpoint(port))
    client.send_multipart([b"x"] * (common_limits.FRAMES_A_MESSAGE_MAX + 5))
    client.send_multipart([b"y"] * (common_limits.FRAMES_A_MESSAGE_MAX + 1))
    many, most = drained(port, 2)
    assert many.parts == []
    assert len(most.parts) == common_limits.FRAMES_A_MESSAGE_MAX + 1


def test_parts_that_are_too_large_in_sum_are_dropped(port: ClientPort, connect: Connect) -> None:
    client = connect(endpoint(port))
    client.send_multipart([bytes(common_limits.MESSAGE_BYTES_MAX // 2)] * 3)
    (message,) = drained(port, 1)
    assert message.parts == []
    assert message.size > common_limits.MESSAGE_BYTES_MAX


def test_answers_report_where_they_went(port: ClientPort, connect: Connect) -> None:
    client = connect(endpoint(port))
    client.send(b"hi")
    (message,) = drained(port, 1)
    assert port.send(message.routing, b"there") is SendResult.SENT
    assert client.poll(5000)
    assert client.recv() == b"there"
    assert port.send(b"nobody", b"there") is SendResult.DISCONNECTED


def test_a_zeromq_identity_does_not_identify_a_client(port: ClientPort) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as one, context.socket(zmq.DEALER) as other:
        for number, client in enumerate((one, other)):
            client.linger = 0
            client.set(zmq.ROUTING_ID, b"feeder-1")
            client.connect(endpoint(port))
            client.send(b"%d" % number)
        first, second = drained(port, 2)
        assert first.routing != second.routing
        assert {port.send(first.routing, b"there"), port.send(second.routing, b"there")} == {SendResult.SENT}


def test_a_client_that_does_not_read_costs_a_bounded_queue(port: ClientPort, connect: Connect) -> None:
    client = connect(endpoint(port), 1)
    client.send(b"hi")
    (message,) = drained(port, 1)
    outcomes = [port.send(message.routing, bytes(8 * 1024)) for _ in range(limits.SEND_HIGH_WATER_MARK + 2000)]
    assert outcomes[0] is SendResult.SENT
    assert outcomes[-1] is SendResult.FULL


def test_clients_that_do_not_read_cost_bounded_memory_together(port: ClientPort, connect: Connect) -> None:
    clients = [connect(endpoint(port), 1) for _ in range(4)]
    for client in clients:
        client.send(b"hi")
    routings = [message.routing for message in drained(port, 4)]
    outcomes = [port.send(routing, bytes(1 << 20)) for _ in range(limits.CLIENT_ANSWERS_BYTES_MAX >> 21) for routing in routings]
    assert SendResult.DISCONNECTED in outcomes
    (told,) = port.maintain(reads=True)
    assert "unread answers on the client port exceed" in told


def test_a_port_in_use_is_one_sentence(port: ClientPort) -> None:
    number = int(endpoint(port).rpartition(":")[2])
    with pytest.raises(PortInUse, match=f"port {number} on 127.0.0.1 .* is in use"):
        ClientPort("127.0.0.1", number)


def test_reopening_drops_queued_messages_and_listens_again(connect: Connect) -> None:
    number = free_port()
    port = ClientPort("127.0.0.1", number)
    client = connect(f"tcp://127.0.0.1:{number}")
    client.send(b"before")
    drained(port, 1)
    with client.get_monitor_socket(zmq.EVENT_DISCONNECTED) as monitor:
        port.reopen()
        assert monitor.poll(10_000)  # what is sent before goes where nobody reads any more
        client.disable_monitor()
    client.send(b"after")
    assert [bytes(message.parts[0]) for message in drained(port, 1)] == [b"after"]
    port.close()
    port.close()
