"""Checks beside those of the simulator, for rules that only a mutant would break."""

from __future__ import annotations

from typing import Any

from tests.sim.gateways import Gateway, Process
from tests.sim.run import Run
from tests.sim.violation import Violation
from tutti.data.frames.bodies import AbortBody, OffsetsBody, decode_body
from tutti.data.frames.frame import Frame, Kind
from tutti.data.view_id import view_text
from tutti_gateway.core.protocol.actions import Deliver
from tutti_gateway.core.protocol.events import Recovered
from tutti_gateway.core.protocol.messages import Confirm, Message, No, Vote


class Declined:
    """What a member said NO to is on its disk only together with the ABORT that voids it (design, 4.4, STUB)."""

    def __init__(self) -> None:
        self._declined: dict[tuple[Process, int], list[int]] = {}  # (process, view) -> positions

    def sent(self, process: Process, message: Message) -> None:
        """A NO is remembered; a YES that covers it needs the ABORT."""
        if isinstance(message, No):
            if process.gateway.disk.durable >= message.position:
                return  # it stood there before
            self._declined.setdefault((process, message.view), []).append(message.position)
        elif isinstance(message, Vote):
            for position in self._declined.get((process, message.view), ()):
                if position <= message.up_to and not self._voided(process, position, message.up_to):
                    raise Violation(
                        f"{process.gateway.name} said NO to {position}, and YES up to {message.up_to} without an ABORT of it"
                    )

    def _voided(self, process: Process, position: int, end: int) -> bool:
        frames = process.gateway.disk.frames
        batch = frames[position - 1]
        return any(
            (frame.kind, frame.producer, frame.epoch) == (Kind.ABORT, batch.producer, batch.epoch)
            and decode_body(AbortBody, frame.body).position <= position
            for frame in frames[position:end]
        )


class Current:
    """A member of a view decides what a CONFIRM of that view covers, not what one of another view does (design, 9)."""

    def __init__(self) -> None:
        self._confirmed: dict[int, int] = {}

    def sent(self, message: Message) -> None:
        """A CONFIRM is remembered."""
        if isinstance(message, Confirm):
            self._confirmed[message.view] = max(self._confirmed.get(message.view, 0), message.up_to)

    def delivered(self, process: Process, run: Deliver) -> None:
        """Who follows a coordinator goes no further than that one said."""
        view, last = process.view, run.frames[-1].position
        if view is not None and view.view and view.coordinator != process.me and last > self._confirmed.get(view.view, 0):
            raise Violation(f"{process.gateway.name} decides {last}, and no CONFIRM of its view {view_text(view.view)} said so")


class Readers:
    """What a named reader committed does not go back, nor does what it was shown (design, 1 C7, and 4.3)."""

    LOOK_US = 100_000

    def __init__(self, run: Run) -> None:
        self._run = run
        self._seen: dict[str, int] = {}
        self._committed: dict[str, int] = {}
        self._looked = 0
        run.world.schedule.after(self.LOOK_US, self._look)

    def _look(self) -> None:
        world = self._run.world
        for reader in self._run.readers:
            if reader.floor < self._seen.get(reader.name, 0):
                raise Violation(f"{reader.name} saw offset {self._seen[reader.name]}, and is shown no more than {reader.floor}")
            self._seen[reader.name] = reader.floor
        for place in world.log.places[self._looked :]:
            if place.frame.kind == Kind.OFFSETS:
                self._commits(place.frame)
        self._looked = world.log.end
        if not world.healing:
            world.schedule.after(self.LOOK_US, self._look)

    def _commits(self, frame: Frame) -> None:
        """The readers of the simulator never want to go back."""
        for reader, offset in decode_body(OffsetsBody, frame.body).readers.items():
            if offset < self._committed.get(reader, 0):
                raise Violation(f"reader {reader} had committed {self._committed[reader]}, and {frame!r} takes it back to {offset}")
            self._committed[reader] = offset


def watch(run: Run) -> None:
    """Have the checks look on."""
    checks, declined, current = run.world.checks, Declined(), Current()
    Readers(run)
    sent, delivered, started = checks.sent, checks.delivered, checks.started

    def also_sent(process: Process, to: int, message: Any) -> None:
        sent(process, to, message)
        declined.sent(process, message)
        current.sent(message)

    def also_delivered(process: Process, deliver: Deliver) -> None:
        delivered(process, deliver)
        current.delivered(process, deliver)

    def also_started(gateway: Gateway, recovered: Recovered) -> None:
        started(gateway, recovered)
        if recovered.damage is not None and not gateway.disk.weak:
            raise Violation(f"{gateway.name} starts with {recovered.damage}, and its disk lost nothing that was synced")

    vars(checks).update(sent=also_sent, delivered=also_delivered, started=also_started)  # methods of this one object
