"""`tutti dev`: starts, supervises and stops gateways on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from tutti.common.gateway_url import DEFAULT_ADDRESS
from tutti_gateway.cli.common.interrupts import ImportGuard
from tutti_gateway.cli.common.options import NumberRange
from tutti_gateway.cli.common.output import note

GATEWAYS_MAX = 7  # more gateways on one machine would only compete for its disk and processors


@click.command()
@click.option("--gateways", "count", type=click.IntRange(1, GATEWAYS_MAX), default=1, show_default=True, help="Number of gateways.")
@click.option(
    "--port",
    type=click.IntRange(1, 65_532),
    default=int(DEFAULT_ADDRESS.rpartition(":")[2]),
    show_default=True,
    help="Base port of the first gateway; each further gateway uses a port higher by 10.",
)
@click.option(
    "--data",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("data/dev"),
    show_default=True,
    help="Parent of the data directories: gateway gN uses DIR/gN.",
)
@click.option(
    "--restart-after",
    "restart_after_s",
    type=NumberRange(min=0, max=1_000_000),
    default=1.0,
    show_default=True,
    metavar="S",
    help="Seconds after which a killed gateway is restarted; 0: never.",
)
@click.option(
    "--log-level", "level", type=click.Choice(["info", "debug"]), help="debug: log each step of each message, for `tutti trace`."
)
@click.option("--record", metavar="DIR", help="Record the protocol events of all gateways in DIR, as `tutti serve --record` does.")
@click.option("--keys", is_flag=True, help="Encrypt the traffic between gateways, with keys created in DIR/keys.")
def dev(count: int, port: int, directory: Path, restart_after_s: float, level: str | None, record: str | None, keys: bool) -> int:
    """Run gateways g1..gN on this machine, for trials and tests.

    The gateways form one group; each has its own process, ports and directory. When the group is ready, the command prints one line
    of JSON with the addresses to standard output; logs go to standard error. Ctrl-C or SIGTERM stops all gateways. After `tutti
    leave gN`, gateway gN is not restarted in this run. After `tutti members remove gN`, gN is not started in later runs either. The
    command ends when no gateway is left.
    """
    names = [f"g{number + 1}" for number in range(count)]
    options = ["--log-level", level] if level else []
    options += ["--record", record] if record else []
    return run_group(names, port, directory, restart_after_s, options, command="dev", keys=keys, small_segments=True)


def run_group(
    names: Sequence[str],
    port: int,
    directory: Path,
    restart_after_s: float,
    options: Sequence[str] = (),
    *,
    command: str,
    keys: bool = False,
    small_segments: bool = False,
) -> int:
    """Run one gateway for each name, as one group, until SIGTERM or Ctrl-C. Return the exit code.

    Args:
        names: names of the gateways.
        port: base port of the first gateway; each further gateway has a base port that is higher by 10.
        directory: parent of the data directories.
        restart_after_s: delay before a killed gateway is started again, seconds; 0: it is not started again.
        options: options of `tutti serve` for each gateway.
        command: name of the calling command, which is also the name of the group.
        keys: True to encrypt the traffic between the gateways.
        small_segments: True if the log of each gateway begins with small segments, which saves disk space.
    """
    with ImportGuard():
        from tutti_gateway.cli.group.fleet import Fleet
        from tutti_gateway.cli.group.gateway_directories import locked, write_group

    directory = directory.absolute()
    with locked(directory):
        all_paths = write_group(directory, names, port, command, keys=keys, small_segments=small_segments)
        count = len(all_paths)
        if count % 2 == 0:
            tolerated = (count - 1) // 2 or "none"
            do = "does" if count - 1 == 1 else "do"
            note(f"{command}: {count} gateways tolerate the loss of {tolerated}, as {count - 1} {do}: choose an odd number")
        return Fleet(all_paths, restart_after_s, options).run()
