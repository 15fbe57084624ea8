"""Port probe: detects the protocol of a port that did not answer as a client port, so that the error message can name the mistake.

A gateway has four ports: client (P), group (P+1), reads (P+2) and admin (P+3). A plain TCP connection can distinguish the ports. A
ZeroMQ port sends its greeting at once, a gRPC port sends its HTTP/2 settings at once, and an HTTP port answers a request. The
client port and the group port both use ZeroMQ. With keys, the greeting of the group port names CURVE (RFC 23, 26). Without keys,
the group port answers the message of a client with a refusal.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from tutti import limits
from tutti.common.fork import after_fork
from tutti.common.gateway_url import Address
from tutti.data.frames.frame import Buffer
from tutti.io.endpoints import NO_CONNECTION, SILENT_ADVICE, UNKNOWN_HOST

_HTTP_2_SETTINGS = re.compile(rb"\x00..\x04", re.DOTALL)
_ZEROMQ = b"\xff"
_GREETING_BYTES = 64  # RFC 23
_GREETING = _ZEROMQ + bytes(8) + b"\x7f\x03"  # first part of a greeting, after which the peer sends the rest of its greeting
_MECHANISM = slice(12, 32)
_PARTS_MAX = 3  # number of TCP segments in which a greeting may arrive
_REFUSAL = b"R"
_REQUEST = b"GET /v1/status HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n\r\n"


class ProbeResult(NamedTuple):
    """The result of a probe: `text` explains it in an error message, and `wrong` is True if the port is not a client port."""

    text: str
    wrong: bool = False


class _Refusal(msgspec.Struct):
    """The refusal that a group port sends to unknown peers; the message has more fields."""

    protocol: int
    group: str
    gateway: str
    reason: str


def probe_port(address: Address) -> ProbeResult:
    """Probe `address`. A probe takes up to five times `PROBE_TIMEOUT_US`."""
    timeout = limits.PROBE_TIMEOUT_US / 1e6
    silent = f"{NO_CONNECTION} {timeout:g} s"
    try:
        with socket.create_connection((address.host, address.port), timeout) as connection:
            silent = f"the port accepts connections and sent nothing within {timeout:g} s: {SILENT_ADVICE}"
            try:
                first = connection.recv(limits.PROBE_BYTES_MAX)
            except TimeoutError:
                # ZeroMQ and gRPC servers send first, so a server that waits for the client may speak HTTP.
                connection.sendall(_REQUEST)
                first = connection.recv(limits.PROBE_BYTES_MAX)
            if first.startswith(_ZEROMQ):
                first = _greeting(connection, first)
    except TimeoutError:
        return ProbeResult(silent)
    except socket.gaierror as error:
        return ProbeResult(f"{UNKNOWN_HOST} ({(error.strerror or str(error)).lower()})")
    except UnicodeError as error:
        return ProbeResult(f"{UNKNOWN_HOST} ({error})")
    except OSError as error:
        return ProbeResult((error.strerror or str(error)).lower())
    return _identify(first, address)


def _greeting(connection: socket.socket, first: bytes) -> bytes:
    """Return as much of the peer's greeting as arrives. The peer sends the mechanism only after it gets the start of a greeting."""
    try:
        connection.sendall(_GREETING)
        for _ in range(_PARTS_MAX):
            if len(first) < _GREETING_BYTES:
                first += connection.recv(limits.PROBE_BYTES_MAX)
    except OSError:
        pass  # the received part is enough
    return first


def explain_message(data: Buffer, error: Exception, address: Address) -> ProbeResult:
    """Explain a message that no client port sends: the peer is a different port, or not a gateway."""
    if bytes(memoryview(data)[:1]) == _REFUSAL:
        try:
            msgspec.msgpack.decode(memoryview(data)[1:], type=_Refusal)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        else:
            return _group_port(address)
    return ProbeResult(f"the peer does not speak the protocol of a gateway: {error}")


def _identify(first: bytes, address: Address) -> ProbeResult:
    if first.startswith(_ZEROMQ):
        if first[_MECHANISM].startswith(b"CURVE"):
            return _group_port(address)
        return ProbeResult(
            "a ZeroMQ program is there and did not answer as a gateway does: a gateway that is starting, stopped or busy, or "
            "another program"
        )
    if _HTTP_2_SETTINGS.match(first):
        return ProbeResult(_wrong("gRPC", "reads port (Arrow Flight)", 2, address), wrong=True)
    if first.startswith(b"HTTP/"):
        return ProbeResult(_wrong("HTTP", "admin port", 3, address), wrong=True)
    if not first:
        return ProbeResult("the connection was closed immediately")
    return ProbeResult(f"another program uses this port: it sent {first[:16]!r}", wrong=True)


def _group_port(address: Address) -> ProbeResult:
    return ProbeResult(_wrong("the protocol between gateways", "group port", 1, address), wrong=True)


def _wrong(language: str, port: str, above: int, address: Address) -> str:
    client = Address(address.host, max(1, address.port - above))
    return (
        f"this port speaks {language}, as the {port} of a gateway does; a client needs the client port of the gateway, "
        f"which is {above} lower by default: tutti://{client}"
    )


class RunningProbe:
    """A probe in its own thread, which all callers that wait for the same address share.

    The attribute `result` is None until the probe ends, after some seconds.
    """

    def __init__(self, address: Address) -> None:
        """Create a probe. Only `start_probe` calls this."""
        self.address = address
        self.result: ProbeResult | None = None
        self.wakes: list[Callable[[], None]] = []

    def run(self) -> None:
        """Probe the port, then wake all waiting callers."""
        result = ProbeResult("it did not answer")
        try:
            result = probe_port(self.address)
        finally:
            self.finish(result)

    def finish(self, result: ProbeResult) -> None:
        """Store the result and wake all waiting callers."""
        with _lock:
            self.result = result
            if _running.get(self.address) is self:
                del _running[self.address]
        # Iterate without the lock, because callers cannot join a finished probe, so the list no longer changes.
        for wake in self.wakes:
            wake()


_running: dict[Address, RunningProbe] = {}
_lock = threading.Lock()


def start_probe(address: Address, wake: Callable[[], None]) -> RunningProbe:
    """Start a probe of the address, or join a running probe, which calls `wake` when its `result` is set."""
    with _lock:
        running = _running.get(address)
        if running is not None:
            running.wakes.append(wake)
            return running
        started = _running[address] = RunningProbe(address)
        started.wakes.append(wake)
    try:
        threading.Thread(target=started.run, name="tutti-probe", daemon=True).start()
    except RuntimeError as error:  # no thread can be started
        started.finish(ProbeResult(f"it did not answer, and the port cannot be probed: {error}"))
    return started


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - the old lock may be held by a thread that only the parent has
    _lock = threading.Lock()
    _running.clear()


after_fork(_after_fork)
