"""The outside checker of unordered records: compares what clients saw with every gateway's lanes. It knows the contract alone.

A lane stands on every gateway alike, all of it or none (C2), each record once (C4), first in first out of its origin and of each
producer, with the same bytes at the same offset (C8); what was acknowledged is in the lane that the receipt named (C3). One thing
is the origin's alone: the last word on what it decided a moment before its disk was lost. Such a record may stay in doubt, but it
stands there (design, section 7). Retention lets the oldest records go, on each gateway in its own time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, islice

from tests.faults.group.checker import FINDINGS_MAX, Log, Record, dense, same, sound, together
from tests.faults.group.journal import Story, Use, View


@dataclass
class Copy(Log):
    """A lane in one gateway's directory.

    Attributes:
        lane: which one.
        origin: whether it stands at its origin, on the disk that it began on, and nothing of it is damaged there.
        doubt: how many records stand behind its end, undecided.
    """

    lane: str = ""
    origin: bool = False
    doubt: int = 0


Lanes = Mapping[str, Sequence[Copy]]
Longest = Mapping[str, Log]  # what the gateways hold of each lane between them
Sent = tuple[str, int]  # a producer, and the number of a use


def check_lanes(
    stories: Sequence[Story],
    views: Sequence[View],
    copies: Sequence[Copy],
    gateways: Sequence[str],
    spoiled: Collection[tuple[str, str]],
) -> list[str]:
    """Everything that can be told of unordered records.

    Args:
        stories: of what was sent unordered.
        views: of all readers.
        copies: every lane of every gateway.
        gateways: who has to have them.
        spoiled: (gateway, lane) where bits were flipped: what is damaged there says nothing.
    """
    lanes: dict[str, list[Copy]] = defaultdict(list)
    for copy in copies:
        lanes[copy.lane] += [] if copy.damage and (copy.gateway, copy.lane) in spoiled else [copy]
    of_all = [copy for some in lanes.values() for copy in some]
    longest = {lane: together(some) for lane, some in lanes.items() if some}
    found = chain(
        *(dense(_named(copy)) for copy in of_all),
        *(sound(_named(copy)) for copy in of_all),
        *(same(_named(one), _named(other)) for some in lanes.values() for one, other in combinations(some, 2)),
        *(whole(lane, some, gateways, spoiled) for lane, some in lanes.items()),
        sent(stories, longest),
        once(stories, longest),
        acknowledged(stories, lanes, longest),
        *(in_order(stories, lane, log) for lane, log in longest.items()),
        *(read(view, lanes) for view in views),
    )
    return list(dict.fromkeys(islice(found, FINDINGS_MAX)))


def _named(copy: Copy) -> Log:
    """The copy under the name that findings give it."""
    return Log(f"lane {copy.lane} of {copy.gateway}", copy.start, copy.records, copy.blocks, copy.damage)


def _uses(stories: Iterable[Story]) -> dict[Sent, Use]:
    return {(story.producer, number): use for story in stories for number, use in story.uses.items()}


def whole(lane: str, copies: Sequence[Copy], gateways: Sequence[str], spoiled: Collection[tuple[str, str]]) -> Iterator[str]:
    """C2: every gateway has all of a lane, or none of it has any."""
    ends = {copy.gateway: copy.end for copy in copies}
    for gateway in gateways:
        if (gateway, lane) not in spoiled:
            ends.setdefault(gateway, 0)
    if len(set(ends.values())) > 1:
        yield f"C2: lane {lane} ends at {', '.join(f'{end} on {gateway}' for gateway, end in sorted(ends.items()))}"


def sent(stories: Iterable[Story], longest: Longest) -> Iterator[str]:
    """C5: what is there was sent."""
    uses = _uses(stories)
    for lane, copy in longest.items():
        for record in copy.records:
            if record.use and (record.producer, record.use) not in uses:
                yield f"C5: lane {lane} has at {record.offset} use {record.use} of {record.producer}, which no producer sent"
                return


def once(stories: Iterable[Story], longest: Longest) -> Iterator[str]:
    """C2, C4: nothing is at two places, in whichever lanes; what was said to be in none is in none."""
    places: dict[Sent, tuple[str, int]] = {}
    for lane, copy in longest.items():
        for record in copy.records:
            before = places.setdefault((record.producer, record.use), (lane, record.offset))
            if before != (lane, record.offset):
                first, second = _at(*before), _at(lane, record.offset)
                yield f"C2: use {record.use} of {record.producer} is at {first} and at {second}"
    for (producer, number), use in _uses(stories).items():
        place = places.get((producer, number))
        if use.outcome == "a" and place is not None:
            yield f"C2: use {number} of {producer} was reported as lost, but is at {_at(*place)}"


def acknowledged(stories: Iterable[Story], lanes: Lanes, longest: Longest) -> Iterator[str]:
    """C3: what was acknowledged is where its receipt says; where the origin's disk is lost it stands there, decided or in doubt.

    Offset -1 is reported where the place is not known any more; behind the begin of a lane that is no finding.
    """
    places = {lane: {(one.producer, one.use): one.offset for one in copy.records} for lane, copy in longest.items()}
    for (producer, number), use in _uses(stories).items():
        if use.outcome == "f":
            yield f"C4: {producer} was fenced at use {number}, but no other instance of it ran"
        if use.outcome != "c":
            continue
        told, there = _at(use.lane, use.offset), places.get(use.lane, {}).get((producer, number))
        if there is None:
            copies = lanes.get(use.lane, ())
            lost = not any(copy.origin for copy in copies)
            doubt = lost and any(copy.end <= use.offset < copy.end + copy.doubt for copy in copies)
            if not doubt and not (copies and use.offset < longest[use.lane].start):
                yield f"C3: use {number} of {producer} was committed at {told}, but is lost"
        elif use.offset not in (there, -1):
            yield f"C2: use {number} of {producer} was committed at {told}, but is at {_at(use.lane, there)}"


def in_order(stories: Iterable[Story], lane: str, log: Log) -> Iterator[str]:
    """C4: in a lane a producer's records are in the order sent, each epoch's from sequence 1 on without a gap; and what was sent
    after something was acknowledged stands behind it, whoever sent it.
    """
    uses = _uses(stories)
    last: dict[str, Record] = {}
    latest_sent, latest = -1, ""
    for record in log.records:
        before = last.get(record.producer)
        if before is not None and record.use <= before.use:
            yield f"C4: {_at(lane, record.offset)} has use {record.use} of {record.producer} after use {before.use}"
        after = before.sequence if before is not None else record.sequence - 1 if log.start else 0
        if record.sequence not in (1, after + 1):
            yield f"C4: {_at(lane, record.offset)} has sequence {record.sequence} of {record.producer} after {after}"
        last[record.producer] = record
        use = uses.get((record.producer, record.use))
        if use is None:
            continue
        if use.outcome == "c" and latest_sent > use.told:
            yield f"order: {latest} was sent after the receipt for use {record.use} of {record.producer}, which follows it"
        if use.sent > latest_sent:
            latest_sent, latest = use.sent, f"use {record.use} of {record.producer} at {_at(lane, record.offset)}"


def read(view: View, lanes: Lanes) -> Iterator[str]:
    """C7, C8: what was read live comes in order, nothing twice or left out, and is what the files hold, on every gateway."""
    for lane, parts in view.lanes.items():
        begin = max((copy.start for copy in lanes.get(lane, ())), default=0)
        expected = min(parts[0][0], begin)  # who came late began where the lane did
        for start, end, digest in parts:
            if start != expected:
                yield f"C8: {view.reader} read {_at(lane, start)} instead of {expected}"
            expected = end
            for copy in lanes.get(lane, ()):
                if copy.blocks.get((start, end), digest) != digest:
                    yield f"C8: {view.reader} read records {start} to {end} of lane {lane}, which differ on {copy.gateway}"
        held = max((copy.end for copy in lanes.get(lane, ())), default=expected)
        if expected > held:
            yield f"C7: {view.reader} read lane {lane} up to {expected}, but it ends at {held}"


def _at(lane: str, offset: int) -> str:
    return f"{lane}@{offset}"
