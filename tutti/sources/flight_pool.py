"""The process's Arrow Flight clients, and the translation of Flight errors (docs/reference/reads.md)."""

from __future__ import annotations

import os
import threading
from typing import Any

import orjson
import pyarrow as pa
from pyarrow import flight

from tutti import limits
from tutti.common.credentials import Credentials
from tutti.common.fork import after_fork
from tutti.errors import Behind, Damaged, FormatError, NotAllowed, OffsetOutOfRange, Refused, TuttiError, Unavailable, UsageError
from tutti.io.endpoints import SILENT_ADVICE

_CODES: dict[str, type[TuttiError]] = {
    "below_start": OffsetOutOfRange,
    "beyond_frontier": OffsetOutOfRange,
    "out_of_range": OffsetOutOfRange,
    "malformed": UsageError,
    "unknown_column": UsageError,
    "unknown_topic": UsageError,
    "damaged": Damaged,
    "behind": Behind,
    "busy": Unavailable,
    "stopping": Unavailable,
    "unavailable": Unavailable,
    "unknown_lane": Unavailable,  # another gateway has the lane
    "internal": Unavailable,
}
#: Exceptions that a Flight call can raise.
FLIGHT_EXCEPTIONS = (flight.FlightError, pa.ArrowException, OSError)

