"""`tutti roster force`: what an operator does when a majority of the group is gone for good."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import click

from tutti.errors import UsageError
from tutti_gateway.cli.common.options import json_option, url_option
from tutti_gateway.cli.common.output import note, print_json
from tutti_gateway.cli.common.waiting import Deadline, telling
from tutti_gateway.cli.group.members import Member, timeout_option


@click.group()
def roster() -> None:
    """Force the roster when a majority of the group is gone for good.

    Everything else about members is done with `tutti members`.
    """


@roster.command()
@click.option("--keep", required=True, metavar="A,B", help="The gateways that remain: all that are left, no other one.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@url_option
@timeout_option
@json_option
def force(keep: str, yes: bool, url: str, timeout_s: float, as_json: bool) -> int:
    """Go on with the gateways that are left, when a majority is gone for good and the group therefore stands still.

    They agree on the greatest of their logs. What only those had who are left out is lost, acknowledged or not; one of them that
    comes back ends, says what it may hold, and does not begin again. Refused while a majority is heard or may still come back.
    Nothing of this is needed for a gateway that will be back: the group goes on by itself then.
    """
    from tutti.common.address import parse_url
    from tutti.io.admin import Control

    names = tuple(dict.fromkeys(name.strip() for name in keep.split(",") if name.strip()))
    deadline = Deadline(timeout_s)
    with Control(url, timeout=timeout_s) as control:
        found = {member["name"]: member for member in control.members()}
    unknown = [name for name in names if name not in found]
    if unknown or not names:
        raise UsageError(f"--keep {keep!r}: name gateways of the group, of which there are {', '.join(found)}")
    _confirm(names, found, yes)
    places = [place for name in names for place in parse_url(f"tutti://{found[name]['address']}")]
    # Only who remains may be asked; another gateway of the url would rightly refuse.
    with Control(places, timeout=deadline.left_s, learn=False) as control:
        with telling(f"the roster becomes {', '.join(names)}", lambda: control.trouble):
            control.force_roster(names)
        after = control.members()
    note(f"the group goes on with {', '.join(names)}; start no gateway that was left out: take its directory away")
    if as_json:
        print_json({"ok": True, "members": after})
    return 0


def _confirm(names: tuple[str, ...], found: Mapping[str, Member], yes: bool) -> None:
    """Say what is about to happen, and have it confirmed. Where nobody is left out the gateway says why there is nothing to force.

    Raises:
        UsageError: there is nobody to ask.
        click.Abort: it was not confirmed.
    """
    out = [f"{name} ({member['state']})" for name, member in found.items() if name not in names]
    if not out:
        return
    note(f"remain: {', '.join(names)}; left out for good: {', '.join(out)}")
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("forcing the roster has to be confirmed: run it on a terminal, or with --yes")
    click.confirm("what only those had who are left out is lost; go on?", abort=True, err=True)
