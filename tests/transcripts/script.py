"""The language of the transcripts: commands in, the actions that follow out.

A file is a sequence of blocks: lines that begin with `#` speak to the reader, then come commands, then `----`, then what the
stacks did, up to an empty line. Commands:

    alone NAME                          a blank gateway that is its whole group
    group NAME... view=C.N              blank members in a given view
    view C.N                            a view change that all logs agree to
    restart NAME [watermark=P] [keep=N] [disk=X]   a new process on its disk; N unsynced frames survived; X: on another disk
    epoch NAME sS #R PRODUCER/E INSTANCE           EpochAsked by session S as request R
    topic NAME sS #R TOPIC                         TopicAsked
    offset NAME sS #R READER=N [back]              OffsetsAsked
    forget NAME sS #R PRODUCER...                  ForgetAsked
    submit NAME sS pP/E FIRST+COUNT... [topic=N] [progress=X] [body=X]    Submitted, one frame a FIRST+COUNT
        staged=yes: batches that wait for a TXN; txn=POSITION+COUNT,...: the TXN of these
    close NAME sS                       SessionClosed
    disk NAME [TOKEN]                   the disk is done (up to the token)
    net [FROM>TO] [COUNT]               the network delivers, oldest first (only between the two)
    swap FROM>TO                        the two oldest messages between them change places
    lose FROM>TO                        the oldest message between them is lost
    again FROM>TO                       the oldest message between them is delivered, and stays
    repair FROM>TO P                    position P of FROM's log is sent to TO, whole (what the repair layer will do)
    settle                              disks and network work until nothing is left to do
    time MS                             time passes (timers that are set meanwhile are not shown)
    clock MS                            the wall clock jumps by so much
    low NAME REASON... / room NAME      the disk runs low / has room again
    decline NAME REASON...              the member says NO to the batches of the next command that gives it some
    limit undecided_bytes_max=N         for stacks that start after it
    fail NAME REASON...                 a write failed
    leave NAME                          stop in order
    show NAME                           what the member knows

A command that is illegal shows the invariant that it would break.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

import msgspec

from tests.transcripts.group import Group, Member, incarnation
from tests.transcripts.text import action_text, frames_text, message_text
from tutti.data.frames.bodies import TxnBody, encode_body
from tutti.data.frames.frame import STAGED, Frame, Kind
from tutti.data.view_id import view_of
from tutti.errors import InvariantViolated
from tutti_gateway.core.pending_window import CommitStage
from tutti_gateway.core.protocol import codec
from tutti_gateway.core.protocol.actions import Action, Persist, SetTimer
from tutti_gateway.core.protocol.events import (
    EpochAsked,
    Event,
    ForgetAsked,
    Identity,
    LeaveAsked,
    OffsetsAsked,
    SessionClosed,
    SpaceChanged,
    StackConfig,
    TopicAsked,
    WriteFailed,
    submitted,
)
from tutti_gateway.core.protocol.messages import Order

MARK = "----"


def batches(words: list[str]) -> tuple[Frame, ...]:
    """`p1/2 1+10 11+5 topic=1 progress=x body=y` as frames."""
    options = dict(word.split("=", 1) for word in words[1:] if "=" in word)
    producer, epoch = words[0].removeprefix("p").split("/")
    frames = []
    for word in words[1:]:
        if "=" not in word:
            first, count = map(int, word.split("+"))
            body = options.get("body", f"body of {producer}/{epoch} {word}").encode()
            if "txn" in options:
                parts = [part.split("+") for part in options["txn"].split(",")]
                body = encode_body(TxnBody(tuple([int(at) for at, _ in parts]), tuple([int(records) for _, records in parts])))
            frames.append(
                Frame(
                    Kind.TXN if "txn" in options else Kind.BATCH,
                    body,
                    flags=STAGED if "staged" in options else 0,
                    progress=options.get("progress", "").encode(),
                    producer=int(producer),
                    epoch=int(epoch),
                    first_sequence=first,
                    count=count,
                    topic=int(options.get("topic", "1")),
                )
            )
    return tuple(frames)


class Script:
    """One transcript at work."""

    illegal = "illegal"  # how a broken invariant is told: here commands may ask for it

    def __init__(self) -> None:
        self.group = Group(StackConfig(heartbeat_us=200_000), self._watch)
        self.lines: list[str] = []
        self._declining: Member | None = None
        self._timers = True
        self.verbs: dict[str, Callable[[Any, list[str]], None]] = {**VERBS}

    @property
    def problems(self) -> list[str]:
        """What was found that may never happen."""
        return self.group.problems

    def finish(self) -> list[str]:
        """The end of the transcript: what is still wrong."""
        return self.problems

    def run(self, text: str) -> str:
        """The transcript with the outputs that the stacks give now."""
        out: list[str] = []
        inside = False
        for line in text.splitlines():
            if inside and line:
                continue
            inside = False
            if line == MARK:
                out += [MARK, *self.lines]
                self.lines = []
                inside = True
            else:
                out.append(line)
                if line and not line.startswith("#"):
                    self._command(line)
        assert not self.lines, "commands without ---- behind them"
        return "\n".join(out).rstrip("\n") + "\n"

    def _watch(self, member: Member, event: Event, actions: list[Action]) -> None:
        names = {other.number: other.name for other in self.group.members.values()}
        for action in actions:
            if self._timers or not isinstance(action, SetTimer):
                self.lines.append(f"{member.name} {action_text(action, names, self.group.mono_us)}")
        if self._declining is member and any(isinstance(action, Persist) for action in actions):
            member.stack.layers.atomic._low = ""
            self._declining = None

    def _command(self, line: str) -> None:
        verb, *words = shlex.split(line, comments=False)
        try:
            self.verbs[verb](self, words)
        except InvariantViolated as error:
            self.lines.append(f"{self.illegal}: {error}")
        self.lines += [f"PROBLEM {problem}" for problem in self.problems]
        self.problems.clear()

    # Members

    def alone(self, words: list[str]) -> None:
        self.group.start_alone(words[0])

    def start_group(self, words: list[str]) -> None:
        self.group.start_group(words[:-1], _view(words[-1].removeprefix("view=")))

    def view(self, words: list[str]) -> None:
        self.group.give_view(_view(words[0]))

    def restart(self, words: list[str]) -> None:
        options = dict(word.split("=") for word in words[1:])
        numbers = {name: int(options[name]) for name in ("watermark", "keep") if name in options}
        name = words[0]
        again = Identity(name, incarnation(options["disk"]), "test", {name: f"{name}:7400"}) if "disk" in options else None
        self.group.restart(name, numbers.get("watermark"), numbers.get("keep"), again)

    def _member(self, name: str) -> Member:
        return self.group.members[name]

    def _event(self, name: str, event: Event) -> None:
        self.group.step(self._member(name), event)

    # Clients

    def epoch(self, words: list[str]) -> None:
        member, session, request, producer, instance = words
        name, epoch = producer.split("/")
        self._event(member, EpochAsked(number_of(session), number_of(request), name, incarnation(instance), int(epoch)))

    def topic(self, words: list[str]) -> None:
        self._event(words[0], TopicAsked(number_of(words[1]), number_of(words[2]), words[3]))

    def offset(self, words: list[str]) -> None:
        reader, offset = words[3].split("=")
        self._event(words[0], OffsetsAsked(number_of(words[1]), number_of(words[2]), reader, int(offset), words[4:] == ["back"]))

    def forget(self, words: list[str]) -> None:
        self._event(words[0], ForgetAsked(number_of(words[1]), number_of(words[2]), tuple(words[3:])))

    def submit(self, words: list[str]) -> None:
        self._event(words[0], submitted(number_of(words[1]), batches(words[2:])))

    def close(self, words: list[str]) -> None:
        self._event(words[0], SessionClosed(number_of(words[1])))

    # Disk, network, time

    def disk(self, words: list[str]) -> None:
        self.group.persisted(self._member(words[0]), int(words[1]) if len(words) > 1 else None)

    def _between(self, pair: str) -> list[int]:
        sender, to = pair.split(">")
        return [place for place, (one, other, _) in enumerate(self.group.network) if (one.name, other.name) == (sender, to)]

    def net(self, words: list[str]) -> None:
        pair = next((word for word in words if ">" in word), "")
        count = next((int(word) for word in words if word.isdigit()), None)
        while self.group.network if count is None else count > 0:
            places = self._between(pair) if pair else list(range(len(self.group.network)))
            if not places:
                break
            self._arrives(places[0])
            self.group.deliver(places[0])
            count = None if count is None else count - 1

    def _arrives(self, place: int) -> None:
        sender, to, data = self.group.network[place]
        self.lines.append(f"{sender.name}>{to.name} {message_text(codec.decode_message(data))}")

    def swap(self, words: list[str]) -> None:
        first, second = self._between(words[0])[:2]
        network = self.group.network
        network[first], network[second] = network[second], network[first]

    def lose(self, words: list[str]) -> None:
        sender, to, data = self.group.network.pop(self._between(words[0])[0])
        self.lines.append(f"{sender.name}>{to.name} lost: {message_text(codec.decode_message(data))}")

    def again(self, words: list[str]) -> None:
        place = self._between(words[0])[0]
        self._arrives(place)
        self.group.hand_over(*self.group.network[place])

    def repair(self, words: list[str]) -> None:
        sender, to = map(self._member, words[0].split(">"))
        window = sender.stack.layers.context.window
        message = Order(sender.stack.layers.context.view_state.view, (window.at(int(words[1])),))
        self.group.hand_over(sender, to, codec.encode(message))

    def settle(self, words: list[str]) -> None:
        self.group.settle()

    def time(self, words: list[str]) -> None:
        self._timers = False
        self.group.advance(int(words[0]) * 1000)
        self._timers = True

    def clock(self, words: list[str]) -> None:
        self.group.wall_us += int(words[0]) * 1000

    def low(self, words: list[str]) -> None:
        self._event(words[0], SpaceChanged(True, " ".join(words[1:])))

    def room(self, words: list[str]) -> None:
        self._event(words[0], SpaceChanged(False, ""))

    def decline(self, words: list[str]) -> None:
        member = self._member(words[0])
        member.stack.layers.atomic._low = " ".join(words[1:])
        self._declining = member

    def limit(self, words: list[str]) -> None:
        name, value = words[0].split("=")
        self.group.config = msgspec.structs.replace(self.group.config or StackConfig(), **{name: int(value)})

    def fail(self, words: list[str]) -> None:
        self._event(words[0], WriteFailed(" ".join(words[1:])))

    def leave(self, words: list[str]) -> None:
        self._event(words[0], LeaveAsked())

    def show(self, words: list[str]) -> None:
        member = self._member(words[0])
        layers = member.stack.layers
        window, order = layers.context.window, layers.order
        marks = " ".join(f"{stage.name.lower()}={window.mark(stage)}" for stage in CommitStage)
        self.lines.append(f"{member.name} {member.stack.phase.value}: {marks}")
        if window.frames:
            self.lines.append(f"{member.name} undecided: {frames_text(tuple(window.frames))}")
        for number in sorted(window.state.producers.keys() | order.received.lines.keys()):
            producer, line = window.state.producers.get(number), order.received.lines.get(number)
            decided = (
                f"decided {producer.epoch} after={producer.sequence}{' closed' * producer.closed}" if producer else "not decided"
            )
            end = f", log end {line.epoch} after={line.sequence} {line.state.value}" if line else ""
            self.lines.append(f"{member.name} p{number}: {decided}{end}")
        if order.forward.count:
            self.lines.append(f"{member.name} forward-table: {order.forward.count} batches")
        if order.receiver.missing():
            ranges = ", ".join(f"{first}-{last}" for first, last in order.receiver.missing())
            self.lines.append(f"{member.name} misses {ranges}")


def number_of(word: str) -> int:
    """`s1` or `#1` as a number."""
    return int(word.lstrip("s#"))


def _view(word: str) -> int:
    counter, number = word.split(".")
    return view_of(int(counter), int(number))


VERBS: dict[str, Callable[[Script, list[str]], None]] = {
    "alone": Script.alone,
    "group": Script.start_group,
    "view": Script.view,
    "restart": Script.restart,
    "epoch": Script.epoch,
    "topic": Script.topic,
    "offset": Script.offset,
    "forget": Script.forget,
    "submit": Script.submit,
    "close": Script.close,
    "disk": Script.disk,
    "net": Script.net,
    "swap": Script.swap,
    "lose": Script.lose,
    "again": Script.again,
    "repair": Script.repair,
    "settle": Script.settle,
    "time": Script.time,
    "clock": Script.clock,
    "low": Script.low,
    "room": Script.room,
    "decline": Script.decline,
    "limit": Script.limit,
    "fail": Script.fail,
    "leave": Script.leave,
    "show": Script.show,
}
