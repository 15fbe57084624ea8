"""The UDP socket of a multicast group: opened, told which way to go, and asked what the kernel did with it."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Sequence
from ipaddress import IPv4Address

from tutti.data.addresses import Address
from tutti.errors import ConfigError, TuttiError
from tutti_gateway.core import limits

_SO_RCVBUFFORCE, _SO_SNDBUFFORCE, _SO_MEMINFO = 33, 32, 55
_IP_MULTICAST_ALL = 49
_MEMINFO = struct.Struct("=9I")
_DROPS = 8
_MREQN = struct.Struct("=4s4si")
_SOL_UDP, _UDP_SEGMENT, _UDP_GRO = 17, 103, 104  # a run of datagrams by one call, out and in
_SEGMENT, _GRO = struct.Struct("=H"), struct.Struct("=i")
_RUN_BYTES_MAX = 60_000
RUN_MAX = 48  # the kernel takes 64
_RECEIVE_BYTES = 65_536
_ANCILLARY_BYTES = 64


class MulticastSocket:
    """One group address on one interface: what is sent there everybody gets who listens, this host included."""

    def __init__(self, group: Address, interface: str, ttl: int) -> None:
        """Open it.

        Args:
            group: IPv4 multicast address and port.
            interface: name (`eth0`) or IPv4 address of the interface; empty: the one that the system's routes say.
            ttl: routers that a datagram passes, and one.

        Raises:
            ConfigError: the interface is not there.
            TuttiError: the system refuses.
        """
        self.group = (group.host, group.port)
        request = _MREQN.pack(socket.inet_aton(group.host), *_interface(interface))
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.socket.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
            self.socket.bind(self.group)
            self.socket.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, request)
            self.socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, request)
            self.socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, ttl)
            self.socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)  # several gateways of one host hear each other
        except OSError as error:
            self.socket.close()
            raise TuttiError(
                f"the multicast address {group} cannot be used on interface {interface or 'of the default route'}: "
                f'{(error.strerror or str(error)).lower()}; name another in [multicast] interface, or take transport = "mesh"'
            ) from error
        with contextlib.suppress(OSError):
            self.socket.setsockopt(_SOL_UDP, _UDP_GRO, 1)
        self.run_bytes_max = _RUN_BYTES_MAX
        self.not_sent = 0  # datagrams that the kernel refused
        self.fd = self.socket.fileno()
        self.receive_bytes = self._buffer(socket.SO_RCVBUF, _SO_RCVBUFFORCE, limits.MULTICAST_RECEIVE_BYTES)
        self.send_bytes = self._buffer(socket.SO_SNDBUF, _SO_SNDBUFFORCE, limits.MULTICAST_SEND_BYTES)

    def _buffer(self, option: int, forced: int, wanted: int) -> int:
        """Ask the kernel for room; what it gives. It counts what it needs around each datagram, too, and doubles what is asked."""
        try:
            self.socket.setsockopt(socket.SOL_SOCKET, forced, wanted)
        except PermissionError:
            self.socket.setsockopt(socket.SOL_SOCKET, option, wanted)
        return self.socket.getsockopt(socket.SOL_SOCKET, option) // 2

    @property
    def small(self) -> str:
        """What an operator should know of the kernel's room, empty if it is as asked."""
        if self.receive_bytes >= limits.MULTICAST_RECEIVE_BYTES:
            return ""
        return (
            f"the kernel keeps {self.receive_bytes} bytes of multicast that were not taken yet, and "
            f"{limits.MULTICAST_RECEIVE_BYTES} are wanted: more is lost under load and repaired; "
            f"sysctl -w net.core.rmem_max={limits.MULTICAST_RECEIVE_BYTES}"
        )

    def send(self, run: Sequence[bytes]) -> bool:
        """Send datagrams of one length, the last of which may be shorter; False to try again later. Never waits.

        What the kernel refuses is lost, as on the way, and counted.
        """
        segment = [(_SOL_UDP, _UDP_SEGMENT, _SEGMENT.pack(len(run[0])))] if len(run) > 1 else []
        try:
            self.socket.sendmsg(run, segment, 0, self.group)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            if segment and self.run_bytes_max:  # this kernel, or this device, wants each alone
                self.run_bytes_max = 0
                return False
            self.not_sent += len(run)  # no buffers, the interface is down: lost, as on the way
        return True

    def receive(self) -> list[memoryview] | None:
        """The next datagrams, as many as the kernel hands over at once; None if there are none."""
        try:
            data, told, _, _ = self.socket.recvmsg(_RECEIVE_BYTES, _ANCILLARY_BYTES)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:  # the interface went down; it may come again
            return None
        view = memoryview(data)
        for level, kind, value in told:
            if (level, kind) == (_SOL_UDP, _UDP_GRO):
                (size,) = _GRO.unpack_from(value)
                return [view[at : at + size] for at in range(0, len(data), size)]
        return [view]

    @property
    def dropped(self) -> int:
        """Datagrams for which the kernel had no room."""
        told = self.socket.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size)
        return int(_MEMINFO.unpack(told)[_DROPS])

    def close(self) -> None:
        """Leave the group."""
        self.socket.close()


def _interface(text: str) -> tuple[bytes, int]:
    """Address and index of an interface, as the kernel takes them."""
    if not text:
        return bytes(4), 0
    try:
        return IPv4Address(text).packed, 0
    except ValueError:
        pass
    try:
        return bytes(4), socket.if_nametoindex(text)
    except OSError:
        there = ", ".join(name for _, name in socket.if_nameindex())
        raise ConfigError(f"multicast.interface is {text!r}, and this host has {there}: name one of them, or its address") from None
