"""What the connectors of ZeroMQ are told: a TOML file each, checked as a gateway's is."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from tutti.data.addresses import is_loopback
from tutti.errors import ConfigError
from tutti.toml.loader import load_struct
from tutti_connect.config import check_connector_name, check_gateways, check_topic, example
from tutti_connect.zeromq import limits

Role = Literal["topic", "key", "value", "skip"]
HighWaterMark = Annotated[int, Meta(ge=1, le=limits.HIGH_WATER_MARK_MAX)]


class Curve(Struct, frozen=True):
    """Table [curve]: encryption and authentication; none without it.

    Attributes:
        certificate: file of the own keys, public and secret, as ZeroMQ's tools make them (`NAME.key_secret`).
        server: file of the public key of whoever is connected to.
        clients: directory of public keys (`*.key`) of those who may connect here.
    """

    certificate: str = ""
    server: str = ""
    clients: str = ""


class Source(Struct, frozen=True):
    """Table [zeromq] of zeromq-in.

    Attributes:
        socket: "pull" takes from PUSH sockets and holds them back, "sub" from PUB sockets, which drop what it has no room for.
        bind, connect: endpoints, as `tcp://127.0.0.1:5555`.
        subscribe: prefixes of messages that a "sub" asks for; all without it.
        frames: what the frames of a message are, one by one.
        high_water_mark: messages that ZeroMQ holds for one connection.
    """

    socket: Annotated[Literal["pull", "sub"], Meta(extra_json_schema={"examples": ["pull"]})]
    bind: list[str] = field(default_factory=list)
    connect: list[str] = field(default_factory=list)
    subscribe: list[str] = field(default_factory=list)
    frames: list[Role] = field(default_factory=lambda: ["value"])
    high_water_mark: HighWaterMark = limits.HIGH_WATER_MARK


class Inflow(Struct, frozen=True):
    """From ZeroMQ into the log.

    Attributes:
        name: the connector's, and its producer's in the log.
        gateways: `tutti://HOST:PORT[,HOST:PORT...]`.
        zeromq: the source.
        quarantine: directory for messages that no log takes.
        topic: of all records, where no frame names it.
        spool: directory for what was taken and is not committed yet; memory without it.
        metrics: HOST:PORT of a page for Prometheus; none without it.
        insecure: whether others may reach what listens without [curve], and that page, which has no TLS, nor a token.
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
        nobody: what to do while nobody subscribes: wait, so that the records come later, or publish to nobody.
        slow: what to do where a subscriber has no room: drop for that one, or wait for it, and let all others wait.
        high_water_mark: messages that ZeroMQ holds for one subscriber.
    """

    bind: list[str] = field(default_factory=list)
    connect: list[str] = field(default_factory=list)
    nobody: Literal["wait", "publish"] = "wait"
    slow: Literal["drop", "wait"] = "drop"
    high_water_mark: HighWaterMark = 10 * limits.HIGH_WATER_MARK


class Outflow(Struct, frozen=True):
    """From the log to subscribers.

    Attributes:
        name: the connector's, and its reader's in the log.
        gateways: `tutti://HOST:PORT[,HOST:PORT...]`.
        zeromq: the target.
        topics: of the log; all without it.
        start: where it begins that has not published under its name yet.
        lost: what to do where retention has removed records that were not published.
        metrics: HOST:PORT of a page for Prometheus; none without it.
        insecure: whether others may reach what listens without [curve], and that page, which has no TLS, nor a token.
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


def load_inflow(path: str) -> Inflow:
    """The configuration of zeromq-in in a file.

    Raises:
        ConfigError: the file cannot be read, or is wrong: where, what, what to do.
    """
    config = load_struct(path, Inflow)
    check_connector_name(path, config.name)
    check_gateways(path, config.gateways)
    frames = config.zeromq.frames
    _check_endpoints(path, config.zeromq.bind, config.zeromq.connect, config.curve, insecure=config.insecure)
    if config.zeromq.subscribe and config.zeromq.socket != "sub":
        raise ConfigError(f'{path}: zeromq.subscribe is set and zeromq.socket is "{config.zeromq.socket}": leave it out')
    for role in ("topic", "key", "value"):
        if frames.count(role) > 1:
            raise ConfigError(f'{path}: zeromq.frames has "{role}" twice: one frame of a message is it')
    if "value" not in frames:
        raise ConfigError(f'{path}: zeromq.frames has no "value": name the frame that is the value of a record')
    if "topic" not in frames:
        check_topic(path, "topic", config.topic)
    elif config.topic:
        raise ConfigError(f'{path}: topic is {config.topic!r} and zeromq.frames has "topic": leave one of them out')
    return config


def load_outflow(path: str) -> Outflow:
    """The configuration of zeromq-out in a file.

    Raises:
        ConfigError: the file cannot be read, or is wrong: where, what, what to do.
    """
    config = load_struct(path, Outflow)
    check_connector_name(path, config.name)
    check_gateways(path, config.gateways)
    for topic in config.topics:
        check_topic(path, "topics", topic)
        if config.topics.count(topic) > 1:
            raise ConfigError(f"{path}: topics has {topic!r} twice: name it once")
    _check_endpoints(path, config.zeromq.bind, config.zeromq.connect, config.curve, insecure=config.insecure)
    return config


def _check_endpoints(path: str, bind: list[str], connect: list[str], curve: Curve, *, insecure: bool) -> None:
    if not bind and not connect:
        raise ConfigError(f'{path}: zeromq.bind or zeromq.connect is missing: add one, for example bind = ["tcp://127.0.0.1:5555"]')
    if len(bind) + len(connect) > limits.ENDPOINTS_MAX:
        raise ConfigError(f"{path}: zeromq names {len(bind) + len(connect)} endpoints: at most {limits.ENDPOINTS_MAX} are taken")
    for endpoint in (*bind, *connect):
        if not endpoint.startswith(("tcp://", "ipc://")):
            raise ConfigError(f"{path}: {endpoint!r} is no endpoint: write tcp://HOST:PORT or ipc://PATH")
    if curve == Curve():
        opened = next((one for one in bind if one.startswith("tcp://") and not is_loopback(_host_of(one))), None)
        if opened is not None and not insecure:
            raise ConfigError(
                f"{path}: zeromq.bind: others reach {opened}, and without [curve] anybody may send or read there: name keys, bind "
                "to 127.0.0.1, or say insecure = true at the top of the file"
            )
        return
    if not curve.certificate:
        raise ConfigError(f"{path}: curve.certificate is missing: name the file of this connector's own keys")
    for key, given, needed, what in (
        ("server", curve.server, connect, "connect"),
        ("clients", curve.clients, bind, "bind"),
    ):
        if bool(given) != bool(needed):
            do = f"leave it out where nothing is in zeromq.{what}" if given else f"zeromq.{what} needs it"
            raise ConfigError(f"{path}: curve.{key} is {given!r}: {do}")


def _host_of(endpoint: str) -> str:
    """The host of tcp://[SOURCE;]HOST:PORT; the name of an interface, or `*`, is one that others reach."""
    return endpoint.removeprefix("tcp://").rpartition(";")[2].rpartition(":")[0].removeprefix("[").removesuffix("]")
