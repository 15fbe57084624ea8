"""`tutti members` lists the gateways of the group and changes its roster; `tutti leave` takes one gateway out of the view."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from tutti.errors import Refused, Unavailable, UsageError
from tutti_gateway.cli.common.gateways import Majority, NoMajority, await_gateway, change_client
from tutti_gateway.cli.common.names import complete_member
from tutti_gateway.cli.common.options import NumberRange, group_url_option, json_option, resolve_url, url_option
from tutti_gateway.cli.common.output import count_text, note, on_terminal, print_json, print_table
from tutti_gateway.cli.common.waiting import TimeLimit, showing_reason

if TYPE_CHECKING:
    from tutti.io.admin import AdminClient

Member = dict[str, Any]
TIMEOUT_S = 60.0
US_PER_S, US_PER_MS = 1_000_000, 1000
REASON = "reason"
#: Columns of the table. Each function returns the cell of one gateway.
_COLUMNS: dict[str, Callable[[Member], object]] = {
    "name": lambda member: member["name"],
    "address": lambda member: member["address"],
    "state": lambda member: member["state"],
    "votes": lambda member: member["voter"],
    "coordinates": lambda member: member["coordinator"],
    "age": lambda member: member["age"] or None,
    "lag": lambda member: member["lag"],
    "heard": lambda member: None if member["heard_us"] < 0 else f"{member['heard_us'] / US_PER_S:.1f} s",
    "round_trip": lambda member: f"{member['round_trip_us'] / US_PER_MS:.2f} ms" if member["round_trip_us"] else None,
    REASON: lambda member: member.get(REASON) or None,
}


def timeout_option(function: Any) -> Any:
    """Add `--timeout`."""
    text = "Maximum time to wait until the change is complete, seconds."
    return click.option(
        "--timeout", "timeout_s", type=NumberRange(min=0.1, max=86_400), default=TIMEOUT_S, show_default=True, help=text
    )(function)


def no_wait_option(function: Any) -> Any:
    """Add `--no-wait`."""
    text = "End when the change is in the log, without waiting until the gateway has caught up and votes."
    return click.option("--no-wait", is_flag=True, help=text)(function)


@click.group(invoke_without_command=True)
@group_url_option
@json_option
@click.pass_context
def members(context: click.Context, url: str | None, as_json: bool) -> None:
    """List, add, remove or replace gateways of the group.

    Without a subcommand, list them.
    """
    if context.invoked_subcommand is None:
        context.invoke(list_members, url=resolve_url(context, url), as_json=as_json)


@members.command("list")
@url_option
@json_option
def list_members(url: str, as_json: bool) -> None:
    """List the gateways of the roster with their states.

    The states are those that the answering gateway knows.

    \b
    state        primary: takes part in decisions; minority: cannot reach a majority, serves reads; joining: catches up, or a
                 view change is in progress; learner: added and not caught up yet; silent: not reachable; leaving; halted
    votes        whether the gateway counts for a majority, with its current disk
    coordinates  whether the gateway orders the messages
    age          rank by age in the view; 1 is the oldest. If the coordinator fails, the gateway with the lowest remaining
                 rank takes over. In a new group, the coordinator may have another rank than 1
    lag          number of decided positions that the gateway lacks; for a silent gateway, counted up to now
    heard        time since the last message from the gateway
    round_trip   measured round-trip time to the gateway
    reason       why the gateway takes no ordered records, has no vote or is silent, if the answering gateway knows it
    """
    from tutti.io.admin import AdminClient

    await_gateway(url)
    with AdminClient(url) as control:
        _show(control.members(), as_json)


@members.command()
@click.argument("name")
@click.argument("address", metavar="HOST:P")
@url_option
@timeout_option
@no_wait_option
@json_option
def add(name: str, address: str, url: str, timeout_s: float, no_wait: bool, as_json: bool) -> int:
    """Add the gateway NAME at HOST:P to the group. Write HOST:P/G if the gateway's group port G is not P+1.

    The gateway first catches up without a vote, and then votes. The command waits until the gateway votes, unless --no-wait is
    given. Start the gateway before or after this command, with the other gateways in its `group.members`.
    """
    from tutti.data.member_address import parse_member

    parse_member(address)
    with change_client(url, timeout_s) as (control, deadline):
        _change(control, deadline, "add", name, address)
        note(f"{name} is in the roster")
        found = control.members()
        if len(found) % 2 == 0:
            note(
                f"the roster names {len(found)} gateways, an even number: a split into two halves stops both, "
                f"and it tolerates no more failures than {len(found) - 1}; add one more gateway"
            )
        if no_wait:
            _note_pending(found, name)
        else:
            found = _until_it_votes(control, deadline, name, Majority(url))
            note(f"{name} has caught up and votes")
        _show_changed(found, name, as_json)
    return 0


@members.command()
@click.argument("name", shell_complete=complete_member)
@url_option
@timeout_option
@json_option
def remove(name: str, url: str, timeout_s: float, as_json: bool) -> int:
    """Remove the gateway NAME from the group permanently. NAME may be running or not; stop its process afterwards.

    To stop a gateway that will return, use `tutti leave`, which does not change the roster.
    """
    with change_client(url, timeout_s) as (control, deadline):
        before = control.members()
        _member(before, name)
        _change(control, deadline, "remove", name)
        note(f"{name} is removed from the group; stop its process")
        _show_changed(control.members(), name, as_json)
    return 0


@members.command()
@click.argument("name", shell_complete=complete_member)
@url_option
@timeout_option
@no_wait_option
@json_option
def replace(name: str, url: str, timeout_s: float, no_wait: bool, as_json: bool) -> int:
    """Let the gateway NAME vote again after it lost its disk.

    Start the gateway with an empty directory. The gateway keeps its name and its rank. The gateway first catches up, and then
    votes. The command waits until the gateway votes, unless --no-wait is given.

    The other gateways must be a majority of the roster. If they are not, as in a group of two, stop NAME, run `tutti roster force`
    at the remaining gateways, and add NAME with an empty directory (`tutti members add`).
    """
    with change_client(url, timeout_s) as (control, deadline):
        member = _member(control.members(), name)
        if _votes(member):
            raise Refused(f"gateway {name} already votes with its current disk: `replace` is only for a gateway that lost its disk")
        _change(control, deadline, "replace", name)
        note(f"the roster names the new disk of {name}")
        if no_wait:
            found = control.members()
            _note_pending(found, name)
        else:
            found = _until_it_votes(control, deadline, name, Majority(url))
            note(f"{name} votes with its new disk")
        _show_changed(found, name, as_json)
    return 0


@click.command()
@click.argument("name", shell_complete=complete_member)
@url_option
@timeout_option
@json_option
def leave(name: str, url: str, timeout_s: float, as_json: bool) -> int:
    """Stop a gateway in an orderly way.

    As after SIGTERM, the gateway NAME accepts no new records, finishes pending work, leaves the view and ends with exit code 0.

    The gateway stays in the roster and may return. To remove a gateway permanently, use `tutti members remove`. The other gateways
    have every committed record.
    """
    from tutti.common.gateway_url import parse_url
    from tutti.io.admin import AdminClient

    await_gateway(url)
    deadline = TimeLimit(timeout_s)
    with AdminClient(url, timeout=timeout_s) as control:
        found = control.members()
        member = _member(found, name)
        if member["state"] == "silent":
            raise Refused(f"{name} is not reachable: it has left already, is down, or is disconnected")
    if warning := _majority_warning(found, name):
        note(warning)
    (address,) = parse_url(f"tutti://{member['address']}")
    with AdminClient([address], timeout=deadline.left_s, learn=False) as control, showing_reason(f"{name} leaves", lambda: ""):
        control.leave(name)
        while _listens(address.host, address.port):
            if not deadline.pause():
                raise Unavailable(f"{name} still runs {timeout_s:g} s after the request to leave; see its log for the reason")
    note(f"{name} has left")
    if as_json:
        print_json({"ok": True, "name": name})
    return 0


def _majority_warning(found: list[Member], name: str) -> str:
    """Return a warning if the group may lack a majority after the gateway `name` leaves, otherwise "".

    A disconnected gateway counts as remaining if it is in the view, because a view survives short connection losses.
    """
    voters = sum(1 for other in found if other["voter"] or other["state"] == "silent")
    stay = [other for other in found if other["name"] != name and other["age"] and other["state"] not in ("leaving", "halted")]
    left = sum(1 for other in stay if other["voter"] or other["state"] == "silent")
    if voters <= 1 or 2 * sum(map(_votes, stay)) > voters:
        return ""
    if not any(other["age"] for other in found):
        return "it is unknown whether a majority remains: the gateway that answers is not in a view at this moment"
    if 2 * left <= voters:
        remain = "remains" if left == 1 else "remain"
        return f"{left} of {voters} {remain}, which is not a majority: the group takes no records until another gateway returns"
    inactive = ", ".join(f"{other['name']} ({other['state']})" for other in stay if not _votes(other))
    return f"it is unknown whether a majority remains: in the view but not active at this moment: {inactive}"


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        return False


def _votes(member: Member) -> bool:
    """True if the gateway counts for a majority and takes part in decisions now."""
    return bool(member["voter"]) and member["state"] == "primary"


def _member(found: list[Member], name: str) -> Member:
    for member in found:
        if member["name"] == name:
            return member
    raise UsageError(f"the group has no gateway {name!r}: choose one of {', '.join(member['name'] for member in found)}")


def _change(control: AdminClient, deadline: TimeLimit, change: str, name: str, address: str = "") -> None:
    """Request a roster change, and show why the command waits until the change is complete.

    Raises:
        Unavailable: the change was not complete within the time limit; the error text contains the reason.
    """
    with showing_reason(f"{change} {name}", lambda: control.trouble):
        try:
            control.change_roster(change, name, address)
        except Unavailable as late:
            if change != "replace" or isinstance(late, NoMajority):
                raise
            # If a gateway makes the replacement and dies before it answers, the client repeats the request. The repeated request
            # fails, because it waits for a second new disk. If `name` votes now, the first request has succeeded.
            member = _member(control.members(), name)
            if not _votes(member):
                asked = f"`tutti status --url tutti://{member['address']}` shows its own status"
                raise Unavailable(f"{late}. {name} does not vote yet ({_reason(member) or _progress(member)}); {asked}") from late
        except KeyboardInterrupt:
            note(f"it is unknown whether the log has the change: {change} {name} may still take effect; check with `tutti members`")
            raise


def _until_it_votes(control: AdminClient, deadline: TimeLimit, name: str, majority: Majority) -> list[Member]:
    """Wait until the gateway `name` takes part in decisions with a vote, and return the members.

    Raises:
        Unavailable: the gateway does not vote within the time limit, or the group has lost its majority.
    """
    state = ""
    try:
        with showing_reason(f"{name} catches up", lambda: state):
            while True:
                found = control.members()
                member = _member(found, name)
                if _votes(member):
                    return found
                state = _progress(member)
                majority.check()
                if not deadline.pause():
                    silent = f"start it, or, if it runs, {'resolve that' if _reason(member) else 'see its log for the reason'}"
                    do = silent if member["state"] == "silent" else "check again with `tutti members`"
                    raise Unavailable(
                        f"{name} is in the roster and does not vote yet after {deadline.timeout_s:g} s ({state}): {do}; "
                        "it votes without further action when it has caught up"
                    )
    except KeyboardInterrupt:
        note(f"{name} stays in the roster, and votes when it has caught up")
        raise


def _note_pending(found: list[Member], name: str) -> None:
    """Print whether the gateway `name` votes. If it does not vote yet, also print how to check its vote later."""
    member = _member(found, name)
    if _votes(member):
        note(f"{name} has caught up and votes")
    else:
        advice = "`tutti members` then shows it as primary, with votes yes"
        note(f"{name} does not vote yet ({_progress(member)}): it votes when it has caught up; {advice}")


def _reason(member: Member) -> str:
    """Return the reason why `member` takes no ordered records or has no vote, or "" if the answering gateway does not know it."""
    return str(member.get(REASON) or "")


def _progress(member: Member) -> str:
    """Return a text that says why a gateway does not vote yet, for example that it lacks 5 positions."""
    if member["state"] == "silent":
        return f"it is not reachable: {known}" if (known := _reason(member)) else "it is not reachable"
    if member["state"] == "primary":
        return "it has caught up, and its vote is pending"
    return f"{member['state']}, lacks {count_text(member['lag'], 'position')}"


def _show(found: list[Member], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    # On a terminal, reasons are printed below the table, because a column of sentences would leave no space for other columns.
    reasons_below = on_terminal()
    columns = {name: make for name, make in _COLUMNS.items() if not (reasons_below and name == REASON)}
    print_table(list(columns), [[make(member) for make in columns.values()] for member in found], empty="no members")
    for member in found:
        if reasons_below and member.get(REASON):
            print(f"{member['name']}: {member[REASON]}")


def _show_changed(found: list[Member], name: str, as_json: bool) -> None:
    if as_json:
        print_json({"ok": True, "name": name, "members": found})