#: gRPC keepalive detects a gateway that vanishes during a stream.
#: The interval is long, because a server that sends no data (to a slow reader, say) closes the connection at the third ping.
_OPTIONS: list[tuple[str, int | str]] = [
    ("grpc.keepalive_time_ms", limits.FLIGHT_KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", limits.FLIGHT_SILENCE_MS_MAX),
    ("grpc.http2.ping_timeout_ms", limits.FLIGHT_SILENCE_MS_MAX),  # gRPC's default of one minute overrides keepalive_timeout_ms
    ("grpc.http2.max_pings_without_data", 0),
]

#: gRPC's error text for a connection that answers no keepalive ping.
_UNANSWERED = "ping timeout"

_CERTIFICATES = "give the CA of the certificate as `certificates` in the credentials file"
_NAME = "the host name of the reads port is unknown: correct `advertise` of the gateway, or the name service"
_NETWORK = "check the network and the firewall"
#: gRPC's words in the error of a failed connection, and the error with its remedy in plain words. The first match counts.
_CONNECTION_ERRORS = {
    "Connection refused": "the reads port refuses connections: the reads process of the gateway starts or has ended; see its log",
    "address lookup failed": _NAME,
    "errors resolving": _NAME,
    "certificate has expired": "TLS failed: the certificate of the reads port has expired (or the clock of this host is wrong): "
    "its operator must install a new one, which a running gateway loads",
    "certificate is not yet valid": "TLS failed: the certificate of the reads port is not valid yet: check the hosts' clocks",
    "certificate verify failed": f"TLS failed: the certificate of the reads port is not trusted here; {_CERTIFICATES}",
    "Hostname Verification Check failed": "TLS failed: the certificate of the reads port is for another host; issue one for it",
    "wrong version number": "TLS failed: the reads port does not speak TLS; check whether another program uses the port",
    "empty address list": "TLS failed: `certificates` in the credentials contains no valid PEM certificate",
    "handshake failed": f"TLS failed: the reads port and this client cannot agree; {_CERTIFICATES}",
    "connect an http1": "the reads port speaks HTTP/1: another program uses it; check `[ports]` of the gateway",
    "Socket closed": "the reads port closed the connection: its process starts or ends, or it needs TLS; see the gateway's log",
    "Network is unreachable": f"this host has no route to the network of the reads port: {_NETWORK}",
    "No route to host": f"the host of the reads port is down or unreachable: {_NETWORK}",
    "onnection timed out": f"the reads port does not answer, because its host is down or a firewall drops packets: {_NETWORK}",
    "failed to connect to all addresses": f"no connection to the reads port is possible: check its gateway, and {_NETWORK}",
}

# gRPC logs each failed attempt to connect to standard error; the raised error contains the reason.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

_lock = threading.Lock()
_clients: dict[tuple[str, str], Any] = {}  # (location, trusted certificates) -> client
_TLS = "grpc+tls://"
_pid = 0


def client_of(location: str, credentials: Credentials | None = None) -> tuple[Any, Any]:
    """Return the shared client for a location (`grpc://HOST:PORT`, `grpc+tls://...`), and the call headers with the credentials.

    Raises:
        ConfigError: the credentials must not be sent to this location.
        UsageError: the parent process already had Flight clients at the fork; gRPC calls would hang in this child.
    """
    global _pid  # noqa: PLW0603 - id of the process that created the clients
    with _lock:
        if _pid not in (0, os.getpid()):
            raise UsageError(
                f"process {os.getpid()} was forked from process {_pid}, which had read from gateways; gRPC does not work in such a "
                "child: start it with multiprocessing.get_context('spawn'), or open the first reader after the fork"
            )
        _pid = os.getpid()
        headers, certificates = ([], "") if credentials is None else (credentials.headers(location), credentials.certificates)
        key = location, certificates
        if key not in _clients:
            trusted = certificates if certificates and location.startswith(_TLS) else None
            _clients[key] = flight.FlightClient(location, tls_root_certs=trusted, generic_options=_OPTIONS)
        return _clients[key], headers


def drop_client(location: str) -> None:
    """Remove the client of a gateway that did not answer from the pool. Running calls keep the client."""
    with _lock:
        if _pid == os.getpid():
            for key in [key for key in _clients if key[0] == location]:
                del _clients[key]


def _renew_after_fork() -> None:
    global _lock  # noqa: PLW0603 - the fork may have copied the lock while another thread held it
    _lock = threading.Lock()


after_fork(_renew_after_fork)


def perform_action(client: Any, options: flight.FlightCallOptions, action: str, body: bytes) -> Any:
    """Send a Flight action to a gateway and return the gateway's JSON answer.

    Raises:
        FormatError: the answer does not have exactly one result.
    """
    results = list(client.do_action(flight.Action(action, body), options))
    if len(results) != 1:
        raise FormatError(f"the gateway answered action {action} with {len(results)} results instead of one")
    return orjson.loads(results[0].body.to_pybytes())


def lacks_field(error: BaseException, field: str) -> bool:
    """True if a gateway refused a request because its earlier release does not know the field."""
    return f"unknown field `{field}`".encode() in (getattr(error, "extra_info", None) or b"")


def translate(error: BaseException) -> TuttiError:
    """Return the `TuttiError` for a Flight error.

    A retry can succeed after `Unavailable` and `Behind`, at another gateway or later.
    """
    info = getattr(error, "extra_info", None)
    if info:
        try:
            fields = orjson.loads(info)
        except orjson.JSONDecodeError:
            fields = {}
        message = str(fields.get("message", error))
        code = fields.get("code")
        if code == "other_log":
            return Refused(message, "log")
        if code == "not_allowed":
            return NotAllowed(message, str(fields.get("reason", "rights")))
        if code == "refused":
            return Refused(message, str(fields.get("reason", "refused")))
        # The library sends only actions that it knows, so the gateway is of an earlier release.
        if code == "unknown_action":
            return Refused(f"{message}. The gateway has an earlier release: upgrade it", "unknown_action")
        kind = _CODES.get(str(code))
        if kind is not None:
            return kind(message)
    text = str(error).strip() or type(error).__name__
    if isinstance(error, flight.FlightTimedOutError) or _UNANSWERED in text:
        return Unavailable(f"the gateway accepted the connection but did not answer in time: {SILENT_ADVICE}")
    return Unavailable(_connection_text(text))


def _connection_text(text: str) -> str:
    """Return an error text of gRPC about a connection in plain words, with the remedy; an unknown text stays as it is."""
    for part, plain in _CONNECTION_ERRORS.items():
        if part in text:
            return plain
    return text.splitlines()[0][:300]
