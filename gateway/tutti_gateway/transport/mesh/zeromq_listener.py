"""The group port with keys: one ROUTER, to which all other gateways send. ZeroMQ accepts whoever connects to it.

ZeroMQ takes connections as long as the system gives descriptors, and its `unbind` ends those that stand. So the socket that it
listens by is made here (`ZMQ_USE_FD`), and a descriptor of it is kept: a filter on it drops what begins a connection, nothing else.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct

import zmq

from tutti import limits as common_limits
from tutti.data.addresses import Address
from tutti.zmtp.listener import NONE_LEFT, open_port, spare_descriptors
from tutti_gateway.core import limits
from tutti_gateway.transport.mesh.backend import no_port
from tutti_gateway.transport.mesh.zeromq_connection import notice_silence
from tutti_gateway.transport.mesh.zeromq_zap import Door

#: Of Linux (asm-generic/socket.h); and a program of one instruction for it: return 0, which drops the packet.
_ATTACH_FILTER, _DETACH_FILTER = 26, 27
_DROP = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
_PROGRAM = struct.pack("HP", 1, ctypes.addressof(_DROP))


class GroupPort:
    """Where other gateways connect to. Owned by one thread.

    Attributes:
        socket: what they send.
        listening: whether connections are taken; those that are made stay either way.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], listen: Address, door: Door | None) -> None:
        """Open it at an address; with a door, who has a listed key comes in.

        Raises:
            TuttiError: the address cannot be bound, or no socket can be had.
        """
        self._context = context
        self._listen_at = listen
        self._door = door
        self.open()

    def open(self) -> None:
        """Open it, again after `close`.

        Raises:
            TuttiError: the address cannot be bound, or no socket can be had.
        """
        listen = self._listen_at
        with contextlib.ExitStack() as opened:
            try:
                taken = opened.enter_context(open_port(listen.host, listen.port, _backlog()))
                self._listener = opened.enter_context(taken.dup())
                self.socket = opened.enter_context(contextlib.closing(self._context.socket(zmq.ROUTER)))
                self._set_up(self.socket)
                self.socket.set(zmq.USE_FD, taken.fileno())
                self.socket.bind(f"tcp://{listen}")
            except (OSError, zmq.ZMQError) as error:
                raise no_port(listen, error.errno, error.strerror) from error
            taken.detach()  # ZeroMQ closes it
            opened.pop_all()
        self.listening = True

    def _set_up(self, router: zmq.Socket[bytes]) -> None:
        router.set(zmq.LINGER, limits.LINGER_MS_MAX)
        router.set(zmq.RCVHWM, limits.MESH_HIGH_WATER_MARK)
        router.set(zmq.SNDHWM, limits.MESH_STRANGERS_MAX)
        router.set(zmq.MAXMSGSIZE, common_limits.MESSAGE_BYTES_MAX)
        router.set(zmq.ROUTER_HANDOVER, 1)  # who connects again is the same, though its old connection was not given up yet
        router.set(zmq.HANDSHAKE_IVL, common_limits.HANDSHAKE_MS_MAX)
        notice_silence(router)
        router.set(zmq.IPV6, int(":" in self._listen_at.host))
        if self._door is not None:
            self._door.guard(router)

    def refuse(self) -> None:
        """Take no connections; who tries hears nothing. Those that wait to be accepted still do.

        Raises:
            OSError: this system has no such filters; connections are taken as before.
        """
        self._listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, _PROGRAM)
        self.listening = False

    def renew(self) -> None:
        """The limit of descriptors is another one."""
        self._listener.listen(_backlog())

    def turn_away(self) -> bool:
        """End who waits to be accepted; False if not all of them, for want of a descriptor."""
        return turned_away(self._listener)

    def listen(self) -> None:
        """Take connections again."""
        if not self.listening:
            self._listener.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)
        self.listening = True

    def close(self, linger_ms: int | None = None) -> None:
        """Stop; what was sent has a moment to leave, or `linger_ms`. ZeroMQ lets go of the address in its own time."""
        self._listener.close()
        self.socket.close(linger_ms)


def _backlog() -> int:
    """So many may wait to be accepted that ZeroMQ, which has each descriptor that is let go where it is faster, leaves some."""
    return min(limits.MESH_BACKLOG, spare_descriptors() // 2)


def turned_away(listener: socket.socket) -> bool:
    """End who waits there to be accepted; False if not all of them, for want of a descriptor."""
    while True:
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            return True
        except OSError as error:
            if error.errno in NONE_LEFT:
                return False
        else:
            connection.close()
