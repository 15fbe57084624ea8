"""`tutti dev`: gateways on this machine, started, watched and stopped together."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.cli.loading import Loading
from gateway.errors import UsageError

PORTS_A_GATEWAY = 10


@click.command()
@click.option("--gateways", "count", type=click.IntRange(min=1), default=1, show_default=True, help="How many.")
@click.option(
    "--port", type=click.IntRange(1, 65_532), default=7400, show_default=True, help="The first one's port; the next are at +10."
)
@click.option(
    "--data",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("data/dev"),
    show_default=True,
    help="Where gateway gN keeps its directory DIR/gN.",
)
@click.option(
    "--restart-after",
    "restart_after_s",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    metavar="S",
    help="Start a killed gateway again after S seconds; 0: never.",
)
def dev(count: int, port: int, directory: Path, restart_after_s: float) -> int:
    """Run gateways g1..gN on this machine, for trying and for tests.

    One line of JSON on standard output says that they are ready and where they are. Ctrl-C or SIGTERM stops all.
    """
    with Loading():
        from gateway.cli.fleet import Fleet, Gateway, keeping

    if count > 1:
        raise UsageError(f"--gateways {count}: groups of several gateways are not built yet; leave it at 1")
    directory = directory.absolute()
    with keeping(directory):
        gateways = [Gateway(f"g{number + 1}", port + PORTS_A_GATEWAY * number, directory) for number in range(count)]
        return Fleet(gateways, restart_after_s).run()
