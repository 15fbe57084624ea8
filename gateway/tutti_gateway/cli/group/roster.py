"""`tutti roster force`: lets the remaining gateways continue after the permanent loss of a majority."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import click

from tutti.errors import UsageError
from tutti_gateway.cli.common.gateways import await_gateway
from tutti_gateway.cli.common.options import json_option, url_option
from tutti_gateway.cli.common.output import note, print_json
from tutti_gateway.cli.common.waiting import TimeLimit, showing_reason
from tutti_gateway.cli.group.members import Member, timeout_option


@click.group()
def roster() -> None:
    """Replace the roster after the loss of a majority.

    Use this command only if the loss is permanent. For every other change of members, use `tutti members`.
    """


@roster.command()
@click.option("--keep", required=True, metavar="A,B", help="Names of all surviving gateways, separated by commas.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@url_option
@timeout_option
@json_option
def force(keep: str, yes: bool, url: str, timeout_s: float, as_json: bool) -> int:
    """Let the surviving gateways continue without a majority.

    Use this command after the permanent loss of a majority.

    The survivors continue from the longest of their logs. Records that only the lost gateways had are lost, even if producers
    received acknowledgements. If a lost gateway starts again, it reports records that only it may hold, and ends permanently. The
    command fails while a majority is connected. Right after the loss, the command waits until the view has ended and a majority has
    been silent for 50 heartbeats. Do not use this command if enough gateways will return: the group then continues on its own.
    """
    from tutti.common.gateway_url import parse_url
    from tutti.io.admin import AdminClient

    names = tuple(dict.fromkeys(name.strip() for name in keep.split(",") if name.strip()))
    await_gateway(url)
    deadline = TimeLimit(timeout_s)
    with AdminClient(url, timeout=timeout_s) as control:
        found = {member["name"]: member for member in control.members()}
    unknown = [name for name in names if name not in found]
    if unknown or not names:
        raise UsageError(f"--keep {keep!r} must list only gateways of the group: choose from {', '.join(found)}")
    _confirm(names, found, yes)
    addresses = [address for name in names for address in parse_url(f"tutti://{found[name]['address']}")]
    # The request goes only to surviving gateways, because an excluded gateway in the URL would refuse the request.
    with AdminClient(addresses, timeout=deadline.left_s, learn=False) as control:
        with showing_reason(f"the roster becomes {', '.join(names)}", lambda: control.trouble):
            control.force_roster(names)
        after = control.members()
    note(f"the group continues with {', '.join(names)}; never start an excluded gateway again: remove its directory")
    if as_json:
        print_json({"ok": True, "members": after})
    return 0


def _confirm(names: tuple[str, ...], found: Mapping[str, Member], yes: bool) -> None:
    """Show which gateways are excluded, and ask for confirmation unless `yes` is given.

    If no gateway is excluded, the function asks nothing, because the gateway then refuses the request and explains why.

    Raises:
        UsageError: a confirmation is needed, but standard input is not a terminal.
        click.Abort: the user did not confirm.
    """
    excluded = [f"{name} ({member['state']})" for name, member in found.items() if name not in names]
    if not excluded:
        return
    note(f"remaining: {', '.join(names)}; permanently excluded: {', '.join(excluded)}")
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("forcing the roster needs a confirmation: run it on a terminal, or with --yes")
    click.confirm("records that only the excluded gateways hold are lost; continue?", abort=True, err=True)
