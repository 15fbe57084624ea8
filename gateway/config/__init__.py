"""The configuration of a gateway: TOML in, a frozen typed `Config` out, and every mistake explained."""

from gateway.config.advice import advice, unknown_hosts
from gateway.config.mistakes import Mistake
from gateway.config.model import Config, parse_address
from gateway.config.reading import check_config, load_config, parse_config
from gateway.data.addresses import Address

__all__ = [
    "Address",
    "Config",
    "Mistake",
    "advice",
    "check_config",
    "load_config",
    "parse_address",
    "parse_config",
    "unknown_hosts",
]
