"""Creation of ZeroMQ sockets with the limits, keys and endpoints of a configuration."""

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
def open_socket(
    kind: int, bind: Sequence[str], connect: Sequence[str], curve: Curve, mark: int, linger_ms: int = 0
) -> Iterator[tuple[Socket, list[str]]]:
    """Open a socket with its endpoints, and yield it with the bound addresses (port `*` binds a free port).

    Args:
        kind: socket type, such as `zmq.PULL`.
        bind, connect: endpoints.
        curve: keys, if any.
        mark: high-water mark of one connection, in messages.
        linger_ms: time after the close of the socket to send buffered messages.

    Raises:
        ConfigError: an endpoint or a key is invalid.
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
        # Send heartbeats, so that ZeroMQ notices a peer that vanishes without closing the connection (host or cable failure).
        socket.set(zmq.HEARTBEAT_IVL, 2000)
        socket.set(zmq.HEARTBEAT_TIMEOUT, 10_000)
        if curve.certificate:
            _require_keys(socket, curve, stack)
        addresses: list[str] = []
        for endpoint in bind:
            _attach(socket.bind, endpoint, "bind")
            addresses.append(_bound_address(socket))
        for endpoint in connect:
            _attach(socket.connect, endpoint, "connect")
        yield socket, addresses


def _bound_address(socket: Socket) -> str:
    """Return the address to which the socket was last bound, with an IPv4 address as A.B.C.D and not as [::ffff:A.B.C.D]."""
    endpoint: Any = socket.get(zmq.LAST_ENDPOINT)
    return _MAPPED.sub(r"\1", endpoint.rstrip(b"\0").decode())


def _attach(attach: Callable[[str], object], endpoint: str, key: str) -> None:
    try:
        attach(endpoint)
    except zmq.ZMQError as error:
        reason = zmq.strerror(error.errno or 0).lower()
        raise ConfigError(f"zeromq.{key}: {endpoint} cannot be used ({reason}): choose another endpoint") from error


def _require_keys(socket: Socket, curve: Curve, stack: contextlib.ExitStack) -> None:
    """Require CURVE keys on the socket."""
    public, secret = _keys("certificate", curve.certificate)
    if secret is None:
        raise ConfigError(f"curve.certificate: {curve.certificate} has no secret key: give the file that ends in .key_secret")
    socket.set(zmq.CURVE_PUBLICKEY, public)
    socket.set(zmq.CURVE_SECRETKEY, secret)
    if curve.server:
        socket.set(zmq.CURVE_SERVERKEY, _keys("server", curve.server)[0])
        return
    if not Path(curve.clients).is_dir():
        raise ConfigError(
            f"curve.clients: {curve.clients} is not a directory: give the one with the public keys of the peers that may connect"
        )
    authenticator = ThreadAuthenticator(socket.context)
    authenticator.start()
    stack.callback(authenticator.stop)
    authenticator.configure_curve(domain="*", location=curve.clients)
    socket.set(zmq.CURVE_SERVER, 1)


def _keys(key: str, path: str) -> tuple[bytes, bytes | None]:
    try:
        return load_certificate(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"curve.{key}: {path}: {error}: give a key file created by ZeroMQ's tools") from error
