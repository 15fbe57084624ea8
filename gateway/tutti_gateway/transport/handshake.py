"""Checks of introductions: whether two gateways may communicate, and which of their settings differ.

Each refusal names both gateways and the remedy, because an operator may read the log of only one of the gateways.
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
ID_BYTES = 16  # uuids of logs, and incarnations
TEXT_CHARACTERS_MAX = 512  # length of an address, a timer or a release
_SHOWN_MAX = 8  # largest number of differing settings that a message lists
TIMERS_MAX = 32  # more than this release has, so that later releases can add timers
PRESET = "preset"  # key of the preset's name in `timers`, which messages show but no check compares


def parse_introduction(data: Buffer) -> Introduction:
    """Decode and validate an introduction. The error for an invalid introduction shows none of its content.

    Raises:
        FormatError: it is malformed.
    """
    introduction = decode_introduction(data)
    problem = malformed_reason(introduction)
    if problem:
        raise FormatError(problem)
    return introduction


def refusal_reason(mine: Introduction, theirs: Introduction) -> str:
    """Return the reason why this gateway refuses another gateway; empty if it accepts that gateway.

    A second process of the same gateway is not detected here but by `duplicate_reason`, which compares two connections.
    """
    # The protocol is compared first, because in another version the other fields may have another meaning.
    for reason in (_protocol_mismatch, _group_mismatch, _name_conflict, _log_mismatch):
        found = reason(mine, theirs)
        if found:
            return found
    return ""


def _protocol_mismatch(mine: Introduction, theirs: Introduction) -> str:
    if theirs.protocol == mine.protocol:
        return ""
    older, other = ("this gateway", "that one") if mine.protocol < theirs.protocol else (f"gateway {theirs.gateway!r}", "this one")
    return (
        f"gateway {theirs.gateway!r} speaks version {theirs.protocol} of the protocol between gateways (release "
        f"{theirs.release or 'unknown'}) and {mine.gateway!r} version {mine.protocol} (release {mine.release or 'unknown'}): "
        f"install the release of {other} on the host of {older}"
    )


def _group_mismatch(mine: Introduction, theirs: Introduction) -> str:
    if theirs.group == mine.group:
        return ""
    return (
        f"gateway {theirs.gateway!r} belongs to group {theirs.group!r}, and {mine.gateway!r} to group {mine.group!r}: "
        f"correct group.name, or the addresses in group.members"
    )


def _name_conflict(mine: Introduction, theirs: Introduction) -> str:
    # The incarnation is compared before the name, because a copied directory may run under a different name.
    if theirs.incarnation == mine.incarnation:
        if theirs.process == mine.process:
            return f"gateway {mine.gateway!r} is connected to itself: an address in group.members is its own"
        return (
            f"gateway {theirs.gateway!r} has a copy of the data directory of {mine.gateway!r} (incarnation "
            f"{mine.incarnation.hex()}): stop one of them and give it an empty directory and a name of its own"
        )
    if theirs.gateway == mine.gateway:
        return (
            f"two gateways are named {mine.gateway!r}: this one (incarnation {mine.incarnation.hex()}) and another one "
            f"(incarnation {theirs.incarnation.hex()}): give one of them another name"
        )
    return ""


def _log_mismatch(mine: Introduction, theirs: Introduction) -> str:
    # A gateway with a blank disk has no log yet, but must join a group that has one.
    if not mine.log or not theirs.log or mine.log == theirs.log:
        return ""
    return (
        f"gateway {theirs.gateway!r} has log {theirs.log.hex()} and {mine.gateway!r} has log {mine.log.hex()}: two groups were "
        f"founded with these names; give the unwanted one an empty data directory"
    )


def duplicate_reason(known: Introduction, other: Introduction) -> str:
    """Return the reason to refuse `other` while `known`, which has the same name, is connected; empty if both are one process."""
    if other.process == known.process:
        return ""
    if other.incarnation == known.incarnation:
        return (
            f"two processes are gateway {other.gateway!r} on copies of one data directory (incarnation "
            f"{other.incarnation.hex()}): stop the one that was started last, and delete its copy"
        )
    return (
        f"two gateways are named {other.gateway!r} (incarnations {known.incarnation.hex()} and {other.incarnation.hex()}): "
        f"stop the unwanted one; if {other.gateway!r} lost its disk, {disk_remedy(other.gateway)}"
    )


def differences(mine: Introduction, theirs: Introduction) -> str:
    """Return the differences between two configurations that delay the founding of the group or the reaction to failures.

    The result is empty if there are none. Such differences are only reported: the gateways still communicate.
    """
    return "; ".join(filter(None, (_member_differences(mine, theirs), _timer_differences(mine, theirs))))


def _member_differences(mine: Introduction, theirs: Introduction) -> str:
    """Compare the configured members, unless one of the gateways has a log.

    Once a log exists, the roster in the log counts, and the configured members are only the addresses to contact first.
    """
    if mine.log or theirs.log or mine.configured == theirs.configured:
        return ""
    return (
        f"group.members of {theirs.gateway!r} and of {mine.gateway!r} differ: {_listed(mine.configured, theirs.configured)}: the "
        f"group is not founded until they are equal on all gateways"
    )


def _timer_differences(mine: Introduction, theirs: Introduction) -> str:
    """Compare the timers, but not the names of the presets. Introductions of older releases have no timers."""
    if not theirs.timers or not mine.timers or mine.timers | {PRESET: ""} == theirs.timers | {PRESET: ""}:
        return ""
    return (
        f"the timers of {theirs.gateway!r} and of {mine.gateway!r} differ: {_listed(mine.timers, theirs.timers)}: set "
        f"`group.preset` and `[timers]` alike on all gateways, and restart the changed ones; until then a gateway waits too long "
        f"for the others, or they suspect it too early"
    )


def _listed(mine: dict[str, str], theirs: dict[str, str]) -> str:
    names = sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))
    shown = [f"{name} = {_shown(theirs.get(name))} there and {_shown(mine.get(name))} here" for name in names[:_SHOWN_MAX]]
    if len(names) > _SHOWN_MAX:
        shown.append(f"and {len(names) - _SHOWN_MAX} more")
    return ", ".join(shown)


def _shown(text: str | None) -> str:
    return "missing" if text is None else text if text.isdecimal() else repr(text)


def malformed_reason(theirs: Introduction) -> str:
    """Return the reason why an introduction is invalid; empty if it is valid."""
    # The text for the operator repeats names and addresses of the peer, so every field has a limit and no control characters.
    if not all(is_name(name) for name in (theirs.group, theirs.gateway, *theirs.configured, *theirs.timers)):
        return "a name in an introduction is invalid: it is empty, too long, or has characters that names cannot have"
    if len(theirs.configured) > common_limits.ROSTER_MAX:
        return f"an introduction lists {len(theirs.configured)} members, and a group has at most {common_limits.ROSTER_MAX}"
    if len(theirs.timers) > TIMERS_MAX:
        return f"an introduction lists {len(theirs.timers)} timers, and a gateway has at most {TIMERS_MAX}"
    texts = (theirs.release, theirs.address, *theirs.configured.values(), *theirs.timers.values())
    if not all(len(text) <= TEXT_CHARACTERS_MAX and text.isprintable() for text in texts):
        return "an address, a timer or the release in an introduction is too long, or has unprintable characters"
    if len(theirs.incarnation) != ID_BYTES or len(theirs.log) not in (0, ID_BYTES):
        return "an incarnation or a log in an introduction does not have 16 bytes"
    if not 0 <= theirs.number <= limits.GATEWAY_MAX or len(theirs.process) > ID_BYTES:
        return "a number in an introduction is out of range"
    if len(theirs.seal) not in (0, SEAL_BYTES):
        return f"a seal in an introduction has {len(theirs.seal)} bytes, not {SEAL_BYTES}"
    return ""
