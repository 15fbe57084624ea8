"""The keys of a gateway's configuration, as structs. `Meta` holds each key's bounds and its text in docs/reference/config.md."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Annotated, Literal

from msgspec import Meta, Struct

from tutti import limits as common_limits
from tutti.data.member_address import GROUP_PORT_DISTANCE, PORT_MAX, Address, MemberAddress, parse_host_port
from tutti.errors import ConfigError, UsageError
from tutti.toml.units import SIZE_UNITS, TIME_UNITS, Duration, Milliseconds, Size, parse_quantity, quantity_text
from tutti_gateway.core import limits

DEFAULT_PRESET: Literal["lan"] = "lan"

#: Default timers of each preset. A heartbeat interval is about five network round trips, which is 1 s between cities.
#: On a fast network the interval is 100 ms or 200 ms, because process scheduling then causes longer delays than the network.
PRESETS: dict[str, dict[str, int]] = {
    "local": {"heartbeat_ms": 100, "tick_ms": 1000, "atomic_heartbeats": 20},
    "lan": {"heartbeat_ms": 200, "tick_ms": 1000, "atomic_heartbeats": 10},
    "wan": {"heartbeat_ms": 1000, "tick_ms": 1000, "atomic_heartbeats": 10},
}

Port = Annotated[int, Meta(ge=1, le=PORT_MAX)]


class Ports(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Separate ports. By default, gateways connect to each other on P+1; reads use P+2, and the admin pages use P+3."""

    group: Annotated[Port | None, Meta(description="port for the other gateways (ZMTP)")] = None
    reads: Annotated[Port | None, Meta(description="port for reads (Arrow Flight)")] = None
    admin: Annotated[Port | None, Meta(description="port for the admin pages (HTTP)")] = None


