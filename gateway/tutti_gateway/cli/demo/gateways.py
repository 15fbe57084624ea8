"""Runs the demo's gateways (`python -m tutti_gateway.cli.demo.gateways`), and restarts killed gateways as `tutti dev` does."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tutti.errors import TuttiError
from tutti_gateway.cli.group.dev import run_group
from tutti_gateway.cli.group.gateway_directories import PORTS_A_GATEWAY

#: Names of the gateways. The first three are the airports in the data set, and the others are further airports around New York.
NAMES = ("jfk", "lga", "ewr", "isp", "hpn", "swf", "teb")
RESTART_AFTER_S = 1.0


def addresses(count: int, port: int) -> dict[str, str]:
    """Return a dict from the names of the first `count` gateways to their addresses HOST:P."""
    return {name: f"127.0.0.1:{port + PORTS_A_GATEWAY * number}" for number, name in enumerate(NAMES[:count])}


def url_from(airport: str, gateways: dict[str, str]) -> str:
    """Return the URL for a client at an airport. The airport's own gateway comes first, so the client prefers this gateway."""
    names = list(gateways)
    nearest = names.index(airport.lower()) if airport.lower() in gateways else 0
    return "tutti://" + ",".join(gateways[name] for name in names[nearest:] + names[:nearest])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the gateways until SIGTERM or Ctrl-C."""
    parser = argparse.ArgumentParser(prog="gateways", description=__doc__)
    parser.add_argument("--count", required=True, type=int)
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument("--data", required=True, type=Path)
    options = parser.parse_args(arguments)
    try:
        return run_group(NAMES[: options.count], options.port, options.data, RESTART_AFTER_S, command="demo")
    except TuttiError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
