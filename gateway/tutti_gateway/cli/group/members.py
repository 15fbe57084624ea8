"""`tutti members`, `tutti leave`: who is in the group, and changing that through its log."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from tutti.errors import Refused, Unavailable, UsageError
from tutti_gateway.cli.common.options import NumberRange, group_url_option, json_option, needed_url, url_option
from tutti_gateway.cli.common.output import counted, note, on_terminal, print_json, print_table
from tutti_gateway.cli.common.waiting import Deadline, telling

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tutti.io.admin import Control

Member = dict[str, Any]
TIMEOUT_S = 60.0
US_PER_S, US_PER_MS = 1_000_000, 1000
REASON = "reason"
#: As the table calls them.
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
    """`--timeout`."""
    text = "How long to wait until it is done, seconds."
    return click.option(
        "--timeout", "timeout_s", type=NumberRange(min=0.1, max=86_400), default=TIMEOUT_S, show_default=True, help=text
    )(function)


def no_wait_option(function: Any) -> Any:
    """`--no-wait`."""
    text = "Come back as soon as the log names it; it votes when it has caught up."
    return click.option("--no-wait", is_flag=True, help=text)(function)


@click.group(invoke_without_command=True)
@group_url_option
@json_option
@click.pass_context
def members(context: click.Context, url: str | None, as_json: bool) -> None:
    """List, add, remove or replace gateways of the group.

    Without a command they are listed.
    """
    if context.invoked_subcommand is None:
        context.invoke(list_members, url=needed_url(context, url), as_json=as_json)


@members.command("list")
@url_option
@json_option
def list_members(url: str, as_json: bool) -> None:
    """The gateways that the group's log names, as the one that answers knows them.

    \b
    state        primary: takes part in decisions; minority: cannot reach most of the group, serves what it has; joining: catches
                 up, or a new view is on its way; learner: was added and has not caught up; silent: not heard of; leaving; halted
    votes        whether it counts for a majority, with the disk that it has
    coordinates  whether it puts the messages in order
    age          its place in the view, 1 is the oldest, after which the next takes over; another than the oldest may
                 coordinate, as when a group is founded
    lag          how many decided positions it lacks (of a silent one: lacks by now)
    heard        how long ago it was heard of
    round_trip   to it and back, as measured
    reason       why it takes no ordered records or has no vote, where that is known
    """
    from tutti.io.admin import Control

    with Control(url) as control:
        _show(control.members(), as_json)


@members.command()
@click.argument("name")
@click.argument("address", metavar="HOST:P")
@url_option
@timeout_option
@no_wait_option
@json_option
def add(name: str, address: str, url: str, timeout_s: float, no_wait: bool, as_json: bool) -> int:
    """Add the gateway NAME at HOST:P to the group; HOST:P/G where its group port G is not P+1.

    It catches up first, without a vote, and votes from then on: that is waited for, unless --no-wait is given. It can be started
    before or after, with the other gateways among its `group.members`.
    """
    from tutti.data.addresses import parse_member

    parse_member(address)
    with _control(url, timeout_s) as (control, deadline):
        _change(control, deadline, "add", name, address)
        note(f"{name} is in the roster")
        found = control.members()
        if len(found) % 2 == 0:
            note(
                f"it names {len(found)} gateways, an even number: a split into two halves stops both, and no more may fail than "
                f"with {len(found) - 1}; add one more for that"
            )
        if no_wait:
            _note_open(found, name)
        else:
            found = _until_it_votes(control, deadline, name)
            note(f"{name} has caught up and votes")
        _show_changed(found, name, as_json)
    return 0


@members.command()
@click.argument("name")
@url_option
@timeout_option
@json_option
def remove(name: str, url: str, timeout_s: float, as_json: bool) -> int:
    """Take the gateway NAME out of the group for good, up or down. Its process, if it runs, can be stopped then.

    To stop a gateway that is to come back, use `tutti leave`: nothing is removed then.
    """
    with _control(url, timeout_s) as (control, deadline):
        before = control.members()
        _named(before, name)
        _change(control, deadline, "remove", name)
        note(f"{name} is no member any more; its process can be stopped")
        _show_changed(control.members(), name, as_json)
    return 0


@members.command()
@click.argument("name")
@url_option
@timeout_option
@no_wait_option
@json_option
def replace(name: str, url: str, timeout_s: float, no_wait: bool, as_json: bool) -> int:
    """Let the gateway NAME vote with a new disk: it lost the one that it had, and was started with an empty directory.

    It keeps its name and its place. It catches up first; that is waited for, unless --no-wait is given.

    It needs a majority of the roster without NAME. Without one, as in a group of two, stop NAME, run `tutti roster force` at the
    gateways that remain, and add NAME with an empty directory (`tutti members add`).
    """
    with _control(url, timeout_s) as (control, deadline):
        member = _named(control.members(), name)
        if _votes(member):
            raise Refused(f"{name} votes with the disk that it has: there is nothing to replace")
        _change(control, deadline, "replace", name)
        note(f"the roster names the new disk of {name}")
        if no_wait:
            found = control.members()
            _note_open(found, name)
        else:
            found = _until_it_votes(control, deadline, name)
            note(f"{name} votes with its new disk")
        _show_changed(found, name, as_json)
    return 0


@click.command()
@click.argument("name")
@url_option
@timeout_option
@json_option
def leave(name: str, url: str, timeout_s: float, as_json: bool) -> int:
    """Take a gateway out of the view in order; its process ends.

    As with SIGTERM, the gateway NAME takes nothing new, finishes what is under way and ends with 0.

    It stays a member and may come back: `tutti members remove` takes one out for good. Nothing that was committed needs it.
    """
    from tutti.common.address import parse_url
    from tutti.io.admin import Control

    deadline = Deadline(timeout_s)
    with Control(url, timeout=timeout_s) as control:
        found = control.members()
        member = _named(found, name)
        if member["state"] == "silent":
            raise Refused(f"{name} is not heard of: it has left already, or it is down or cut off")
    if doubt := _doubt(found, name):
        note(doubt)
    (place,) = parse_url(f"tutti://{member['address']}")
    with Control([place], timeout=deadline.left_s, learn=False) as control, telling(f"{name} leaves", lambda: ""):
        control.leave(name)
        while _listens(place.host, place.port):
            if not deadline.pause():
                raise Unavailable(f"{name} was told to leave and still runs after {timeout_s:g} s; its log says what it waits for")
    note(f"{name} has left")
    if as_json:
        print_json({"ok": True, "name": name})
    return 0


def _doubt(found: list[Member], name: str) -> str:
    """What stands against a majority behind a gateway that leaves, empty if nothing does. Who is in the view remains, whoever is
    heard in this moment: connections come and go, and a view stays as long as it can.
    """
    voters = sum(1 for other in found if other["voter"] or other["state"] == "silent")
    stay = [other for other in found if other["name"] != name and other["age"] and other["state"] not in ("leaving", "halted")]
    left = sum(1 for other in stay if other["voter"] or other["state"] == "silent")
    if voters <= 1 or 2 * sum(map(_votes, stay)) > voters:
        return ""
    if not any(other["age"] for other in found):
        return "whether a majority remains is not known: the gateway that was asked is in no view at this moment"
    if 2 * left <= voters:
        remain = "remains" if left == 1 else "remain"
        return f"{left} of {voters} {remain}, which is no majority: the group takes nothing new until another one is there"
    away = ", ".join(f"{other['name']} ({other['state']})" for other in stay if not _votes(other))
    return f"whether a majority remains is not known: in the view, and not at work with it at this moment: {away}"


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        return False


@contextmanager
def _control(url: str, timeout_s: float) -> Iterator[tuple[Control, Deadline]]:
    from tutti.io.admin import Control

    with Control(url, timeout=timeout_s) as control:
        yield control, Deadline(timeout_s)


def _votes(member: Member) -> bool:
    """Whether it counts and takes part in decisions now."""
    return bool(member["voter"]) and member["state"] == "primary"


def _named(found: list[Member], name: str) -> Member:
    for member in found:
        if member["name"] == name:
            return member
    raise UsageError(f"no gateway of the group is named {name!r}: there are {', '.join(member['name'] for member in found)}")


def _change(control: Control, deadline: Deadline, change: str, name: str, address: str = "") -> None:
    """Have it made, telling why it lasts.

    Raises:
        Unavailable: it was not made in time; the message says what it waited for.
    """
    with telling(f"{change} {name}", lambda: control.trouble):
        try:
            control.change_roster(change, name, address)
        except Unavailable as late:
            if change != "replace":
                raise
            # Asked again after a gateway that died had made it, a replacement would wait for one more new disk.
            member = _named(control.members(), name)
            if not _votes(member):
                asked = f"`tutti status --url tutti://{member['address']}` tells what it says itself"
                raise Unavailable(f"{late}; {name}: {_known(member) or _on_its_way(member)}; {asked}") from late
        except KeyboardInterrupt:
            note(f"whether the log has it is not known: {change} {name} may still be made, `tutti members` shows it then")
            raise


def _until_it_votes(control: Control, deadline: Deadline, name: str) -> list[Member]:
    """Wait until a gateway votes in the view that decides; the members then.

    Raises:
        Unavailable: it does not in time.
    """
    state = ""
    try:
        with telling(f"{name} catches up", lambda: state):
            while True:
                found = control.members()
                member = _named(found, name)
                if _votes(member):
                    return found
                state = _on_its_way(member)
                if not deadline.pause():
                    silent = f"start it, or see {'to that' if _known(member) else 'in its log what keeps it away'} if it runs"
                    do = silent if member["state"] == "silent" else "look again with `tutti members`"
                    raise Unavailable(
                        f"{name} is in the roster and does not vote yet after {deadline.timeout_s:g} s ({state}): {do}; "
                        "it votes by itself when it has caught up"
                    )
    except KeyboardInterrupt:
        note(f"{name} stays in the roster, and votes by itself when it has caught up")
        raise


def _note_open(found: list[Member], name: str) -> None:
    """Say what comes by itself, and how to see that it came, to who does not wait for it."""
    member = _named(found, name)
    if _votes(member):
        note(f"{name} has caught up and votes")
    else:
        seen = "`tutti members` shows it as primary, with votes yes, then"
        note(f"{name} does not vote yet ({_on_its_way(member)}): it does by itself when it has caught up; {seen}")


def _known(member: Member) -> str:
    """What the gateway that was asked says of one, as that nothing of its own gets there."""
    return str(member.get(REASON) or "")


def _on_its_way(member: Member) -> str:
    """How far a gateway without a vote is, for people."""
    if member["state"] == "silent":
        return f"it is not heard of: {known}" if (known := _known(member)) else "it is not heard of"
    if member["state"] == "primary":
        return "it has caught up, and its vote is on its way"
    return f"{member['state']}, lacks {counted(member['lag'], 'position')}"


def _show(found: list[Member], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    apart = on_terminal()  # a sentence in a column leaves no room for the others
    columns = {name: make for name, make in _COLUMNS.items() if not (apart and name == REASON)}
    print_table(list(columns), [[make(member) for make in columns.values()] for member in found], empty="no members")
    for member in found:
        if apart and member.get(REASON):
            print(f"{member['name']}: {member[REASON]}")


def _show_changed(found: list[Member], name: str, as_json: bool) -> None:
    if as_json:
        print_json({"ok": True, "name": name, "members": found})
