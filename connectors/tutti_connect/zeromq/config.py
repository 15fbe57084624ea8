"""Configuration of the ZeroMQ connectors: one TOML file for each."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from tutti.data.member_address import is_loopback
from tutti.errors import ConfigError
from tutti.toml.loader import load_struct
from tutti_connect.config import check_connector_name, check_gateways, check_topic, example
from tutti_connect.zeromq import limits

Role = Literal["topic", "key", "value", "skip"]
HighWaterMark = Annotated[int, Meta(ge=1, le=limits.HIGH_WATER_MARK_MAX)]


class Curve(Struct, frozen=True):
    """Table [curve]: encryption and authentication. Without this table, the sockets have neither.

    Attributes:
        certificate: file with the key pair of the connector, such as `NAME.key_secret` from ZeroMQ's tools.
        server: file with the public key of the peer; required by `connect`.
        clients: directory with the public keys (`*.key`) of the peers that may connect; required by `bind`.
    """

    certificate: str = ""
    server: str = ""
    clients: str = ""


class Source(Struct, frozen=True):
    """Table [zeromq] of zeromq-in.

    Attributes:
        socket: type of the socket; "pull" slows its PUSH peers under overload, and "sub" drops messages of PUB peers.
        bind, connect: endpoints, such as `tcp://127.0.0.1:5555`.
        subscribe: prefixes of the messages to receive with "sub"; by default all messages.
        frames: role of each frame of a message.
        high_water_mark: number of messages that ZeroMQ buffers for one connection.
    """

    socket: Annotated[Literal["pull", "sub"], Meta(extra_json_schema={"examples": ["pull"]})]
    bind: list[str] = field(default_factory=list)
    connect: list[str] = field(default_factory=list)
    subscribe: list[str] = field(default_factory=list)
    frames: list[Role] = field(default_factory=lambda: ["value"])
    high_water_mark: HighWaterMark = limits.HIGH_WATER_MARK


class SourceConfig(Struct, frozen=True):
    """Configuration of zeromq-in, from ZeroMQ to the log.

    Attributes:
        name: name of the connector and of its producer in the log.
        gateways: addresses of the gateways, as `tutti://HOST:PORT[,HOST:PORT...]`.
        zeromq: table [zeromq], the source.
        quarantine: directory for messages that the log rejects.
        topic: topic of all records, if no frame has the role "topic".
        spool: directory for received messages until they are committed; by default, they stay in memory.
        metrics: address of the endpoint for Prometheus, as HOST:PORT; without it, the connector serves no metrics.
        insecure: allow other hosts to reach sockets without [curve], and the metrics endpoint, which has neither TLS nor a token.
    """

    name: Annotated[str, example("quotes")]
    gateways: Annotated[str, example("tutti://127.0.0.1:7400")]
    zeromq: Source
    quarantine: Annotated[str, example("quarantine/quotes")]
    topic: str = ""
    spool: str = ""
    curve: Curve = Curve()
    metrics: str = ""
    insecure: bool = False


class Target(Struct, frozen=True):
    """Table [zeromq] of zeromq-out.

    Attributes:
        bind, connect: endpoints of the PUB socket.
        nobody: action without a subscriber: "wait" for the first one, or "publish" records that nobody receives.
        slow: whether to "drop" messages to a slow subscriber, or to "wait" for it and delay all others.
        high_water_mark: number of messages that ZeroMQ buffers for one subscriber.
    """

    bind: list[str] = field(default_factory=list)
    connect: list[str] = field(default_factory=list)
    nobody: Literal["wait", "publish"] = "wait"
    slow: Literal["drop", "wait"] = "drop"
    high_water_mark: HighWaterMark = 10 * limits.HIGH_WATER_MARK


class SinkConfig(Struct, frozen=True):
    """Configuration of zeromq-out, from the log to subscribers.

    Attributes:
        name: name of the connector and of its reader in the log.
        gateways: addresses of the gateways, as `tutti://HOST:PORT[,HOST:PORT...]`.
        zeromq: table [zeromq], the target.
        topics: topics of the log to publish; by default all.
        start: position in the log at which publication begins, if the log has no offset of a reader `name`.
        lost: reaction if retention has deleted records before they were published.
        metrics: address of the endpoint for Prometheus, as HOST:PORT; without it, the connector serves no metrics.
        insecure: allow other hosts to reach sockets without [curve], and the metrics endpoint, which has neither TLS nor a token.
    """

    name: Annotated[str, example("quotes-out")]
    gateways: Annotated[str, example("tutti://127.0.0.1:7400")]
    zeromq: Target
    topics: list[str] = field(default_factory=list)
    start: Literal["earliest", "latest"] = "earliest"
    lost: Literal["fail", "skip"] = "fail"
    curve: Curve = Curve()
    metrics: str = ""
    insecure: bool = False


def load_source_config(path: str) -> SourceConfig:
    """Load the configuration of zeromq-in.

    Raises:
        ConfigError: the file is unreadable or wrong; the message has the key, the problem and the remedy.
    """
    config = load_struct(path, SourceConfig)
    check_connector_name(path, config.name)
    check_gateways(path, config.gateways)
    frames = config.zeromq.frames
    _check_endpoints(path, config.zeromq.bind, config.zeromq.connect, config.curve, insecure=config.insecure)
    if config.zeromq.subscribe and config.zeromq.socket != "sub":
        raise ConfigError(f'{path}: zeromq.subscribe is set, but zeromq.socket is "{config.zeromq.socket}": remove subscribe')
    for role in ("topic", "key", "value"):
        if frames.count(role) > 1:
            raise ConfigError(f'{path}: zeromq.frames has "{role}" twice: keep one')
    if "value" not in frames:
        raise ConfigError(f'{path}: zeromq.frames has no "value": add it at the place of the frame that is the value of a record')
    if "topic" not in frames:
        check_topic(path, "topic", config.topic)
    elif config.topic:
        raise ConfigError(f'{path}: topic is set to {config.topic!r}, and zeromq.frames has "topic", too: remove one of them')
    return config


def load_sink_config(path: str) -> SinkConfig:
    """Load the configuration of zeromq-out.

    Raises:
        ConfigError: the file is unreadable or wrong; the message has the key, the problem and the remedy.
    """
    config = load_struct(path, SinkConfig)
    check_connector_name(path, config.name)
    check_gateways(path, config.gateways)
    for topic in config.topics:
        check_topic(path, "topics", topic)
        if config.topics.count(topic) > 1:
            raise ConfigError(f"{path}: topics has {topic!r} twice: keep one")
    _check_endpoints(path, config.zeromq.bind, config.zeromq.connect, config.curve, insecure=config.insecure)
    return config


def _check_endpoints(path: str, bind: list[str], connect: list[str], curve: Curve, *, insecure: bool) -> None:
    if not bind and not connect:
        raise ConfigError(f'{path}: zeromq.bind or zeromq.connect is missing: add one, for example bind = ["tcp://127.0.0.1:5555"]')
    if len(bind) + len(connect) > limits.ENDPOINTS_MAX:
        raise ConfigError(f"{path}: zeromq names {len(bind) + len(connect)} endpoints: at most {limits.ENDPOINTS_MAX} are allowed")
    for endpoint in (*bind, *connect):
        if not endpoint.startswith(("tcp://", "ipc://")):
            raise ConfigError(f"{path}: {endpoint!r} is not an endpoint: write tcp://HOST:PORT or ipc://PATH")
    if curve == Curve():
        opened = next((one for one in bind if one.startswith("tcp://") and not is_loopback(_host_of(one))), None)
        if opened is not None and not insecure:
            raise ConfigError(
                f"{path}: zeromq.bind: other hosts can reach {opened}, and without [curve] any of them may send or read: "
                "add [curve], or bind to 127.0.0.1, or set insecure = true at the top of the file"
            )
        return
    if not curve.certificate:
        raise ConfigError(f"{path}: curve.certificate is missing: give the file of this connector's keys")
    for key, given, needed, what in (
        ("server", curve.server, connect, "connect"),
        ("clients", curve.clients, bind, "bind"),
    ):
        if bool(given) != bool(needed):
            do = f"remove it, because zeromq.{what} is empty" if given else f"zeromq.{what} needs it"
            raise ConfigError(f"{path}: curve.{key} is {given!r}: {do}")


def _host_of(endpoint: str) -> str:
    """Return the host of an endpoint tcp://[SOURCE;]HOST:PORT, which may also be the name of an interface, or `*`."""
    return endpoint.removeprefix("tcp://").rpartition(";")[2].rpartition(":")[0].removeprefix("[").removesuffix("]")
