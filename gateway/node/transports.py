"""Which transport a configuration asks for, opened: who this gateway says it is, its keys, its port."""

from __future__ import annotations

import os
import time

from structlog.typing import FilteringBoundLogger

from gateway.config import Config, advice
from gateway.transport.interface import Introduction, Transport
from gateway.transport.keys import Keyring
from gateway.transport.mesh import Mesh

_NS_PER_US = 1000
_PROCESS_BYTES = 8


def open_transport(config: Config, incarnation: bytes, release: str, log: FilteringBoundLogger) -> Transport:
    """Open what carries messages to and from the other gateways; what the configuration lets pass and an operator should know is
    logged.

    Raises:
        ConfigError: the keys that it names do not serve.
        TuttiError: its port cannot be bound.
    """
    for one in advice(config):
        log.warning(f"{one.key} {one.what}", do=one.do)
    founders = config.founders
    me = Introduction(
        release=release,
        group=config.group.name,
        gateway=config.name,
        incarnation=incarnation,
        process=os.urandom(_PROCESS_BYTES),
        address=founders.get(config.name, str(config.advertised_address)),
        configured=founders,
    )
    return Mesh(me, config.group_address, _clock_us, _keyring(config))


def _keyring(config: Config) -> Keyring | None:
    security = config.security
    if not (security.secret_key and security.public_keys):
        return None
    return Keyring.open(security.secret_key, security.public_keys, config.name)


def _clock_us() -> int:
    return time.monotonic_ns() // _NS_PER_US
