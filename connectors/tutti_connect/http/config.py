"""What the HTTP connector is told: a TOML file, checked as a gateway's is."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct, field

from tutti.data.addresses import Address, is_loopback, parse_host_port
from tutti.errors import ConfigError, UsageError
from tutti.toml.loader import load_struct
from tutti_connect.config import check_connector_name, check_gateways, example


class Tls(Struct, frozen=True):
    """Table [tls].

    Attributes:
        certificate, key: files, PEM; both, or none.
    """

    certificate: str = ""
    key: str = ""


class Http(Struct, frozen=True):
    """HTTP into the log and out of it.

    Attributes:
        name: the connector's: producers in the log begin with it. Processes of one name serve the same producers.
        gateways: `tutti://HOST:PORT[,HOST:PORT...]`.
        listen: HOST:PORT.
        tls: its certificate.
        spool: directory on this host for posts that do not wait; none without it. Of one process.
        tokens: file of the tokens that are taken; without it everybody may do everything.
        insecure: whether it listens beyond this host without TLS and tokens.
    """

    name: Annotated[str, example("web")]
    gateways: Annotated[str, example("tutti://127.0.0.1:7400")]
    listen: str = "127.0.0.1:7480"
    tls: Tls = field(default_factory=Tls)
    spool: str = ""
    tokens: str = ""
    insecure: bool = False

    @property
    def address(self) -> Address:
        """Host and port to listen on."""
        return parse_host_port(self.listen, port_min=0)


def load_http(path: str) -> Http:
    """The configuration in a file.

    Raises:
        ConfigError: the file cannot be read, or is wrong: where, what, what to do.
    """
    config = load_struct(path, Http)
    check_connector_name(path, config.name)
    check_gateways(path, config.gateways)
    try:
        address = config.address
    except UsageError as error:
        raise ConfigError(f"{path}: listen: {error}") from None
    if bool(config.tls.certificate) != bool(config.tls.key):
        raise ConfigError(f"{path}: tls has a certificate or a key alone: name both files, or none")
    if not (config.insecure or is_loopback(address.host)) and not (config.tls.certificate and config.tokens):
        raise ConfigError(
            f"{path}: listen is {config.listen!r}, which others can reach, and without [tls] and tokens anybody there may write: "
            "set both, listen on 127.0.0.1, or say insecure = true"
        )
    return config
