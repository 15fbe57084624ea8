"""Opens the transport that the configuration selects, with this gateway's introduction, keys and group port."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import msgspec
from structlog.typing import FilteringBoundLogger

from tutti.errors import TuttiError
from tutti_gateway.config import Config, advice, parse_address
from tutti_gateway.transport.handshake import PRESET, SEAL_BYTES
from tutti_gateway.transport.interface import Introduction, Transport
from tutti_gateway.transport.mesh.mesh import Mesh
from tutti_gateway.transport.multicast.multicast import Multicast
from tutti_gateway.transport.multicast.socket import MulticastSocket

if TYPE_CHECKING:  # loads the crypto library, which only a gateway with keys needs
    from tutti_gateway.transport.keys import Keyring

_NS_PER_US = 1000
_PROCESS_BYTES = 8


def open_transport(config: Config, incarnation: bytes, release: str, log: FilteringBoundLogger, *, begun: bool) -> Transport:
    """Open the transport to the other gateways, and log advice about the configuration.

    Args:
        config: the gateway's configuration.
        incarnation: id of this gateway's data directory.
        release: version of this software.
        log: receives messages for the operator.
        begun: whether this gateway already has a log, so that advice about the configured members does not apply.

    Raises:
        ConfigError: the configured keys are invalid.
        TuttiError: the group port cannot be bound.
    """
    for one in advice(config, begun=begun):
        log.warning(f"{one.key} {one.what}", do=one.do)
    founders = config.founders
    me = Introduction(
        release=release,
        group=config.group.name,
        gateway=config.name,
        incarnation=incarnation,
        # A new value in each run shows peers when two processes use one name or one directory (transport, T9).
        process=os.urandom(_PROCESS_BYTES),
        address=founders.get(config.name, str(config.advertised_address)),
        configured=founders,
        timers={name: str(value) for name, value in msgspec.structs.asdict(config.timers).items()} | {PRESET: config.group.preset},
    )
    keyring = _keyring(config)
    if config.group.transport == "mesh":
        return Mesh(me, config.group_address, _clock_us, keyring)
    return _open_multicast(config, me, keyring, log)


def _open_multicast(config: Config, me: Introduction, keyring: Keyring | None, log: FilteringBoundLogger) -> Multicast:
    multicast = config.multicast
    if keyring is not None:  # the seal is a secret that authenticates datagrams, so only encrypted connections carry it
        me = msgspec.structs.replace(me, seal=os.urandom(SEAL_BYTES))
    socket = MulticastSocket(parse_address(multicast.address), config.multicast_interface, multicast.ttl)
    try:
        # Multicast needs the mesh for introductions, heartbeats and every member that no datagram reaches (transport, T3).
        mesh = Mesh(me, config.group_address, _clock_us, keyring)
    except TuttiError:
        socket.close()
        raise
    log.info(
        "multicast",
        address=multicast.address,
        interface=config.multicast_interface,
        receive_buffer_bytes=socket.receive_bytes,
        send_buffer_bytes=socket.send_bytes,
    )
    return Multicast(
        me, mesh, socket, _clock_us, datagram_bytes=multicast.datagram_bytes, bytes_a_second=multicast.bytes_per_second
    )


def _keyring(config: Config) -> Keyring | None:
    security = config.security
    if not (security.secret_key and security.public_keys):
        return None
    from tutti_gateway.transport.keys import Keyring  # noqa: PLC0415 - only a gateway with keys needs the cryptography

    return Keyring.open(security.secret_key, security.public_keys, config.name)


def _clock_us() -> int:
    return time.monotonic_ns() // _NS_PER_US
