"""Configuration of the HTTP connector: one TOML file."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct, field

from tutti.data.member_address import Address, is_loopback, parse_host_port
from tutti.errors import ConfigError, UsageError
from tutti.toml.loader import load_struct
from tutti_connect.config import check_connector_name, check_gateways, example


class Tls(Struct, frozen=True):
    """Table [tls].

    Attributes:
        certificate, key: PEM files; both or neither.
    """

    certificate: str = ""
    key: str = ""


class Http(Struct, frozen=True):
    """Configuration of the HTTP connector.

    Attributes:
        name: name of the connector, shared by its processes, and prefix of its producers' names in the log.
        gateways: addresses of the gateways, as `tutti://HOST:PORT[,HOST:PORT...]`.
        listen: address to listen on, as HOST:PORT.
        tls: files of the TLS certificate.
        spool: directory on this host for posts with wait=false, one for each process; without it, they stay in memory.
        tokens: token file; without it, every caller may do everything.
        insecure: allow other hosts to reach the port without TLS and tokens.
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
        """Return the host and port to listen on."""
        return parse_host_port(self.listen, port_min=0)


def load_http(path: str) -> Http:
    """Load and check the configuration file of the HTTP connector.

    Raises:
        ConfigError: the file is unreadable or wrong; the message has the key, the problem and the remedy.
    """
    config = load_struct(path, Http)
    check_connector_name(path, config.name)
    check_gateways(path, config.gateways)
    try:
        address = config.address
    except UsageError as error:
        raise ConfigError(f"{path}: listen: {error}") from None
    if bool(config.tls.certificate) != bool(config.tls.key):
        raise ConfigError(f"{path}: tls needs both a certificate and a key: set both files, or neither")
    if not (config.insecure or is_loopback(address.host)) and not (config.tls.certificate and config.tokens):
        raise ConfigError(
            f"{path}: other hosts can reach {config.listen!r} (listen), and without both [tls] and tokens any of them may write: "
            "set both, or listen on 127.0.0.1, or set insecure = true"
        )
    return config
