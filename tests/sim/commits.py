"""Offset commits of named readers, by a model beside the log: each OFFSETS frame is a commit that a reader asked for.

The model knows the commits in the order in which gateways took them, and for each whether it asked to go back. Of one reader:

- each commit is in the log at most once, and commits are in the log in the order in which gateways took them. A commit may be
  missing, but one that was taken before another one never comes behind it;
- a commit that did not ask to go back is never below the one before it in the log;
- *Done* means that the log got this offset after the gateway took the commit.

An offset may be asked for more than once, so a frame may be one of several commits. The model takes the first one that it can be:
whatever later frames need is still left then. It never concludes from *Done* that an earlier commit cannot come any more. One that
had no answer is still under way when a later commit of the same offset as an earlier frame is answered from that frame.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.sim.violation import Violation
from tutti.data.client_protocol import Denied, Done
from tutti.data.frames.bodies import OffsetsBody, decode_body
from tutti.data.frames.frame import Frame
from tutti_gateway.core.protocol.events import OffsetsAsked

if TYPE_CHECKING:
    from tests.sim.gateways import Process


@dataclass(frozen=True)
class Commit:
    """One commit that a gateway took: `frontier` is the gateway's when it did."""

    offset: int
    back: bool
    frontier: int


@dataclass
class Log:
    """What is known of one reader.

    Attributes:
        taken: its commits, in the order in which gateways took them. after: how many of them no later frame can be.
        decided: (position, offset) of each OFFSETS frame.
    """

    taken: list[Commit] = field(default_factory=list)
    after: int = 0
    decided: list[tuple[int, int]] = field(default_factory=list)


class CommitChecks:
    """All readers of one run."""

    def __init__(self) -> None:
        self._readers: dict[str, Log] = {}
        self._asked: dict[tuple[Process, int, int], tuple[str, Commit]] = {}  # by process, session, request

    def asked(self, process: Process, event: OffsetsAsked) -> None:
        """A gateway takes a commit."""
        commit = Commit(event.offset, event.back, process.frontier)
        self._readers.setdefault(event.reader, Log()).taken.append(commit)
        self._asked[process, event.session, event.request] = event.reader, commit

    def decided(self, who: str, frame: Frame) -> int:
        """An OFFSETS frame is decided that was never shown before. Return how many readers it takes back."""
        backs = 0
        for reader, offset in decode_body(OffsetsBody, frame.body).readers.items():
            log = self._readers.setdefault(reader, Log())
            before = log.decided[-1][1] if log.decided else 0
            left = enumerate(log.taken[log.after :], log.after + 1)
            number = next((number for number, one in left if one.offset == offset and (one.back or offset >= before)), 0)
            if not number:
                what = f"takes reader {reader} back from {before}" if offset < before else f"is a commit of reader {reader}"
                raise Violation(f"{who} decides {frame!r}: it {what} to {offset}, but no pending commit requested that")
            backs += offset < before
            log.after = number
            log.decided.append((frame.position, offset))
        return backs

    def answered(self, process: Process, session: int, answer: Done | Denied) -> None:
        """A request is answered, one for an offset commit or another one."""
        reader, commit = self._asked.get((process, session, answer.request), ("", None))
        if commit is None:
            return
        since = self._since(reader, commit, process.frontier)
        if isinstance(answer, Done) and commit.offset not in since:
            raise Violation(
                f"{process.gateway.name} answers {answer}, but its log has no {commit} of reader {reader}; since then: {since}"
            )
        if isinstance(answer, Denied) and not answer.retry and commit.back and not since:
            raise Violation(f"{process.gateway.name} answers {answer}, but reader {reader} committed nothing after {commit}")

    def _since(self, reader: str, commit: Commit, frontier: int) -> list[int]:
        """The offsets that were decided after a gateway took the commit, up to its frontier now."""
        decided = self._readers[reader].decided
        return [offset for position, offset in decided if commit.frontier < position <= frontier]
