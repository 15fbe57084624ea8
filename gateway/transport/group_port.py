"""The group port: one ROUTER, to which all other gateways send."""

from __future__ import annotations

import zmq

from gateway.core import limits
from gateway.data.addresses import Address
from gateway.errors import TuttiError
from gateway.transport.security import Door
from gateway.transport.zeromq_line import notice_silence


def bind(context: zmq.Context[zmq.Socket[bytes]], listen: Address, door: Door | None) -> zmq.Socket[bytes]:
    """Open it at an address; with a door, who has a listed key comes in.

    Raises:
        TuttiError: the address cannot be bound, or no socket can be had.
    """
    try:
        socket = context.socket(zmq.ROUTER)
    except zmq.ZMQError as error:
        raise TuttiError(f"no socket can be had for the group port: {error.strerror}; raise the limit of open files") from error
    socket.set(zmq.LINGER, limits.LINGER_MS_MAX)
    socket.set(zmq.RCVHWM, limits.MESH_HIGH_WATER_MARK)
    socket.set(zmq.SNDHWM, limits.MESH_STRANGERS_MAX)
    socket.set(zmq.MAXMSGSIZE, limits.MESSAGE_BYTES_MAX)
    socket.set(zmq.ROUTER_HANDOVER, 1)  # who connects again is the same, though its old connection was not given up yet
    socket.set(zmq.HANDSHAKE_IVL, limits.HANDSHAKE_MS_MAX)
    notice_silence(socket)
    socket.set(zmq.IPV6, int(":" in listen.host))
    if door is not None:
        door.guard(socket)
    try:
        socket.bind(f"tcp://{listen}")
    except zmq.ZMQError as error:
        socket.close(0)
        raise TuttiError(
            f"the group port {listen} cannot be opened: {error.strerror}; end who holds it, or set `listen` or "
            "`ports.group` to an address of this host that is free"
        ) from error
    return socket
