"""The configuration of a gateway. The structs list the keys; `Meta` holds bounds and the text of docs/reference/config.md."""

from __future__ import annotations

import re
from ipaddress import IPv4Address
from typing import Annotated, Literal

from msgspec import Meta, Struct

from tutti import limits as common_limits
from tutti.data.addresses import GROUP_DISTANCE, PORT_MAX, Address, MemberAddress, parse_host_port
from tutti.errors import ConfigError, UsageError
from tutti_gateway.core import limits

DEFAULT_PRESET: Literal["lan"] = "lan"

#: preset -> what [timers] is filled with where it says nothing. A heartbeat is five usual round trips and no less than what the
#: operating system keeps to: 100 ms within a machine, 200 ms within a building, 1 s between cities.
PRESETS: dict[str, dict[str, int]] = {
    "local": {"heartbeat_ms": 100, "tick_ms": 1000, "atomic_heartbeats": 20},
    "lan": {"heartbeat_ms": 200, "tick_ms": 1000, "atomic_heartbeats": 10},
    "wan": {"heartbeat_ms": 1000, "tick_ms": 1000, "atomic_heartbeats": 10},
}

Port = Annotated[int, Meta(ge=1, le=PORT_MAX)]


class Ports(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ports of their own; without them the group has P+1, the reads P+2, the admin pages P+3."""

    group: Annotated[Port | None, Meta(description="between gateways (ZMTP)")] = None
    reads: Annotated[Port | None, Meta(description="reads (Arrow Flight)")] = None
    admin: Annotated[Port | None, Meta(description="admin pages (HTTP)")] = None


class Group(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The process group that the gateway belongs to."""

    name: Annotated[str, Meta(description="name of the group; a data directory of another one is refused")] = "ingest"
    members: Annotated[
        dict[str, str],
        Meta(
            description="gateways that found the group and their HOST:PORT (HOST:PORT/GROUP-PORT where `ports.group` is set); "
            "this gateway alone when left out"
        ),
    ] = {}
    transport: Annotated[
        Literal["mesh", "multicast"],
        Meta(
            description="how gateways talk to each other: mesh (connections, each to each), or multicast (UDP for what all get, "
            "the mesh for the rest)"
        ),
    ] = "mesh"
    preset: Annotated[Literal["local", "lan", "wan"], Meta(description="timers for one machine, one building, several cities")] = (
        DEFAULT_PRESET
    )


class Timers(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times; each one that is left out comes from the preset."""

    heartbeat_ms: Annotated[int, Meta(ge=10, le=10_000, description="time between heartbeats, ms")] = PRESETS[DEFAULT_PRESET][
        "heartbeat_ms"
    ]
    tick_ms: Annotated[int, Meta(ge=10, le=3_600_000, description="time between ticks while records arrive, ms")] = PRESETS[
        DEFAULT_PRESET
    ]["tick_ms"]
    atomic_heartbeats: Annotated[
        int, Meta(ge=2, le=1000, description="heartbeats without any vote after which a member is given up")
    ] = PRESETS[DEFAULT_PRESET]["atomic_heartbeats"]


class Log(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The log on disk."""

    segment_bytes: Annotated[
        int,
        Meta(ge=limits.SEGMENT_BYTES_MIN, le=2**31 - common_limits.MIB, description="size of a segment file, bytes"),
    ] = common_limits.SEGMENT_BYTES
    prepared_segments: Annotated[
        int, Meta(ge=0, le=64, description="segments written with zeros ahead of their use, while the disk is idle")
    ] = common_limits.PREPARED_SEGMENTS
    vote_mark: Annotated[
        Literal["timely", "strict"],
        Meta(
            description="timely: what was synced in the last 10 ms before a crash may be taken for torn if it is damaged "
            "too; strict: never, for one more small sync a group of messages"
        ),
    ] = "timely"
    disk_low_bytes: Annotated[
        int,
        Meta(
            ge=4 * common_limits.RESERVED_BYTES,
            le=2**50,
            description="free space below which new messages are refused; reads go on, bytes; no less than "
            f"`limits.undecided_bytes` and the reserve, {common_limits.RESERVED_BYTES}, together",
        ),
    ] = common_limits.DISK_LOW_BYTES


class Retention(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of the log is kept; either limit alone, both, or none: then all of it. Whole segments go, the oldest first, on all
    gateways from the same offset on; what a gateway of the roster has not got yet stays until twice the limit. Of each lane of
    unordered records the same limits hold, on each gateway for itself, and what a gateway of the roster has not got stays.
    """

    bytes: Annotated[
        int, Meta(ge=0, le=2**60, description="the segments together take about so much, two segments at least; 0: no limit")
    ] = 0
    time: Annotated[
        str,
        Meta(
            description='how long a record stays after it was committed, "7d", "36h" or "90m" for example; left out: for ever',
            examples=["7d"],
        ),
    ] = ""
    keep_for: Annotated[
        list[str],
        Meta(
            max_length=limits.RETENTION_READERS_MAX,
            description="named readers (an archiver, a Spark query with a `queryName`): what one of them has not read stays, "
            "whatever the limits say; when the disk runs low new messages are refused; the same on all gateways",
            examples=[["archive"]],
        ),
    ] = []

    @property
    def time_us(self) -> int:
        """`time` in microseconds, 0 for ever."""
        return parse_duration(self.time) if self.time else 0


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds, which together must fit into a gateway's memory; over one a sender is held back or refused with a clear error."""

    sessions: Annotated[int, Meta(ge=1, le=limits.SESSIONS_MOST, description="clients connected at once")] = limits.SESSIONS_MAX
    producers: Annotated[int, Meta(ge=1, le=limits.PRODUCERS_MOST, description="producers known at once")] = limits.PRODUCERS_MAX
    topics: Annotated[int, Meta(ge=1, le=limits.TOPICS_MOST, description="topics")] = common_limits.TOPICS_MAX
    undecided_bytes: Annotated[
        int,
        Meta(
            ge=limits.UNDECIDED_BYTES_LEAST,
            le=limits.UNDECIDED_BYTES_MOST,
            description="taken in and not yet decided; above it clients wait, bytes",
        ),
    ] = limits.UNDECIDED_BYTES_MAX


class Multicast(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where `[group] transport = "multicast"` sends what all gateways get alike; the same on each of them. Where the network does
    not carry it, everything goes over the mesh.
    """

    address: Annotated[str, Meta(description="IPv4 multicast address and port of the group; several groups may share one")] = (
        "239.255.84.84:7499"
    )
    interface: Annotated[
        str | None, Meta(description="network interface by name or IPv4 address; that of `listen` when left out")
    ] = None
    ttl: Annotated[int, Meta(ge=0, le=255, description="routers that a datagram may pass, and one; 0: this host alone")] = 1
    datagram_bytes: Annotated[
        int,
        Meta(
            ge=limits.MULTICAST_DATAGRAM_BYTES_MIN,
            le=limits.MULTICAST_DATAGRAM_BYTES_MAX,
            description="largest datagram, bytes; 8900 where all hosts and switches take jumbo frames",
        ),
    ] = limits.MULTICAST_DATAGRAM_BYTES
    bytes_per_second: Annotated[
        int,
        Meta(
            ge=common_limits.MIB,
            le=2**34,
            description="pace at which one gateway sends, bytes a second; below what the slowest port takes",
        ),
    ] = limits.MULTICAST_BYTES_A_SECOND


class Logging(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the gateway writes to standard error."""

    level: Annotated[
        Literal["info", "debug"],
        Meta(description="debug: also what becomes of each message, under the name that it has on every gateway (`tutti trace`)"),
    ] = "info"


class Security(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Security (docs/how-to/security.md). With keys, gateways encrypt what they say to each other (CURVE) and let in only each
    other, and clients may encrypt what they say to a gateway; with tokens they have to, and each may do what is listed for its
    token. Reads and admin pages are encrypted with a certificate (TLS).
    """

    secret_key: Annotated[
        str | None,
        Meta(description="file of this gateway's keys, made by `tutti keys new`, which only its user may read"),
    ] = None
    public_keys: Annotated[
        str | None,
        Meta(description="file of the public keys of all gateways of the group, the same everywhere; read again when it changes"),
    ] = None
    tokens: Annotated[
        str | None,
        Meta(
            description="file of the tokens of clients, made by `tutti tokens new`, the same everywhere; read again when it "
            "changes; takes keys, too"
        ),
    ] = None
    tls_certificate: Annotated[
        str | None,
        Meta(description="file of this gateway's certificate and those of who signed it (PEM), for reads and admin pages"),
    ] = None
    tls_key: Annotated[str | None, Meta(description="file of the certificate's secret key (PEM), which only its user may read")] = (
        None
    )
    open_metrics: Annotated[bool, Meta(description="true: `/metrics` takes no token, as `/healthz` and `/readyz` take none")] = (
        False
    )
    insecure: Annotated[
        bool, Meta(description="true: listen beyond this machine although not everything is encrypted and authenticated")
    ] = False

    @property
    def has_keys(self) -> bool:
        """Whether gateways are told by their keys."""
        return bool(self.secret_key and self.public_keys)

    @property
    def has_tls(self) -> bool:
        """Whether reads and admin pages are encrypted."""
        return bool(self.tls_certificate and self.tls_key)

    @property
    def missing(self) -> list[str]:
        """What is not there of what protects a gateway that others can reach."""
        has = {
            "keys (`tutti keys new`; secret_key, public_keys)": self.has_keys,
            "tokens (`tutti tokens new`; tokens)": bool(self.tokens),
            "a certificate (tls_certificate, tls_key)": self.has_tls,
        }
        return [what for what, there in has.items() if not there]


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that one gateway is told."""

    name: Annotated[str, Meta(description="this gateway's name", examples=["jfk"])]
    data: Annotated[
        str,
        Meta(description="its directory, made if missing; another gateway's or group's is refused", examples=["data/jfk"]),
    ]
    listen: Annotated[
        str,
        Meta(description="HOST:PORT for clients; PORT is the base P of the other ports", examples=["127.0.0.1:7400"]),
    ]
    advertise: Annotated[str | None, Meta(description="HOST:PORT that clients are told, where it differs from `listen`")] = None
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
        """Where the gateway listens for clients."""
        return parse_address(self.listen)

    @property
    def advertised_address(self) -> Address:
        """Where clients are told to come."""
        return parse_address(self.advertise or self.listen)

    @property
    def multicast_interface(self) -> str:
        """Where multicast goes out and comes in: as told, or that of `listen` where it is an address; empty: as the routes say."""
        host = self.client_address.host
        own = "127.0.0.1" if host == "localhost" else host
        return self.multicast.interface or (own if is_ipv4(own) else "")

    @property
    def group_address(self) -> Address:
        """Where it listens for other gateways."""
        return self._beside(self.ports.group, GROUP_DISTANCE)

    @property
    def founders(self) -> dict[str, str]:
        """The gateways that found the group, and their addresses as the roster writes them: at least this one."""
        alone = MemberAddress(self.advertised_address, Address(self.advertised_address.host, self.group_address.port))
        return self.group.members or {self.name: str(alone)}

    @property
    def reads_address(self) -> Address:
        """Where it listens for readers (Arrow Flight)."""
        return self._beside(self.ports.reads, 2)

    @property
    def admin_address(self) -> Address:
        """Where it listens for admin requests (HTTP)."""
        return self._beside(self.ports.admin, 3)

    def _beside(self, port: int | None, distance: int) -> Address:
        host, base = self.client_address
        return Address(host, port or base + distance)


def parse_address(text: str) -> Address:
    """The host and port of `HOST:PORT`; a numeric IPv6 host stands in brackets.

    Raises:
        ConfigError: it is not of that form.
    """
    try:
        return parse_host_port(text)
    except UsageError as error:
        raise ConfigError(str(error)) from None


_UNITS_US = {"m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
DURATION_DAYS_MAX = 36_500


def parse_duration(text: str) -> int:
    """Microseconds of a time like 7d, 36h or 90m.

    Raises:
        ConfigError: it is not of that form, nothing, or above a hundred years.
    """
    found = re.fullmatch(r"([0-9]{1,9})([mhd])", text)
    duration = int(found[1]) * _UNITS_US[found[2]] if found else 0
    if not 0 < duration <= DURATION_DAYS_MAX * _UNITS_US["d"]:
        raise ConfigError(f"{text!r} is no time: write a whole number of days, hours or minutes above 0, 7d, 36h or 90m")
    return duration


def is_multicast(host: str) -> bool:
    """Whether `host` is an IPv4 multicast address."""
    try:
        return IPv4Address(host).is_multicast
    except ValueError:
        return False


def is_ipv4(host: str) -> bool:
    """Whether `host` is an IPv4 address of one interface."""
    try:
        address = IPv4Address(host)
    except ValueError:
        return False
    return not (address.is_multicast or address.is_unspecified)