class Group(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The process group of the gateway."""

    name: Annotated[str, Meta(description="name of the group; a gateway refuses the data directory of another group")] = "ingest"
    members: Annotated[
        dict[str, str],
        Meta(
            description="founding members of the group: each gateway's name, and its address HOST:PORT (HOST:PORT/GROUP-PORT where "
            "`ports.group` is set); default: this gateway alone"
        ),
    ] = {}
    transport: Annotated[
        Literal["mesh", "multicast"],
        Meta(
            description="transport between gateways: mesh (a connection between each pair), or multicast (UDP for messages to all, "
            "the mesh for the rest)"
        ),
    ] = "mesh"
    preset: Annotated[
        Literal["local", "lan", "wan"],
        Meta(description="default timers: local (one machine), lan (one building) or wan (several cities)"),
    ] = DEFAULT_PRESET


class Timers(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Timers. A timer that is not set has the value of the preset."""

    heartbeat_ms: Annotated[Milliseconds, Meta(ge=10, le=10_000, description="time between heartbeats, ms")] = PRESETS[
        DEFAULT_PRESET
    ]["heartbeat_ms"]
    tick_ms: Annotated[Milliseconds, Meta(ge=10, le=3_600_000, description="time between ticks while records arrive, ms")] = (
        PRESETS[DEFAULT_PRESET]["tick_ms"]
    )
    atomic_heartbeats: Annotated[
        int, Meta(ge=2, le=1000, description="heartbeat intervals without a vote after which a member leaves the view")
    ] = PRESETS[DEFAULT_PRESET]["atomic_heartbeats"]


class Log(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The log on disk."""

    segment_bytes: Annotated[
        Size,
        Meta(ge=limits.SEGMENT_BYTES_MIN, le=2**31 - common_limits.MIB, description="size of a segment file, bytes"),
    ] = common_limits.SEGMENT_BYTES
    first_segment_bytes: Annotated[
        Size,
        Meta(
            ge=0,
            le=2**31 - common_limits.MIB,
            description="size of the first segment file, bytes; each later segment is twice as large as the previous one, up to "
            "`segment_bytes`, and `prepared_segments` must be 0; 0: all segments have `segment_bytes`",
        ),
    ] = 0
    prepared_segments: Annotated[
        int, Meta(ge=0, le=64, description="number of zero-filled segments to prepare while the disk is idle")
    ] = common_limits.PREPARED_SEGMENTS
    vote_mark: Annotated[
        Literal["timely", "strict"],
        Meta(
            description="timely: corrupt data that was synced in the last 10 ms before a crash may be treated as a torn write; "
            "strict: synced data is never treated as torn, at the cost of one more small sync for each group of messages"
        ),
    ] = "timely"
    disk_low_bytes: Annotated[
        Size,
        Meta(
            ge=4 * common_limits.RESERVED_BYTES,
            le=2**50,
            description="free space below which the gateway refuses new messages but serves reads, bytes; at least "
            f"`limits.undecided_bytes` plus the reserve of {quantity_text(common_limits.RESERVED_BYTES, SIZE_UNITS)}",
        ),
    ] = common_limits.DISK_LOW_BYTES


class Retention(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Retention limits of the log. Set a size limit, an age limit or both; without a limit, the log keeps everything. The group
    removes whole segments, oldest first, and the log then starts at the same offset on all gateways. A segment that a gateway of
    the roster lacks stays until the log has twice the limit. Each gateway applies the same limits to its copy of each lane of
    unordered records, but keeps every record that a gateway of the roster lacks.
    """

    bytes: Annotated[
        Size, Meta(ge=0, le=2**60, description="approximate total size of the segments, at least two segments, bytes; 0: no limit")
    ] = 0
    time: Annotated[
        Duration,
        Meta(
            description='age after which records are removed, such as "7d", "36h" or "90m"; default: no limit',
            examples=["7d"],
        ),
    ] = ""
    keep_for: Annotated[
        list[str],
        Meta(
            max_length=limits.RETENTION_READERS_MAX,
            description="named readers, such as an archiver or a Spark query with a `queryName`: retention keeps every record that "
            "one of these readers has not read; if the disk becomes low, the gateway refuses new messages instead of removing "
            "records; set the same value on all gateways",
            examples=[["archive"]],
        ),
    ] = []

    @property
    def time_us(self) -> int:
        """Return `time` in microseconds, 0 for no limit."""
        return parse_duration(self.time) if self.time else 0


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of a gateway, which together determine its memory. Above a limit, the gateway delays the sender, or refuses the
    request with an error that names the limit.
    """

    sessions: Annotated[int, Meta(ge=1, le=limits.SESSIONS_CONFIG_MAX, description="clients connected at the same time")] = (
        limits.SESSIONS_MAX
    )
    producers: Annotated[int, Meta(ge=1, le=limits.PRODUCERS_CONFIG_MAX, description="producers whose state the group keeps")] = (
        limits.PRODUCERS_MAX
    )
    topics: Annotated[int, Meta(ge=1, le=limits.TOPICS_CONFIG_MAX, description="topics of the group")] = common_limits.TOPICS_MAX
    undecided_bytes: Annotated[
        Size,
        Meta(
            ge=limits.UNDECIDED_BYTES_CONFIG_MIN,
            le=limits.UNDECIDED_BYTES_CONFIG_MAX,
            description="bytes of undecided client data above which clients wait",
        ),
    ] = limits.UNDECIDED_BYTES_MAX


class Multicast(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """UDP multicast, used if `[group] transport = "multicast"`. Set the same values on all gateways. If the network does not
    deliver multicast datagrams, the gateways use the mesh.
    """

    address: Annotated[str, Meta(description="IPv4 multicast address and port of the group; several groups may share it")] = (
        "239.255.84.84:7499"
    )
    interface: Annotated[
        str | None, Meta(description="network interface, by name or IPv4 address; default: the interface of `listen`")
    ] = None
    ttl: Annotated[
        int,
        Meta(
            ge=0, le=255, description="time to live of a datagram: 1 plus the number of routers that it may pass; 0: this host only"
        ),
    ] = 1
    datagram_bytes: Annotated[
        Size,
        Meta(
            ge=limits.MULTICAST_DATAGRAM_BYTES_MIN,
            le=limits.MULTICAST_DATAGRAM_BYTES_MAX,
            description="largest datagram, bytes; use 8900 where all hosts and switches support jumbo frames",
        ),
    ] = limits.MULTICAST_DATAGRAM_BYTES
    bytes_per_second: Annotated[
        Size,
        Meta(
            ge=common_limits.MIB,
            le=2**34,
            description="sending rate of one gateway, bytes a second; set it below the rate of the slowest switch port",
        ),
    ] = limits.MULTICAST_BYTES_A_SECOND


class Logging(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The log lines that the gateway writes to standard error."""

    level: Annotated[
        Literal["info", "debug"],
        Meta(description="debug: log each step of each message too, so that `tutti trace` can follow a message across gateways"),
    ] = "info"


class Security(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Security (docs/how-to/security.md). With keys, gateways encrypt their connections (CURVE) and accept only gateways with a
    listed key, and clients may encrypt their connections. With tokens, clients must encrypt their connections, and each token has
    its own permissions. A certificate (TLS) encrypts reads and admin pages.
    """

    secret_key: Annotated[
        str | None,
        Meta(description="file of this gateway's secret key, created by `tutti keys new`; only the gateway's user may read it"),
    ] = None
    public_keys: Annotated[
        str | None,
        Meta(description="file of the public keys of all gateways, the same on every gateway; a gateway reloads a changed file"),
    ] = None
    tokens: Annotated[
        str | None,
        Meta(
            description="file of client tokens, created by `tutti tokens new`, the same on every gateway; a gateway reloads a "
            "changed file; tokens require keys"
        ),
    ] = None
    tls_certificate: Annotated[
        str | None,
        Meta(description="file of this gateway's certificate chain (PEM), for reads and admin pages"),
    ] = None
    tls_key: Annotated[
        str | None, Meta(description="file of the certificate's private key (PEM); only the gateway's user may read it")
    ] = None
    open_metrics: Annotated[bool, Meta(description="true: `/metrics` needs no token, like `/healthz` and `/readyz`")] = False
    insecure: Annotated[
        bool, Meta(description="true: accept connections from other hosts even without keys, tokens or a certificate")
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
        """Return which of keys, tokens and certificate are not configured. Access from other hosts requires all three."""
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
        """Return `multicast.interface`, or else the host of `listen` if it is an IPv4 address, or else "": the kernel's choice."""
        host = self.client_address.host
        own = "127.0.0.1" if host == "localhost" else host
        return self.multicast.interface or (own if is_ipv4(own) else "")

    @property
    def group_address(self) -> Address:
        """Return the address on which the gateway listens for other gateways."""
        return self._port_at(self.ports.group, GROUP_PORT_DISTANCE)

    @property
    def founders(self) -> dict[str, str]:
        """Return the founding members (name -> address as in the roster): `group.members`, or this gateway alone."""
        alone = MemberAddress(self.advertised_address, Address(self.advertised_address.host, self.group_address.port))
        return self.group.members or {self.name: str(alone)}

    @property
    def reads_address(self) -> Address:
        """Return the address on which the gateway serves reads (Arrow Flight)."""
        return self._port_at(self.ports.reads, 2)

    @property
    def admin_address(self) -> Address:
        """Return the address on which the gateway serves admin requests (HTTP)."""
        return self._port_at(self.ports.admin, 3)

    def _port_at(self, port: int | None, distance: int) -> Address:
        host, base = self.client_address
        return Address(host, port or base + distance)


def parse_address(text: str) -> Address:
    """Parse `HOST:PORT` into host and port. A numeric IPv6 host must be in brackets.

    Raises:
        ConfigError: `text` is not a valid HOST:PORT.
    """
    try:
        return parse_host_port(text)
    except UsageError as error:
        raise ConfigError(str(error)) from None


DURATION_DAYS_MAX = 36_500
DURATION_REMEDY = f"write a whole number above 0 and a unit ({', '.join(TIME_UNITS)}), at most {DURATION_DAYS_MAX}d"


def parse_duration(text: str) -> int:
    """Parse a duration such as 7d, 36h or 90m, and return it in microseconds.

    Raises:
        ConfigError: `text` is not a whole number with a unit of time, or the duration is 0 or above a hundred years.
    """
    duration_ms = parse_quantity(text, TIME_UNITS) or 0
    if not 0 < duration_ms <= DURATION_DAYS_MAX * TIME_UNITS["d"]:
        raise ConfigError(f"{text!r} is not a duration: {DURATION_REMEDY}, such as 7d, 36h or 90m")
    return duration_ms * 1000


def is_multicast(host: str) -> bool:
    """True if `host` is an IPv4 multicast address."""
    try:
        return IPv4Address(host).is_multicast
    except ValueError:
        return False


def is_ipv4(host: str) -> bool:
    """True if `host` is a numeric IPv4 address that a single interface can have: neither multicast nor 0.0.0.0."""
    try:
        address = IPv4Address(host)
    except ValueError:
        return False
    return not (address.is_multicast or address.is_unspecified)
