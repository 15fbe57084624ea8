"""What happened last in a run, in the words of the transcripts (tests/transcripts)."""

from __future__ import annotations

from typing import Any

from tests.sim.world import World
from tests.transcripts.text import action_text, frames_text, message_text
from tutti.data.view_id import view_text
from tutti_gateway.core.protocol.actions import Action, Send, SetTimer
from tutti_gateway.core.protocol.events import (
    EpochAsked,
    LinkChanged,
    LogRead,
    OffsetsAsked,
    Persisted,
    Received,
    SessionClosed,
    Several,
    SpaceChanged,
    Started,
    Submitted,
    TimeAdvanced,
    TopicAsked,
)
from tutti_gateway.core.protocol.messages import Heartbeat, Message

QUIET = (TimeAdvanced, SetTimer)  # say nothing by themselves


def transcript(world: World, lines: int = 60, *, heartbeats: bool = False) -> list[str]:
    """The last lines, oldest first."""
    names = {number: name for name, number in world.log.numbers.items()} or dict(enumerate(sorted(world.genesis), 1))
    for gateway in world.gateways.values():
        if gateway.process is not None:
            names |= gateway.process.names
    told: list[str] = []
    if not lines:
        return told
    for time_us, who, what in reversed(world.traced_last):
        if isinstance(what, QUIET) or (not heartbeats and _beats(what)):
            continue
        told.append(f"{time_us / 1e6:11.6f} {who:4} {line(what, names)}")
        if len(told) == lines:
            break
    return told[::-1]


def _beats(what: Any) -> bool:
    return isinstance(getattr(what, "message", None), Heartbeat)


def line(what: Any, names: dict[int, str]) -> str:
    """An event, an action, or a word about the world."""
    match what:
        case str():
            return f"* {what}"
        case Started(_, _, recovered):
            tail = frames_text(recovered.tail)
            views = f"promised={view_text(recovered.scalars.promised)} accepted={view_text(recovered.scalars.accepted)}"
            return f"< started at {recovered.state.position} {views} tail: {tail}; {recovered.damage or 'whole'}"
        case Received(sender, message):
            return f"< from {names.get(sender, sender)} {_view(message)}{_message(message)}"
        case Submitted(sessions, frames):
            return f"< submitted {'/'.join(f's{session}' for session in dict.fromkeys(sessions))} {frames_text(frames)}"
        case Several(events):
            return "< at once: " + "; ".join(line(event, names)[2:] for event in events)
        case Persisted(token):
            return f"< persisted ({token})"
        case LogRead(token, frames):
            return f"< log read ({token}) {frames_text(frames)}"
        case SpaceChanged(low, _):
            return f"< the disk {'runs low' if low else 'has room again'}"
        case LinkChanged(peer, up):
            return f"< connection to {names.get(peer, peer)} {'is there' if up else 'breaks'}"
        case EpochAsked() | TopicAsked() | OffsetsAsked() | SessionClosed():
            return f"< {what}"
    return f"  {_action(what, names)}"


def _view(message: Message) -> str:
    view = getattr(message, "view", None)
    return f"[{view_text(view)}] " if view else ""


def _message(message: Message) -> str:
    try:
        return message_text(message) or repr(message)
    except (KeyError, UnicodeDecodeError):
        return repr(message)


def _action(action: Action, names: dict[int, str]) -> str:
    if isinstance(action, Send):
        return f"send {names.get(action.to, action.to)} {_view(action.message)}{_message(action.message)}"
    try:
        return action_text(action, names, 0) or repr(action)
    except (KeyError, UnicodeDecodeError):
        return repr(action)
