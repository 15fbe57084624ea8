"""`tutti dev`: gateways on this machine, started, watched and stopped together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from tutti_gateway.cli.common.interrupts import Loading
from tutti_gateway.cli.common.options import NumberRange
from tutti_gateway.cli.common.output import note

GATEWAYS_MAX = 7  # on one machine, all with disks of their own: more would only wait for each other


@click.command()
@click.option("--gateways", "count", type=click.IntRange(1, GATEWAYS_MAX), default=1, show_default=True, help="How many.")
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
    type=NumberRange(min=0, max=1_000_000),
    default=1.0,
    show_default=True,
    metavar="S",
    help="Start a killed gateway again after S seconds; 0: never.",
)
@click.option(
    "--log-level", "level", type=click.Choice(["info", "debug"]), help="debug: what becomes of each message, for tutti trace."
)
@click.option("--record", metavar="DIR", help="Record all of them in DIR, as tutti serve --record does.")
@click.option("--keys", is_flag=True, help="Encrypt what they say to each other, with keys that are made in DIR/keys.")
def dev(count: int, port: int, directory: Path, restart_after_s: float, level: str | None, record: str | None, keys: bool) -> int:
    """Run gateways g1..gN on this machine, for trying and for tests.

    They are one group, each with a process, ports and a directory of its own. One line of JSON on standard output says that they
    are ready and where they are; logs go to standard error. Ctrl-C or SIGTERM stops all. A gateway that left (`tutti leave gN`) is
    not started again, one that was removed (`tutti members remove gN`) not even next time. When none is left, it ends.
    """
    names = [f"g{number + 1}" for number in range(count)]
    options = ["--log-level", level] if level else []
    options += ["--record", record] if record else []
    return run_group(names, port, directory, restart_after_s, options, command="dev", keys=keys)


def run_group(
    names: Sequence[str],
    port: int,
    directory: Path,
    restart_after_s: float,
    options: Sequence[str] = (),
    *,
    command: str,
    keys: bool = False,
) -> int:
    """Run gateways of these names as one group until told to stop; the exit code. `options` are those of each one's `tutti serve`,
    `command` is who asks, and the group's name; with `keys` they encrypt what they say to each other.
    """
    with Loading():
        from tutti_gateway.cli.group.fleet import Fleet
        from tutti_gateway.cli.group.gateway_directories import found_group, keeping

    directory = directory.absolute()
    with keeping(directory):
        homes = found_group(directory, names, port, command, keys)
        count = len(homes)
        if count % 2 == 0:
            borne = (count - 1) // 2 or "none"
            do = "does" if count - 1 == 1 else "do"
            note(f"{command}: {count} gateways bear the loss of {borne}, as {count - 1} {do}: an odd number is the better one")
        return Fleet(homes, restart_after_s, options).run()
