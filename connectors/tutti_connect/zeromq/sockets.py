"""Sockets as a configuration asks for them: bounds, keys, endpoints."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zmq
from zmq.auth import load_certificate
from zmq.auth.thread import ThreadAuthenticator

from tutti.errors import ConfigError
from tutti_connect.zeromq import limits

if TYPE_CHECKING:
    from tutti_connect.zeromq.config import Curve

Socket = zmq.Socket[bytes]
_MAPPED = re.compile(r"\[::ffff:([0-9.]+)\]")


@contextlib.contextmanager
def opened(
    kind: int, bind: Sequence[str], connect: Sequence[str], curve: Curve, mark: int, linger_ms: int = 0
) -> Iterator[tuple[Socket, list[str]]]:
    """A socket with its endpoints, and the addresses that it is bound to (port `*` takes a free one).

    Args:
        kind: as `zmq.PULL`.
        bind, connect: endpoints.
        curve: keys, if any.
        mark: messages that are held for one connection.
        linger_ms: at the end, to send what is held.

    Raises:
        ConfigError: an endpoint cannot be used, or keys do not serve.
    """
    context: zmq.Context[Socket] = zmq.Context()
    with contextlib.ExitStack() as stack:
        stack.callback(context.term)
        socket: Socket = stack.enter_context(contextlib.closing(context.socket(kind)))
        socket.set(zmq.LINGER, linger_ms)
        socket.set(zmq.RCVHWM, mark)
        socket.set(zmq.SNDHWM, mark)
        socket.set(zmq.MAXMSGSIZE, limits.SUBSCRIPTION_BYTES_MAX if kind == zmq.XPUB else limits.MESSAGE_BYTES_MAX)
        socket.set(zmq.IPV6, 1)
        # Who is gone without a word (a host, a cable) is noticed, and connected to anew.
        socket.set(zmq.HEARTBEAT_IVL, 2000)
        socket.set(zmq.HEARTBEAT_TIMEOUT, 10_000)
        if curve.certificate:
            _lock(socket, curve, stack)
        addresses: list[str] = []
        for endpoint in bind:
            _use(socket.bind, endpoint, "bind")
            addresses.append(_last(socket))
        for endpoint in connect:
            _use(socket.connect, endpoint, "connect")
        yield socket, addresses


def _last(socket: Socket) -> str:
    """What it was bound to last, as it is written: a socket that takes IPv6 too names an IPv4 address as one of those."""
    said: Any = socket.get(zmq.LAST_ENDPOINT)
    return _MAPPED.sub(r"\1", said.rstrip(b"\0").decode())


def _use(act: Callable[[str], object], endpoint: str, key: str) -> None:
    try:
        act(endpoint)
    except zmq.ZMQError as error:
        reason = zmq.strerror(error.errno or 0).lower()
        raise ConfigError(f"zeromq.{key}: {endpoint} cannot be used ({reason}): name another one") from error


def _lock(socket: Socket, curve: Curve, stack: contextlib.ExitStack) -> None:
    """Only with keys from now on."""
    public, secret = _keys("certificate", curve.certificate)
    if secret is None:
        raise ConfigError(f"curve.certificate: {curve.certificate} has no secret key: name the file that ends in .key_secret")
    socket.set(zmq.CURVE_PUBLICKEY, public)
    socket.set(zmq.CURVE_SECRETKEY, secret)
    if curve.server:
        socket.set(zmq.CURVE_SERVERKEY, _keys("server", curve.server)[0])
        return
    if not Path(curve.clients).is_dir():
        raise ConfigError(
            f"curve.clients: {curve.clients} is no directory: name the one with the public keys of those who may connect"
        )
    door = ThreadAuthenticator(socket.context)
    door.start()
    stack.callback(door.stop)
    door.configure_curve(domain="*", location=curve.clients)
    socket.set(zmq.CURVE_SERVER, 1)


def _keys(key: str, path: str) -> tuple[bytes, bytes | None]:
    try:
        return load_certificate(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"curve.{key}: {path}: {error}: name a file of keys as ZeroMQ's tools make them") from error
