"""Configuration of a gateway: reads a TOML file into a frozen typed `Config`, and explains every mistake in the file."""

from tutti.data.member_address import Address
from tutti.toml.mistakes import Mistake
from tutti_gateway.config.advice import advice, unknown_hosts
from tutti_gateway.config.loader import check_config, load_config, parse_config
from tutti_gateway.config.model import Config, parse_address

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
