"""The UDP socket of a multicast group."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Sequence
from ipaddress import IPv4Address

from tutti.data.member_address import Address
from tutti.errors import ConfigError, TuttiError
from tutti_gateway.core import limits

# Python's `socket` module lacks these constants of the Linux headers.
_SO_RCVBUFFORCE, _SO_SNDBUFFORCE, _SO_MEMINFO = 33, 32, 55
_IP_MULTICAST_ALL = 49
_MEMINFO = struct.Struct("=9I")
_DROPS = 8
_MREQN = struct.Struct("=4s4si")
_SOL_UDP, _UDP_SEGMENT, _UDP_GRO = 17, 103, 104  # options to send and to receive several datagrams in one call
_SEGMENT, _GRO = struct.Struct("=H"), struct.Struct("=i")
# the kernel limits all segments of one call together to the size of one UDP datagram, 65,507 bytes
_RUN_BYTES_MAX = 60_000
RUN_MAX = 48  # the kernel accepts 64 segments per call
_RECEIVE_BYTES = 65_536
_ANCILLARY_BYTES = 64


class MulticastSocket:
    """A socket of one multicast group on one interface. Other gateways on this host also receive the datagrams that it sends.

    Attributes:
        run_bytes_max: largest total size of the datagrams in one call, 0 if the kernel does not support several in one call.
        not_sent: number of datagrams that the kernel refused.
        receive_bytes, send_bytes: sizes of the kernel's buffers.
    """

    def __init__(self, group: Address, interface: str, ttl: int) -> None:
        """Open the socket.

        Args:
            group: IPv4 multicast address, and port.
            interface: name (`eth0`) or IPv4 address of the interface, empty for the interface of the default route.
            ttl: time to live of a datagram, in hops.

        Raises:
            ConfigError: the interface does not exist.
            TuttiError: the system does not permit the socket or one of its options.
        """
        self.group = (group.host, group.port)
        request = _MREQN.pack(socket.inet_aton(group.host), *_interface(interface))
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            # Several gateways on one host bind the same group and port, and each of them gets a copy of every datagram.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Without this option, the socket would also get datagrams of groups that other processes of this host have joined.
            self.socket.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
            # A socket that is bound to the group's address gets no unicast datagrams, unlike one bound to the wildcard address.
            self.socket.bind(self.group)
            self.socket.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, request)
            self.socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, request)
            self.socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, ttl)
            self.socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)  # for several gateways on one host
        except OSError as error:
            self.socket.close()
            raise TuttiError(
                f"the multicast address {group} cannot be used on interface {interface or 'of the default route'}: "
                f'{(error.strerror or str(error)).lower()}; set another [multicast] interface, or use transport = "mesh"'
            ) from error
        with contextlib.suppress(OSError):  # an older kernel returns one datagram per call
            self.socket.setsockopt(_SOL_UDP, _UDP_GRO, 1)
        self.run_bytes_max = _RUN_BYTES_MAX
        self.not_sent = 0
        self.fd = self.socket.fileno()
        self.receive_bytes = self._set_buffer(socket.SO_RCVBUF, _SO_RCVBUFFORCE, limits.MULTICAST_RECEIVE_BYTES)
        self.send_bytes = self._set_buffer(socket.SO_SNDBUF, _SO_SNDBUFFORCE, limits.MULTICAST_SEND_BYTES)

    def _set_buffer(self, option: int, forced: int, wanted: int) -> int:
        """Request a buffer size from the kernel; return the granted size, which is half of the size that the kernel reports."""
        try:
            # The FORCE options exceed the limits rmem_max and wmem_max of the kernel, but need CAP_NET_ADMIN.
            self.socket.setsockopt(socket.SOL_SOCKET, forced, wanted)
        except PermissionError:
            self.socket.setsockopt(socket.SOL_SOCKET, option, wanted)
        return self.socket.getsockopt(socket.SOL_SOCKET, option) // 2

    @property
    def buffer_warning(self) -> str:
        """The message for the operator if the kernel grants too small a receive buffer; empty otherwise."""
        if self.receive_bytes >= limits.MULTICAST_RECEIVE_BYTES:
            return ""
        return (
            f"the kernel buffers {self.receive_bytes} bytes of multicast, and {limits.MULTICAST_RECEIVE_BYTES} are requested: more "
            "datagrams are lost and repaired under load; "
            f"sysctl -w net.core.rmem_max={limits.MULTICAST_RECEIVE_BYTES}"
        )

    def send(self, run: Sequence[bytes]) -> bool:
        """Send datagrams of one length, of which the last may be shorter. Return False if the caller must send them again later.

        Datagrams that the kernel rejects with an error are lost and counted.
        """
        segment = [(_SOL_UDP, _UDP_SEGMENT, _SEGMENT.pack(len(run[0])))] if len(run) > 1 else []
        try:
            self.socket.sendmsg(run, segment, 0, self.group)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            if segment and self.run_bytes_max:  # this kernel or device does not support UDP_SEGMENT
                self.run_bytes_max = 0
                return False
            self.not_sent += len(run)  # no buffer is free, or the interface is down
        return True

    def receive(self) -> list[memoryview] | None:
        """Return the datagrams that one call of the kernel returns; None if there are none."""
        try:
            data, ancillary, _, _ = self.socket.recvmsg(_RECEIVE_BYTES, _ANCILLARY_BYTES)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:  # the interface is down; it may come up again
            return None
        view = memoryview(data)
        for level, kind, value in ancillary:
            if (level, kind) == (_SOL_UDP, _UDP_GRO):
                (size,) = _GRO.unpack_from(value)
                return [view[at : at + size] for at in range(0, len(data), size)]
        return [view]

    @property
    def dropped(self) -> int:
        """Number of datagrams that the kernel dropped because the receive buffer was full."""
        meminfo = self.socket.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size)
        return int(_MEMINFO.unpack(meminfo)[_DROPS])

    def close(self) -> None:
        """Leave the group."""
        self.socket.close()


def _interface(text: str) -> tuple[bytes, int]:
    """Return an interface as the kernel's request needs it: its address, or else its index."""
    if not text:
        return bytes(4), 0
    try:
        return IPv4Address(text).packed, 0
    except ValueError:
        pass
    try:
        return bytes(4), socket.if_nametoindex(text)
    except OSError:
        available = ", ".join(name for _, name in socket.if_nameindex())
        raise ConfigError(
            f"multicast.interface is {text!r}, but this host has only {available}: set one of these, or its address"
        ) from None
