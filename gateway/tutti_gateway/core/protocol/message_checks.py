"""Validation of messages from other gateways: one validator for each message type, in one table.

A validator checks types, ranges, order, and lengths within `limits`, without the state of this gateway. The layer that handles the
message compares the message with the layer's state. Of a run of frames, a validator checks only the first frame, the last frame and
their distance, which takes constant time. The layers *order* and *flush* check the order, chain and payload of each frame when they
process the frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tutti import limits as common_limits
from tutti.data.frames.frame import HEADER_SIZE, SEQUENCED, Frame
from tutti.data.names import NAME_BYTES_MAX, NAMELESS
from tutti.data.view_id import coordinator_of, counter_of, view_of, view_text
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.messages import (
    Ask,
    AskEpoch,
    AskForget,
    Asking,
    AskOffsets,
    AskRoster,
    AskTopic,
    Confirm,
    Damage,
    Deny,
    Echo,
    Fetch,
    Fetched,
    FetchedSnapshot,
    FetchSnapshot,
    Forward,
    Heartbeat,
    Install,
    Installed,
    LaneAsk,
    LaneBegin,
    LaneEnds,
    LaneFetch,
    LaneFetched,
    LaneTail,
    Message,
    Missing,
    No,
    Order,
    Post,
    Posted,
    Probe,
    Propose,
    Refuse,
    Reject,
    Repair,
    Repairing,
    Resend,
    Settled,
    State,
    Vote,
)

_POSITION_MAX, _VIEW_MAX, _GATEWAY_MAX = limits.POSITION_MAX, limits.VIEW_MAX, limits.GATEWAY_MAX
_FRAMES_MAX = common_limits.FRAMES_A_MESSAGE_MAX
_CHANGES = ("add", "remove", "replace")
_ID_BYTES = limits.ID_BYTES
_CRC_MAX = 2**32 - 1
_FIRST_VIEW = view_of(1, 0)  # every view id with a counter of at least 1 is above this number
_LOW_MAX = limits.SPACE_CHARACTERS_MAX
_NAME_MAX = NAME_BYTES_MAX + len(NAMELESS)

#: Types of the messages that members of one view send to each other. A member of another view ignores them.
OF_A_VIEW = frozenset(
    {Forward, Asking, Order, Echo, Resend, Refuse, Deny, Vote, No, Confirm, Missing, Repairing, Repair},
)


def malformed(message: Message) -> str:
    """Return the reason why no correct gateway can have sent the message; empty if it is well formed."""
    check = _CHECKS.get(type(message))
    return check(message) if check is not None else f"{type(message).__name__} is not a message between gateways"


def far_ahead(message: Message, promised: int) -> str:
    """Return the reason why the view in a message is too far above `promised`; empty if it is not, or if `promised` is 0.

    A gateway proposes a view above all views that it has seen. One wrong message with a very high view would therefore use up the
    view ids.
    """
    highest = _NOTED.get(type(message))
    if highest is None or not promised:
        return ""
    view = highest(message)
    ahead = counter_of(view) - counter_of(promised)
    return f"view {view_text(view)} is too far above {view_text(promised)}" if ahead > limits.VIEWS_AHEAD_MAX else ""


_NOTED: dict[type, Callable[[Any], int]] = {
    Heartbeat: lambda message: max(message.view, message.promised, message.claim),
    Propose: lambda message: message.view,
    Reject: lambda message: message.promised,
}


# Parts


def _is_view(view: int) -> bool:
    """True if the number is a valid view id: it contains a counter and the number of the gateway that proposed the view."""
    return _FIRST_VIEW <= view <= _VIEW_MAX and coordinator_of(view) > 0


def _view(view: int) -> str:
    return "" if _is_view(view) else f"{view} is not a view id"


def _view_or_none(view: int) -> str:
    return "" if not view or _is_view(view) else f"{view} is not a view id"


def _position(position: int) -> str:
    return "" if 0 < position <= _POSITION_MAX else f"{position} is not a position"


def _text(text: str, most: int = limits.REASON_CHARACTERS_MAX) -> str:
    return "" if len(text) <= most else f"a text of {len(text)} characters is over the limit of {most}"


def _name(name: str) -> str:
    return "" if 0 < len(name) <= _NAME_MAX else f"a name has 1 to {_NAME_MAX} characters, not {len(name)}"


def _members(members: Sequence[int]) -> str:
    """Return the reason why the numbers are invalid as gateway numbers or not distinct; empty if they are valid and distinct."""
    if len(members) > common_limits.ROSTER_MAX:
        return f"{len(members)} gateways are over the limit of {common_limits.ROSTER_MAX}"
    if len(set(members)) != len(members) or not all(0 < member <= _GATEWAY_MAX for member in members):
        return f"{members} are not distinct gateway numbers"
    return ""


def _table(table: Sequence[tuple[int, int]], end: int) -> str:
    """Return the reason why the pairs (view, first position) in the table are invalid; empty if they are valid.

    Views and positions must increase from each pair to the next.
    """
    if len(table) > limits.VIEW_RUNS_MAX:
        return f"{len(table)} runs of frames are over the limit of {limits.VIEW_RUNS_MAX}"
    view = first = 0
    for next_view, next_first in table:
        if not (_is_view(next_view) and view < next_view and first < next_first <= end):
            return f"the run of view {next_view} from {next_first} on does not follow that of {view} from {first} on"
        view, first = next_view, next_first
    return ""


def _log(end: int, chain: int, base: int, table: Sequence[tuple[int, int]]) -> str:
    """Return the reason why no log can have this end, chain value, base and table of runs; empty if a log can have them."""
    if not (0 <= end <= _POSITION_MAX and 0 <= base <= _POSITION_MAX and 0 <= chain <= _CRC_MAX):
        return f"a log cannot end at {end} with chain value {chain} and a table that begins after {base}"
    return _table(table, end)


def _ranges(ranges: Sequence[tuple[int, int]]) -> str:
    """Return the reason why the ranges of positions are not in order and disjoint; empty if they are."""
    if not 0 < len(ranges) <= limits.REPAIR_RANGES_MAX:
        return f"{len(ranges)} ranges are not 1 to {limits.REPAIR_RANGES_MAX}"
    end = 0
    for first, last in ranges:
        if not end < first <= last <= _POSITION_MAX:
            return f"{first} to {last} is not a range after {end}"
        end = last
    return ""


def _run(frames: Sequence[Frame], most: int = _FRAMES_MAX) -> str:
    """Return the reason why the frames cannot have consecutive positions; empty if they can.

    The layers check each frame when they append it, so this function checks only the first and the last frame.
    """
    count = len(frames)
    if not 0 < count <= most:
        return f"{count} frames are not 1 to {most}"
    first, last = frames[0], frames[-1]
    if not 0 < first.position <= _POSITION_MAX - count or last.position - first.position != count - 1:
        return f"{count} frames do not go from position {first.position} to {last.position}"
    return _size(first) or _size(last)


def _run_or_none(frames: Sequence[Frame]) -> str:
    return _run(frames, limits.FETCHED_FRAMES_MAX) if frames else ""


def _size(frame: Frame) -> str:
    length = len(frame.body)
    if length > common_limits.BODY_BYTES_MAX or length != frame.body_length:
        return (
            f"a body of {length} bytes is over the limit of {common_limits.BODY_BYTES_MAX}, or its header names {frame.body_length}"
        )
    return ""


# Messages of order


def _forward(message: Forward) -> str:
    frames = message.frames
    if not 0 < len(frames) <= _FRAMES_MAX:
        return f"{len(frames)} frames are not 1 to {_FRAMES_MAX}"
    return _view(message.view) or batch(frames[0]) or batch(frames[-1])


def batch(frame: Frame) -> str:
    """Return the reason why no correct origin forwards this frame as a batch or TXN; empty if the frame is valid."""
    if frame.kind not in SEQUENCED or frame.position or frame.view:
        return f"{frame!r} is not a batch without a position"
    if not frame.count or not 0 < frame.first_sequence <= _POSITION_MAX - frame.count:
        return f"{frame!r} has no valid sequences"
    if frame.raw_length > common_limits.RAW_BYTES_MAX:
        return f"a batch of {frame.raw_length} bytes is over the limit of {common_limits.RAW_BYTES_MAX}"
    return _size(frame)


def _epoch(ask: AskEpoch) -> str:
    if len(ask.instance) != _ID_BYTES or not 0 < ask.epoch <= limits.EPOCH_MAX:
        return f"epoch {ask.epoch} of an instance of {len(ask.instance)} bytes is invalid"
    return _name(ask.name)


def _offsets(ask: AskOffsets) -> str:
    if not (0 <= ask.offset <= _POSITION_MAX and 0 <= ask.frontier <= _POSITION_MAX):
        return f"offset {ask.offset} with frontier {ask.frontier} is not a valid commit"
    return _name(ask.reader)


def _forget(ask: AskForget) -> str:
    numbers = ask.producers
    if not 0 < len(numbers) <= common_limits.DELETE_PRODUCERS_MAX:
        return f"{len(numbers)} producers are not 1 to {common_limits.DELETE_PRODUCERS_MAX}"
    if len(set(numbers)) != len(numbers) or not all(0 < number <= _POSITION_MAX for number in numbers):
        return "the producer numbers are not distinct"
    return ""


def _roster(ask: AskRoster) -> str:
    if ask.change not in _CHANGES:
        return f"{ask.change[:40]!r} is not a change of a roster"
    if not 0 <= ask.frontier <= _POSITION_MAX:
        return f"frontier {ask.frontier} is not a position"
    if len(ask.incarnation) not in (0, _ID_BYTES):
        return f"a disk is named by {_ID_BYTES} bytes, not {len(ask.incarnation)}"
    return _name(ask.name) or _text(ask.address, limits.ADDRESS_CHARACTERS_MAX)


_ASKS: dict[type, Callable[[Any], str]] = {
    AskEpoch: _epoch,
    AskTopic: lambda ask: _name(ask.name),
    AskOffsets: _offsets,
    AskForget: _forget,
    AskRoster: _roster,
}


def _ask(ask: Ask) -> str:
    return _ASKS[type(ask)](ask)


def _echo(message: Echo) -> str:
    length = len(message.headers)
    if not 0 < length <= _FRAMES_MAX * HEADER_SIZE or length % HEADER_SIZE:
        return f"{length} bytes are not 1 to {_FRAMES_MAX} headers"
    return _view(message.view)


def _resend(message: Resend) -> str:
    if not (0 < message.producer <= _POSITION_MAX and 0 < message.epoch <= limits.EPOCH_MAX):
        return f"epoch {message.epoch} of producer {message.producer} is invalid"
    return _view(message.view) or _position(message.sequence)


def _refuse(message: Refuse) -> str:
    if not (0 < message.producer <= _POSITION_MAX and 0 <= message.epoch <= limits.EPOCH_MAX):
        return f"epoch {message.epoch} of producer {message.producer} is invalid"
    return _view(message.view) or _position(message.first_sequence) or _verdict(message)


def _verdict(message: Refuse | Deny) -> str:
    return _text(message.code, limits.CODE_CHARACTERS_MAX) or _text(message.reason)


# Messages of atomic


def _vote(message: Vote) -> str:
    low, position_good = len(message.low), _is_view(message.view) and 0 <= message.up_to <= _POSITION_MAX
    good = position_good and low <= limits.SPACE_CHARACTERS_MAX
    return "" if good else f"a YES up to {message.up_to} in {message.view} with {low} characters is invalid"


def _confirm(message: Confirm) -> str:
    good = _is_view(message.view) and 0 <= message.up_to <= _POSITION_MAX
    return "" if good else f"a decision up to {message.up_to} in {message.view} is invalid"


def _no(message: No) -> str:
    return _view(message.view) or _position(message.position) or _text(message.reason, 2 * limits.SPACE_CHARACTERS_MAX)


# Messages of membership and flush


def _heartbeat(message: Heartbeat) -> str:
    if len(message.log) not in (0, _ID_BYTES) or not 0 <= message.config <= _CRC_MAX:
        return f"a log's uuid has {_ID_BYTES} bytes, not {len(message.log)}; a configuration's CRC is not {message.config}"
    times = (message.sent_us, message.echo_us, message.held_us, message.wall_us)
    if not all(0 <= time_us <= _POSITION_MAX for time_us in times):
        return f"not all of {times} are valid times"
    # A gateway records only decided positions as decided, and decides only positions of its log.
    if not 0 <= message.watermark <= message.frontier <= message.end <= _POSITION_MAX:
        return f"a log cannot end at {message.end} with frontier {message.frontier} and watermark {message.watermark}"
    # A gateway promises a view before it accepts or installs that view (flush, F2 and F9).
    if bool(message.members) != bool(message.view) or not max(message.view, message.accepted) <= message.promised:
        return f"view {message.view} of {message.members} and accepted {message.accepted} exceed promised {message.promised}"
    if bool(message.forced) != bool(message.forced_at) or not 0 <= message.forced_at <= message.frontier:
        return (
            f"a roster cannot be forced at {message.forced_at} in view {message.forced} of a log decided up to {message.frontier}"
        )
    views = _view_or_none(message.view) or _view_or_none(message.promised) or _view_or_none(message.accepted)
    views = views or _view_or_none(message.forced)
    return views or _view_or_none(message.claim) or _members(message.members) or _members(message.hears)


def _proposed(view: int, members: Sequence[int]) -> str:
    """Return the reason why the members of a proposed view are invalid; empty if they are valid and include the candidate."""
    return _members(members) or ("" if coordinator_of(view) in members else f"view {view} does not include its coordinator")


def _damage(damage: Damage | None, end: int) -> str:
    if damage is None or (0 < damage.first <= damage.last == end and _is_view(damage.view) and 0 <= damage.chain <= _CRC_MAX):
        return ""
    return f"{damage} is not the end of a log that ends at {end}"


def _state(message: State) -> str:
    if not 0 <= message.frontier <= message.end or message.accepted > message.view:
        return f"a log of {message.accepted} that ends at {message.end} with frontier {message.frontier} is invalid"
    log = _log(message.end, message.chain, message.base, message.table)
    return _view(message.view) or _view_or_none(message.accepted) or log or _damage(message.damage, message.end)


def _reject(message: Reject) -> str:
    return _view(message.view) or _view_or_none(message.promised) or _text(message.reason)


def _install(message: Install) -> str:
    log = _log(message.end, message.chain, message.base, message.table)
    return _view(message.view) or _proposed(message.view, message.members) or log


def _fetch(message: Fetch) -> str:
    return _view_or_none(message.view) or _ranges(((message.first, message.last),))


def _fetched(message: Fetched) -> str:
    frames = message.frames
    if frames and frames[0].position != message.first:
        return f"frames from {frames[0].position} on are announced as from {message.first} on"
    if not 0 <= message.stop <= _POSITION_MAX:
        return f"{message.stop} is not a position"
    run = _run(frames, limits.FETCHED_FRAMES_MAX) if frames else _position(message.first)
    return _view_or_none(message.view) or _view_or_none(message.source) or run


def _fetch_snapshot(message: FetchSnapshot) -> str:
    if not 0 <= message.at <= limits.SNAPSHOT_BYTES_MAX:
        return f"a snapshot cannot have a byte {message.at}"
    return _view_or_none(message.view) or _position(message.position)


def _fetched_snapshot(message: FetchedSnapshot) -> str:
    size, end = message.size, message.at + len(message.data)
    if len(message.data) > limits.FETCH_BYTES or not 0 <= message.at <= end <= size <= limits.SNAPSHOT_BYTES_MAX:
        return f"bytes {message.at} to {end} are not a chunk of a snapshot of {size} bytes"
    if size and not message.data:
        return f"an empty chunk of a snapshot of {size} bytes"
    return _view_or_none(message.view) or _view_or_none(message.source) or _position(message.position)


# Messages of repair


def _missing(message: Missing) -> str:
    of = "" if 0 <= message.of <= _GATEWAY_MAX else f"{message.of} is not a gateway number"
    return of or _view(message.view) or _ranges(message.ranges)


# Messages of lanes


def _lane(incarnation: bytes, origin: int = 1) -> str:
    if len(incarnation) != _ID_BYTES or not 0 < origin <= _GATEWAY_MAX:
        return f"gateway number {origin} or an incarnation of {len(incarnation)} bytes is invalid"
    return ""


def _lane_vote(message: Posted | Settled | LaneAsk | LaneTail) -> str:
    if not (0 <= message.attempt <= _VIEW_MAX and 0 <= message.up_to <= _POSITION_MAX):
        return f"attempt {message.attempt} with position {message.up_to} is invalid"
    return _lane(message.incarnation) or (_text(message.low, _LOW_MAX) if isinstance(message, Posted) else "")


def _lane_ends(message: LaneEnds) -> str:
    if len(message.ends) > limits.LANES_MAX:
        return f"{len(message.ends)} lanes are over the limit of {limits.LANES_MAX}"
    wrong = (_lane(end.incarnation, end.origin) for end in message.ends)
    return next(filter(None, wrong), "") or next(
        (f"{end.decided} is not a position" for end in message.ends if not 0 <= end.decided <= _POSITION_MAX), ""
    )


def _lane_begin(begin: LaneBegin) -> str:
    numbers = all(0 < member <= _GATEWAY_MAX for member in begin.members) and len(begin.members) <= common_limits.ROSTER_MAX
    positions = 0 < begin.position <= _POSITION_MAX and 0 <= begin.offset <= _POSITION_MAX
    names = 0 < begin.attempt <= _VIEW_MAX and 0 <= begin.chain <= _CRC_MAX
    return "" if numbers and positions and names else f"invalid begin of a lane: {begin}"


def _lane_fetched(message: LaneFetched) -> str:
    begin = _lane_begin(message.begin) if message.begin is not None else ""
    return begin or _lane(message.incarnation, message.origin) or _run_or_none(message.frames)


_CHECKS: dict[type, Callable[[Any], str]] = {
    Post: lambda message: _lane(message.incarnation) or _run(message.frames),
    Posted: _lane_vote,
    Settled: _lane_vote,
    LaneEnds: _lane_ends,
    LaneFetch: lambda message: _lane(message.incarnation, message.origin) or _position(message.first),
    LaneFetched: _lane_fetched,
    LaneAsk: lambda message: _lane_vote(message) or _position(message.behind + 1),  # `behind` may be 0, which is not a position
    LaneTail: lambda message: _lane_vote(message) or _run_or_none(message.frames),
    Forward: _forward,
    Asking: lambda message: _view(message.view) or _ask(message.ask),
    Order: lambda message: _view(message.view) or _run(message.frames),
    Echo: _echo,
    Resend: _resend,
    Refuse: _refuse,
    Deny: lambda message: _view(message.view) or _ask(message.ask) or _verdict(message),
    Vote: _vote,
    No: _no,
    Confirm: _confirm,
    Heartbeat: _heartbeat,
    Probe: lambda message: "",
    Propose: lambda message: _view(message.view) or _proposed(message.view, message.members),
    State: _state,
    Reject: _reject,
    Install: _install,
    Installed: lambda message: _view(message.view),
    Fetch: _fetch,
    Fetched: _fetched,
    FetchSnapshot: _fetch_snapshot,
    FetchedSnapshot: _fetched_snapshot,
    Missing: _missing,
    Repairing: lambda message: _view(message.view) or _ranges(message.ranges),
    Repair: lambda message: _view(message.view) or _run(message.frames),
}
