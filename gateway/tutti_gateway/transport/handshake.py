"""Whether two gateways may talk to each other, from what each says of itself at the beginning of a connection.

Every reason names both sides and what to do, because it is read in the log of one of them, at night.
"""

from __future__ import annotations

from tutti import limits as common_limits
from tutti.data.frames.frame import Buffer
from tutti.data.names import is_name
from tutti.errors import FormatError, disk_remedy
from tutti_gateway.core import limits
from tutti_gateway.transport.codec import decode_introduction
from tutti_gateway.transport.interface import Introduction

SEAL_BYTES = 32
ID_BYTES = 16  # uuids of logs, incarnations of disks
TEXT_CHARACTERS_MAX = 512  # an address, a release
_SHOWN_MAX = 8  # names that a difference lists
TIMERS_MAX = 32  # that an introduction tells, those of later releases included
PRESET = "preset"  # among the timers that are told: for people alone, as each timer may be set otherwise


def introduced(data: Buffer) -> Introduction:
    """Who introduces itself in that message: what no gateway can have said goes no further.

    Raises:
        FormatError: it is malformed.
    """
    introduction = decode_introduction(data)
    wrong = malformed(introduction)
    if wrong:
        raise FormatError(wrong)
    return introduction


def refusal(mine: Introduction, theirs: Introduction) -> str:
    """Why this gateway takes no message of that one; empty if it does.

    What two connections of one gateway tell of it (a second process on a copied directory) only their receiver sees: `copied`.
    """
    for reason in (_of_protocol, _of_group, _of_name, _of_log):
        found = reason(mine, theirs)
        if found:
            return found
    return ""


def _of_protocol(mine: Introduction, theirs: Introduction) -> str:
    if theirs.protocol == mine.protocol:
        return ""
    older, other = ("this gateway", "that one") if mine.protocol < theirs.protocol else (f"gateway {theirs.gateway!r}", "this one")
    return (
        f"gateway {theirs.gateway!r} speaks version {theirs.protocol} of the protocol between gateways (release "
        f"{theirs.release or 'unknown'}) and {mine.gateway!r} version {mine.protocol} (release {mine.release or 'unknown'}): "
        f"install the release of {other} on the host of {older}"
    )


def _of_group(mine: Introduction, theirs: Introduction) -> str:
    if theirs.group == mine.group:
        return ""
    return (
        f"gateway {theirs.gateway!r} is of group {theirs.group!r} and {mine.gateway!r} of group {mine.group!r}: "
        f"correct group.name, or the addresses in group.members"
    )


def _of_name(mine: Introduction, theirs: Introduction) -> str:
    if theirs.incarnation == mine.incarnation:
        if theirs.process == mine.process:
            return f"gateway {mine.gateway!r} meets itself: an address in group.members is this gateway's own"
        return (
            f"gateway {theirs.gateway!r} has a copy of the data directory of {mine.gateway!r} (incarnation "
            f"{mine.incarnation.hex()}): stop one of them and give it an empty directory and a name of its own"
        )
    if theirs.gateway == mine.gateway:
        return (
            f"two gateways are named {mine.gateway!r}, this one (incarnation {mine.incarnation.hex()}) and another "
            f"(incarnation {theirs.incarnation.hex()}): give one of them another name"
        )
    return ""


def _of_log(mine: Introduction, theirs: Introduction) -> str:
    if not mine.log or not theirs.log or mine.log == theirs.log:
        return ""
    return (
        f"gateway {theirs.gateway!r} has log {theirs.log.hex()} and {mine.gateway!r} has log {mine.log.hex()}: two groups were "
        f"founded with these names; give the one that is not wanted an empty data directory"
    )


def copied(known: Introduction, other: Introduction) -> str:
    """Why `other` is refused while the connection of `known`, of the same name, still stands; empty if it is the same process."""
    if other.process == known.process:
        return ""
    if other.incarnation == known.incarnation:
        return (
            f"two processes are gateway {other.gateway!r} on copies of one data directory (incarnation "
            f"{other.incarnation.hex()}): stop the one that was started last, and delete its copy"
        )
    return (
        f"two gateways are named {other.gateway!r} (incarnations {known.incarnation.hex()} and {other.incarnation.hex()}): "
        f"stop the one that is not wanted; if {other.gateway!r} lost its disk, {disk_remedy(other.gateway)}"
    )


def differences(mine: Introduction, theirs: Introduction) -> str:
    """What the two are configured with differently that keeps the group from being founded, or one gateway from its pace; empty if
    nothing. Both are taken all the same.
    """
    return "; ".join(filter(None, (_of_members(mine, theirs), _of_timers(mine, theirs))))


def _of_members(mine: Introduction, theirs: Introduction) -> str:
    """Once there is a log its roster counts, and configured members are only where to look first."""
    if mine.log or theirs.log or mine.configured == theirs.configured:
        return ""
    return (
        f"group.members of {theirs.gateway!r} and of {mine.gateway!r} differ: {_listed(mine.configured, theirs.configured)}: the "
        f"group is not founded until all have the same"
    )


def _of_timers(mine: Introduction, theirs: Introduction) -> str:
    """A release that tells none may have any. Presets whose timers are set alike are none the less the same."""
    if not theirs.timers or not mine.timers or mine.timers | {PRESET: ""} == theirs.timers | {PRESET: ""}:
        return ""
    return (
        f"the timers of {theirs.gateway!r} and of {mine.gateway!r} differ: {_listed(mine.timers, theirs.timers)}: set "
        f"`group.preset` and `[timers]` alike on all gateways, and start again those that change; until then one waits too long "
        f"for the others, or is given up too early"
    )


def _listed(mine: dict[str, str], theirs: dict[str, str]) -> str:
    names = sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))
    told = [f"{name} = {_shown(theirs.get(name))} there and {_shown(mine.get(name))} here" for name in names[:_SHOWN_MAX]]
    if len(names) > _SHOWN_MAX:
        told.append(f"and {len(names) - _SHOWN_MAX} more")
    return ", ".join(told)


def _shown(text: str | None) -> str:
    return "missing" if text is None else text if text.isdecimal() else repr(text)


def malformed(theirs: Introduction) -> str:
    """Why no gateway can have said that; empty if it is well formed. What is not is never shown, nor kept."""
    if not all(is_name(name) for name in (theirs.group, theirs.gateway, *theirs.configured, *theirs.timers)):
        return "a name in an introduction is none: it is empty, too long, or has characters that no name has"
    if len(theirs.configured) > common_limits.ROSTER_MAX:
        return f"an introduction lists {len(theirs.configured)} members, and a group has at most {common_limits.ROSTER_MAX}"
    if len(theirs.timers) > TIMERS_MAX:
        return f"an introduction lists {len(theirs.timers)} timers, and a gateway has at most {TIMERS_MAX}"
    texts = (theirs.release, theirs.address, *theirs.configured.values(), *theirs.timers.values())
    if not all(len(text) <= TEXT_CHARACTERS_MAX and text.isprintable() for text in texts):
        return "an address, a timer or the release in an introduction is too long, or cannot be shown"
    if len(theirs.incarnation) != ID_BYTES or len(theirs.log) not in (0, ID_BYTES):
        return "an incarnation or a log in an introduction has not 16 bytes"
    if not 0 <= theirs.number <= limits.GATEWAY_MAX or len(theirs.process) > ID_BYTES:
        return "a number in an introduction is out of its range"
    if len(theirs.seal) not in (0, SEAL_BYTES):
        return f"a seal in an introduction has {len(theirs.seal)} bytes, not {SEAL_BYTES}"
    return ""
