"""Tests of unknown peers: data from them, or from a process at a gateway's address, is neither stored nor shown as a gateway's, and
never blocks the socket thread.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import zmq

from tests.integration.transport.meshes import Node, run, town, with_keys
from tests.support.ports import free_ports
from tutti_gateway.core import limits
from tutti_gateway.transport.codec import Refusal, decode_refusal, encode_introduction, encode_refusal
from tutti_gateway.transport.interface import Introduction

pytestmark = pytest.mark.usefixtures("wire")

WAIT_MS = 20_000


@contextmanager
def socket_of(kind: int) -> Iterator[zmq.Socket[bytes]]:
    context = zmq.Context()
    socket = context.socket(kind)
    socket.linger = 0
    try:
        yield socket
    finally:
        socket.close()
        context.term()


def facts_of(node: Node) -> dict[str, Any]:
    return dict(node.transport.facts())


@pytest.mark.parametrize(
    "said",
    [
        {"address": "A" * (1 << 20)},
        {"gateway": "lga" * 100_000},
        {"release": "\x1b[31m", "protocol": 9},
        {"incarnation": b"short"},
    ],
)
def test_an_introduction_that_no_gateway_makes_is_neither_kept_nor_shown(said: dict[str, Any]) -> None:
    values: dict[str, Any] = {"group": "ingest", "gateway": "lga", "incarnation": b"l" * 16, "process": b"p" * 8, "address": "h:1"}
    with town() as place, socket_of(zmq.DEALER) as stranger:
        ports = free_ports(2)
        jfk = place.add("jfk", 1, f"127.0.0.1:{ports[0]}/{ports[1]}")
        with_keys(stranger, "lga", "jfk")
        stranger.connect(f"tcp://127.0.0.1:{ports[1]}")
        stranger.send(encode_introduction(Introduction(**values | said)))
        run([jfk], lambda: jfk.said)
        assert facts_of(jfk)["malformed"] == 1
        assert list(jfk.transport.inbound_peers()) == []  # type: ignore[attr-defined]  # it is a mesh
        assert all(len(line) < limits.REFUSAL_BYTES_MAX and line.isprintable() for line in jfk.said)
        assert stranger.poll(WAIT_MS)
        assert decode_refusal(stranger.recv()).reason  # it is told, too


def met_by(rogue: zmq.Socket[bytes], jfk: Node) -> bytes:
    """The gateway connects to what speaks at another one's address; the id of its connection."""
    with_keys(rogue, "lga")
    port = rogue.bind_to_random_port("tcp://127.0.0.1")
    jfk.transport.set_peers([(2, "lga", f"127.0.0.1:{free_ports(1)[0]}/{port}")])
    run([jfk], lambda: rogue.poll(0))
    return rogue.recv_multipart()[0]


def test_refusals_without_end_leave_the_socket_thread_its_turns() -> None:
    with town() as place, socket_of(zmq.ROUTER) as rogue:
        ports = free_ports(2)
        jfk = place.add("jfk", 1, f"127.0.0.1:{ports[0]}/{ports[1]}")
        rogue.sndhwm = 0
        jfk_there = met_by(rogue, jfk)
        for _ in range(10 * limits.REFUSALS_A_CHECK_MAX):
            rogue.send_multipart([jfk_there, b"R\xff"])
        read = [0]

        def one_turn() -> bool:
            jfk.transport.drain(256, 8 << 20)
            read.append(facts_of(jfk)["malformed"])
            return read[-1] == 10 * limits.REFUSALS_A_CHECK_MAX

        run([], one_turn)
        assert max(after - before for before, after in itertools.pairwise(read)) <= limits.REFUSALS_A_CHECK_MAX


@pytest.mark.parametrize("reason", ["x" * (1 << 20), "\x1b[2J"])
def test_a_refusal_that_no_gateway_sends_is_neither_stored_nor_shown(reason: str) -> None:
    with town() as place, socket_of(zmq.ROUTER) as rogue:
        ports = free_ports(2)
        jfk = place.add("jfk", 1, f"127.0.0.1:{ports[0]}/{ports[1]}")
        jfk_there = met_by(rogue, jfk)
        rogue.send_multipart([jfk_there, encode_refusal(Refusal(1, "ingest", "lga", reason))])
        run([jfk], lambda: facts_of(jfk)["malformed"] or facts_of(jfk)["peers"][0]["connects"] > 1)
        assert facts_of(jfk)["peers"][0]["refused"] == ""
        assert jfk.said == []
