"""The protocol stack without its fast paths: a run of the simulator must have the same events and actions, byte for byte.

A fast path handles the frequent case beside a general path that handles all cases. `GENERAL` switches off those of the core.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from tests.sim.mutants.patch import Change, Edit, Value, applied
from tests.sim.options import Options
from tests.sim.run import Result, Run
from tests.sim.world import World
from tutti.data.frames import frame as frame_module
from tutti.data.frames.frame import Frame, chained
from tutti.data.log_state import LogState
from tutti.errors import InvariantViolated
from tutti_gateway.core import frame_runs
from tutti_gateway.core.order.forward_table import ForwardTable
from tutti_gateway.core.order.layer import Ordering
from tutti_gateway.core.order.received_table import ReceivedTable
from tutti_gateway.core.order.receiver import Receiver
from tutti_gateway.core.order.sequencer import Sequencer
from tutti_gateway.core.pending_window import Window
from tutti_gateway.core.protocol import codec
from tutti_gateway.core.protocol.events import Submitted, submitted
from tutti_gateway.core.repair.layer import Repair

_DIGEST_BYTES = 8


def _apply_one_by_one(self: LogState, frames: Sequence[Frame], aborted: Collection[int] = ()) -> tuple[int, ...]:
    return tuple([self.apply(frame, frame.position in aborted) for frame in frames])


def _submit_one_by_one(submit: Callable[[ForwardTable, Submitted], None]) -> Callable[[ForwardTable, Submitted], None]:
    def each(self: ForwardTable, event: Submitted) -> None:
        for session, frame in zip(event.sessions, event.frames, strict=True):
            submit(self, submitted(session, (frame,)))

    return each


def _check_whole_chain(extend: Callable[..., None]) -> Callable[..., None]:
    def checked(self: Window, frames: Sequence[Frame], more: int = 0) -> None:
        chain = self.chain
        for frame in frames:
            if not chained(frame, chain):
                raise InvariantViolated(f"{frame!r} does not continue the chain")
            chain = frame.header_crc
        extend(self, frames, more)

    return checked


#: Each change replaces a fast path of the core by the general path beside it, or repeats a check that the fast path omits.
GENERAL: tuple[Edit | Change, ...] = (
    Value(Receiver, "_append_in_sequence", lambda self, frames: 0),
    Value(LogState, "apply_run", _apply_one_by_one),
    Value(ForwardTable, "submit", _submit_one_by_one, wraps=True),
    Value(Window, "extend", _check_whole_chain, wraps=True),
    Edit(ReceivedTable, "apply", "(not self.forgotten and self.lines.get(frame.producer)) or ", ""),
    Edit(ReceivedTable, "apply", "if line.state is not LineState.OPEN:", "if True:"),
    Edit(Sequencer, "on_forward", "lines.get(number) or ", ""),
    Edit(Ordering, "decided", "if waiting:", "if True:"),
    Edit(
        Ordering,
        "end_of_step",
        "if not self.sequencer.ordered:\n        return False\n    self.housekeeping.ordered()\n",
        "self.housekeeping.ordered()\n    if not self.sequencer.ordered:\n        return False\n",
    ),
    Edit(Repair, "end_of_step", "if not self._receiver.gaps and self.requester.deadline_us is None:", "if False:"),
    Edit(frame_runs, "split_runs", "if len(frames) <= limits.FRAMES_A_MESSAGE_MAX:", "if False:"),
    Edit(frame_module, "payload_crc", "if not progress and body.__class__ is bytes:", "if False:"),
)


def _recorded(options: Options, changes: Sequence[Edit | Change], note: Callable[[str, Any], None]) -> Result:
    """Run the options with changes of the code, and report each event and action to `note` with the name of its gateway."""

    def traced(self: World, who: str, what: Any) -> None:
        self.traced_last.append((self.schedule.now, who, what))
        note(who, what)

    with applied((*changes, Value(World, "traced", traced))):
        return Run(options).play()


def _encoded(who: str, what: Any) -> bytes:
    return who.encode() + codec.encode(what)


def compared(options: Options) -> Result:
    """Run the options with and without the fast paths. If events or actions differ, the violation names the first difference."""
    digests: list[bytes] = []

    def digest(who: str, what: Any) -> None:
        digests.append(hashlib.blake2b(_encoded(who, what), digest_size=_DIGEST_BYTES).digest())

    general = _recorded(options, GENERAL, digest)
    expected, differences = iter(digests), list[str]()

    def compare(who: str, what: Any) -> None:
        if not differences and next(expected, b"") != hashlib.blake2b(_encoded(who, what), digest_size=_DIGEST_BYTES).digest():
            differences.append(f"with its fast paths, {who} has {what!r}")

    result = _recorded(options, (), compare)
    if not differences and next(expected, None) is not None:
        differences.append("the run ends earlier with the fast paths")
    if result.violation == general.violation and differences:
        result.violation = differences[0]
    return replace(result, violation=result.violation or general.violation)
