"""The configuration of a gateway. The structs list the keys; `Meta` holds the bounds and the text of docs/reference/config.md."""

from __future__ import annotations

import re
from ipaddress import IPv4Address
from typing import Annotated, Literal

from msgspec import Meta, Struct

from tutti import limits as common_limits
from tutti.data.member_address import GROUP_PORT_DISTANCE, PORT_MAX, Address, MemberAddress, parse_host_port
from tutti.errors import ConfigError, UsageError
from tutti_gateway.core import limits

DEFAULT_PRESET: Literal["lan"] = "lan"

#: preset -> default timers. A heartbeat is five typical round trips, but at least what the operating system schedules
#: reliably: 100 ms within a machine, 200 ms within a building, 1 s between cities.
PRESETS: dict[str, dict[str, int]] = {
    "local": {"heartbeat_ms": 100, "tick_ms": 1000, "atomic_heartbeats": 20},
    "lan": {"heartbeat_ms": 200, "tick_ms": 1000, "atomic_heartbeats": 10},
    "wan": {"heartbeat_ms": 1000, "tick_ms": 1000, "atomic_heartbeats": 10},
}

Port = Annotated[int, Meta(ge=1, le=PORT_MAX)]


class Ports(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Separate ports. By default the group uses P+1, reads P+2, and the admin pages P+3."""

    group: Annotated[Port | None, Meta(description="between gateways (ZMTP)")] = None
    reads: Annotated[Port | None, Meta(description="reads (Arrow Flight)")] = None
    admin: Annotated[Port | None, Meta(description="admin pages (HTTP)")] = None


class Group(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The process group of the gateway."""

    name: Annotated[str, Meta(description="name of the group; a gateway refuses the data directory of another group")] = "ingest"
    members: Annotated[
        dict[str, str],
        Meta(
            description="gateways that found the group, with their HOST:PORT (HOST:PORT/GROUP-PORT where `ports.group` is set); "
            "default: this gateway alone"
        ),
    ] = {}
    transport: Annotated[
        Literal["mesh", "multicast"],
        Meta(
            description="transport between gateways: mesh (a connection between each pair), or multicast (UDP for messages to all, "
            "the mesh for the rest)"
        ),
    ] = "mesh"
    preset: Annotated[Literal["local", "lan", "wan"], Meta(description="timers for one machine, one building, several cities")] = (
        DEFAULT_PRESET
    )


class Timers(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times. The preset gives each value that is not set."""

    heartbeat_ms: Annotated[int, Meta(ge=10, le=10_000, description="time between heartbeats, ms")] = PRESETS[DEFAULT_PRESET][
        "heartbeat_ms"
    ]
    tick_ms: Annotated[int, Meta(ge=10, le=3_600_000, description="time between ticks while records arrive, ms")] = PRESETS[
        DEFAULT_PRESET
    ]["tick_ms"]
    atomic_heartbeats: Annotated[
        int, Meta(ge=2, le=1000, description="heartbeats without a vote after which the group continues without a member")
    ] = PRESETS[DEFAULT_PRESET]["atomic_heartbeats"]


class Log(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The log on disk."""

    segment_bytes: Annotated[
        int,
        Meta(ge=limits.SEGMENT_BYTES_MIN, le=2**31 - common_limits.MIB, description="size of a segment file, bytes"),
    ] = common_limits.SEGMENT_BYTES
    prepared_segments: Annotated[
        int, Meta(ge=0, le=64, description="number of zero-filled segments to prepare while the disk is idle")
    ] = common_limits.PREPARED_SEGMENTS
    vote_mark: Annotated[
        Literal["timely", "strict"],
        Meta(
            description="timely: data synced in the last 10 ms before a crash can count as torn if it is also corrupt; "
            "strict: it never does, for one more small sync with each group of messages"
        ),
    ] = "timely"
    disk_low_bytes: Annotated[
        int,
        Meta(
            ge=4 * common_limits.RESERVED_BYTES,
            le=2**50,
            description="free space below which the gateway refuses new messages but serves reads, bytes; at least "
            f"`limits.undecided_bytes` plus the reserve of {common_limits.RESERVED_BYTES} bytes",
        ),
    ] = common_limits.DISK_LOW_BYTES


class Retention(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of the log is kept. Set a size limit, an age limit, both, or none to keep everything. The group removes whole
    segments, oldest first, from the same offset on all gateways. Segments that a gateway of the roster lacks stay until twice
    the limit. The same limits apply to each lane of unordered records, on each gateway separately; a lane keeps everything
    that a gateway of the roster lacks.
    """

    bytes: Annotated[
        int, Meta(ge=0, le=2**60, description="approximate total size of the segments, at least two segments, bytes; 0: no limit")
    ] = 0
    time: Annotated[
        str,
        Meta(
            description='age after which a record is removed, such as "7d", "36h" or "90m"; default: no limit',
            examples=["7d"],
        ),
    ] = ""
    keep_for: Annotated[
        list[str],
        Meta(
            max_length=limits.RETENTION_READERS_MAX,
            description="named readers (an archiver, a Spark query with a `queryName`): records that one of them has not read stay "
            "beyond the limits; on a low disk the gateway refuses new messages instead; set the same value on all gateways",
            examples=[["archive"]],
        ),
    ] = []

    @property
    def time_us(self) -> int:
        """Return `time` in microseconds, 0 for no limit."""
        return parse_duration(self.time) if self.time else 0


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits, which together must fit into a gateway's memory. Above a limit the gateway slows a sender down, or refuses with a
    clear error.
    """

    sessions: Annotated[int, Meta(ge=1, le=limits.SESSIONS_CONFIG_MAX, description="clients connected at the same time")] = (
        limits.SESSIONS_MAX
    )
    producers: Annotated[int, Meta(ge=1, le=limits.PRODUCERS_CONFIG_MAX, description="producers that the group keeps state of")] = (
        limits.PRODUCERS_MAX
    )
    topics: Annotated[int, Meta(ge=1, le=limits.TOPICS_CONFIG_MAX, description="topics of the group")] = common_limits.TOPICS_MAX
    undecided_bytes: Annotated[
        int,
        Meta(
            ge=limits.UNDECIDED_BYTES_CONFIG_MIN,
            le=limits.UNDECIDED_BYTES_CONFIG_MAX,
            description="undecided data of clients, above which clients wait, bytes",
        ),
    ] = limits.UNDECIDED_BYTES_MAX


class Multicast(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Multicast address of messages to all gateways, with `[group] transport = "multicast"`; set the same on all gateways. Where
    the network does not carry multicast, the gateways use the mesh.
    """

    address: Annotated[str, Meta(description="IPv4 multicast address and port of the group; several groups may share one")] = (
        "239.255.84.84:7499"
    )
    interface: Annotated[
        str | None, Meta(description="network interface, by name or IPv4 address; default: the interface of `listen`")
    ] = None
    ttl: Annotated[
        int,
        Meta(ge=0, le=255, description="time to live of a datagram: the number of routers it may pass plus one; 0: this host only"),
    ] = 1
    datagram_bytes: Annotated[
        int,
        Meta(
            ge=limits.MULTICAST_DATAGRAM_BYTES_MIN,
            le=limits.MULTICAST_DATAGRAM_BYTES_MAX,
            description="largest datagram, bytes; use 8900 where all hosts and switches support jumbo frames",
        ),
    ] = limits.MULTICAST_DATAGRAM_BYTES
    bytes_per_second: Annotated[
        int,
        Meta(
            ge=common_limits.MIB,
            le=2**34,
            description="sending rate of one gateway, bytes a second; set it below the rate of the slowest switch port",
        ),
    ] = limits.MULTICAST_BYTES_A_SECOND


class Logging(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Log output of the gateway on standard error."""

    level: Annotated[
        Literal["info", "debug"],
        Meta(description="debug: also each step of each message, with an id that is the same on every gateway (`tutti trace`)"),
    ] = "info"


class Security(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Security (docs/how-to/security.md). With keys, gateways encrypt their connections (CURVE) and accept only each other, and
    clients may encrypt theirs. With tokens, clients must encrypt, and each token has its own permissions. A certificate (TLS)
    encrypts reads and admin pages.
    """

    secret_key: Annotated[
        str | None,
        Meta(description="file of this gateway's keys, created by `tutti keys new`; only its user may read it"),
    ] = None
    public_keys: Annotated[
        str | None,
        Meta(
            description="file of the public keys of all gateways, the same on every gateway; the gateway reloads it after a change"
        ),
    ] = None
    tokens: Annotated[
        str | None,
        Meta(
            description="file of client tokens, created by `tutti tokens new`, the same on every gateway; the gateway reloads it "
            "after a change; requires keys"
        ),
    ] = None
    tls_certificate: Annotated[
        str | None,
        Meta(description="file of this gateway's certificate chain (PEM), for reads and admin pages"),
    ] = None
    tls_key: Annotated[str | None, Meta(description="file of the certificate's private key (PEM); only its user may read it")] = (
        None
    )
    open_metrics: Annotated[bool, Meta(description="true: `/metrics` needs no token, like `/healthz` and `/readyz`")] = False
    insecure: Annotated[
        bool, Meta(description="true: accept connections from other hosts although not everything is encrypted and authenticated")
    ] = False

    @property
    def has_keys(self) -> bool:
        """True if gateways authenticate each other by keys."""
        return bool(self.secret_key and self.public_keys)

    @property
    def has_tls(self) -> bool:
        """True if reads and admin pages are encrypted."""
        return bool(self.tls_certificate and self.tls_key)

    @property
    def missing(self) -> list[str]:
        """Return the protections that a gateway reachable from other hosts lacks."""
        has = {
            "keys (`tutti keys new`; secret_key, public_keys)": self.has_keys,
            "tokens (`tutti tokens new`; tokens)": bool(self.tokens),
            "a certificate (tls_certificate, tls_key)": self.has_tls,
        }
        return [what for what, there in has.items() if not there]


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The complete configuration of one gateway."""

    name: Annotated[str, Meta(description="name of this gateway", examples=["jfk"])]
    data: Annotated[
        str,
        Meta(
            description="data directory, created if missing; a gateway refuses the directory of another gateway or group",
            examples=["data/jfk"],
        ),
    ]
    listen: Annotated[
        str,
        Meta(description="HOST:PORT for clients; PORT is the base P of the other ports", examples=["127.0.0.1:7400"]),
    ]
    advertise: Annotated[str | None, Meta(description="HOST:PORT for clients to connect to, where it differs from `listen`")] = None
    ports: Ports = Ports()
    group: Group = Group()
    timers: Timers = Timers()
    log: Log = Log()
    retention: Retention = Retention()
    logging: Logging = Logging()
    limits: Limits = Limits()
    multicast: Multicast = Multicast()
    security: Security = Security()

    @property
    def client_address(self) -> Address:
        """Return the address on which the gateway listens for clients."""
        return parse_address(self.listen)

    @property
    def advertised_address(self) -> Address:
        """Return the address that clients connect to."""
        return parse_address(self.advertise or self.listen)

    @property
    def multicast_interface(self) -> str:
        """Return the multicast interface: the configured one, or the address in `listen`; empty if the routing table chooses it."""
        host = self.client_address.host
        own = "127.0.0.1" if host == "localhost" else host
        return self.multicast.interface or (own if is_ipv4(own) else "")

    @property
    def group_address(self) -> Address:
        """Return the address on which it listens for other gateways."""
        return self._port_at(self.ports.group, GROUP_PORT_DISTANCE)

    @property
    def founders(self) -> dict[str, str]:
        """Return the gateways that found the group, with their addresses as in the roster; at least this one."""
        alone = MemberAddress(self.advertised_address, Address(self.advertised_address.host, self.group_address.port))
        return self.group.members or {self.name: str(alone)}

    @property
    def reads_address(self) -> Address:
        """Return the address on which it serves reads (Arrow Flight)."""
        return self._port_at(self.ports.reads, 2)

    @property
    def admin_address(self) -> Address:
        """Return the address on which it serves admin requests (HTTP)."""
        return self._port_at(self.ports.admin, 3)

    def _port_at(self, port: int | None, distance: int) -> Address:
        host, base = self.client_address
        return Address(host, port or base + distance)


def parse_address(text: str) -> Address:
    """Return the host and port of `HOST:PORT`; a numeric IPv6 host is in brackets.

    Raises:
        ConfigError: the text does not have that form.
    """
    try:
        return parse_host_port(text)
    except UsageError as error:
        raise ConfigError(str(error)) from None


_UNITS_US = {"m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
DURATION_DAYS_MAX = 36_500


def parse_duration(text: str) -> int:
    """Return a duration such as 7d, 36h or 90m in microseconds.

    Raises:
        ConfigError: the text does not have that form, or the duration is 0 or above a hundred years.
    """
    found = re.fullmatch(r"([0-9]{1,9})([mhd])", text)
    duration = int(found[1]) * _UNITS_US[found[2]] if found else 0
    if not 0 < duration <= DURATION_DAYS_MAX * _UNITS_US["d"]:
        raise ConfigError(
            f"{text!r} is not a duration: write a whole number of days, hours or minutes above 0, such as 7d, 36h or 90m"
        )
    return duration


def is_multicast(host: str) -> bool:
    """True if `host` is an IPv4 multicast address."""
    try:
        return IPv4Address(host).is_multicast
    except ValueError:
        return False


def is_ipv4(host: str) -> bool:
    """True if `host` is an IPv4 address of one interface."""
    try:
        address = IPv4Address(host)
    except ValueError:
        return False
    return not (address.is_multicast or address.is_unspecified)
