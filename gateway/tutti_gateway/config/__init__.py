"""The configuration of a gateway: TOML in, a frozen typed `Config` out, and every mistake explained."""

from tutti_gateway.config.advice import advice, unknown_hosts
from tutti.toml.mistakes import Mistake
from tutti_gateway.config.model import Config, parse_address
from tutti_gateway.config.loader import check_config, load_config, parse_config
from tutti.data.addresses import Address

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
