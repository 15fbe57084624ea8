"""Mutants of the order of messages, epochs and outcomes (design, section 4, layer 3)."""

from __future__ import annotations

from typing import Any

from tests.sim.clients import Producer, Reader
from tests.sim.mixes import MIXES
from tests.sim.mutants.mutant import LOW, MUCH, NETWORK, RIVALS, Mutant
from tests.sim.mutants.patch import Edit, Entry, Value
from tests.sim.mutants.scenes import QUIET, lost_last
from tests.sim.mutants.scripts import LATE, answers_lost, late_copies
from tutti.data.frames.frame import Frame, Kind
from tutti.delivery.ordered import OrderedDelivery
from tutti.delivery.session import Session
from tutti_gateway.core.layers import Layers
from tutti_gateway.core.order.batch_admission import ADMISSION, Admission, Relation
from tutti_gateway.core.order.client_requests import Requests
from tutti_gateway.core.order.forward_table import ForwardTable
from tutti_gateway.core.order.layer import Ordering
from tutti_gateway.core.order.received_table import ReceivedTable
from tutti_gateway.core.order.receiver import Receiver
from tutti_gateway.core.order.sequencer import Sequencer
from tutti_gateway.core.repair.layer import Repair

_OUTCOMES = "tests/unit/core/order/test_outcomes.py::"
_EPOCHS = "tests/unit/client/delivery/test_ordered_epochs.py::"


def _trusting(take: Any) -> Any:
    """`ReceivedTable.apply` of a member that believes what its coordinator orders, whatever sequence it has."""

    def trusting(self: ReceivedTable, frame: Frame) -> None:
        line = self.line(frame.producer) if frame.kind == Kind.BATCH else None
        if line is None or line.epoch != frame.epoch:
            take(self, frame)
        else:
            self.lines[line.number] = line
            line.extend(frame)

    return trusting


_TRUSTING = Value(ReceivedTable, "apply", _trusting, wraps=True)

ORDER = (
    Mutant(
        "table-not-rolled-back",
        "3",
        "the received-table goes back with a cut of the log",
        [Edit(Layers, "truncate", "self.order.rebuild()", "pass"), Edit(Layers, "view_ended", "self.order.rebuild()", "pass")],
        MUCH,
    ),
    Mutant(
        "dedup-by-a-window",
        "3",
        "a producer's sequences are remembered for ever, not for the last eight records",
        [
            Edit(
                Sequencer,
                "on_forward",
                "or frame.first_sequence != line.sequence + 1",
                "or not (frame.first_sequence == line.sequence + 1 or frame.last_sequence < line.sequence - 8)",
            ),
            _TRUSTING,
        ],
        NETWORK.but(rate=15.0, pipeline=16),
    ),
    Mutant(
        "forward-table-after-new-messages",
        "4.3",
        "a new coordinator gets what waited before anything new, and takes nothing behind a gap",
        [
            Edit(
                ForwardTable,
                "installed",
                "        self._forward(queue, [fresh.get(id(frame), frame) for frame in unordered])",
                "        queue.sent_us = self._outbox.now.mono_us",
            ),
            Edit(Sequencer, "on_forward", "frame.first_sequence != line.sequence + 1", "frame.first_sequence <= line.sequence"),
            _TRUSTING,
        ],
        RIVALS.but(faults="kill snipe split", rate=15.0, pipeline=16),
    ),
    Mutant(
        "forward-table-forgotten",
        "4.3",
        "an origin sends again, until its log has the outcome, what was neither ordered nor refused",
        [
            Edit(
                ForwardTable,
                "installed",
                "        self._forward(queue, [fresh.get(id(frame), frame) for frame in unordered])",
                "        queue.sent_us = self._outbox.now.mono_us",
            ),
            Edit(ForwardTable, "beat", "            self._forward(queue, self._unordered(queue))", "            pass"),
        ],
        NETWORK,
    ),
    Mutant(
        "duplicate-answered-when-ordered",
        "4.3",
        "a duplicate gets its original's outcome when that is decided, never before",
        [
            Edit(
                ForwardTable,
                "submit",
                "    for session, frame in zip(event.sessions, event.frames, strict=True):\n",
                "    for session, frame in zip(event.sessions, event.frames, strict=True):\n"
                "        early = self._received.line(frame.producer)\n"
                "        if early and early.epoch == frame.epoch and frame.last_sequence <= early.sequence:\n"
                "            self._outbox.answers(session).append(\n"
                "                Duplicate(frame.producer, frame.epoch, frame.first_sequence, frame.count))\n"
                "            continue\n",
            )
        ],
        RIVALS.but(faults="estranged slow stall loss", latency="wan"),
    ),
    Mutant(
        "epoch-before-earlier-frames",
        "4.3",
        "an EPOCH is ordered when all earlier frames of its producer are decided",
        [
            Edit(Sequencer, "_on_epoch_request", "if not line.undecided:", "if True:"),
            Edit(Sequencer, "_order_epoch", "    invariant(not line.undecided, f", "    invariant(True, f"),
        ],
        LOW.but(faults="low loss rival restart", pace=1.0, latency="wan", sync_us=20_000.0, producers=2),
    ),
    Mutant(
        "progress-lost-at-an-epoch",
        "4.3",
        "an EPOCH carries the producer's progress on",
        [
            Edit(Sequencer, "_order_epoch", "line.sequence, line.progress)", "line.sequence, b'')"),
            Edit(ReceivedTable, "_epoch", " and body.progress == line.progress", ""),
        ],
        RIVALS,
        quick=True,
    ),
    Mutant(
        "batches-before-their-epoch",
        "4.3",
        "batches of an epoch follow the answer to its EPOCH, at the client, the origin and the coordinator",
        [
            Edit(
                Producer,
                "_ask",
                "    self.state = State.OPENING\n",
                "    eager = bool(self._after)\n"
                "    if eager:\n"
                "        self._fail_from(0, self._after)\n"
                "        self.epoch, self.next_sequence, self._after = self.wanted, self.acknowledged + 1, ''\n"
                "    self.state = State.OPEN if eager else State.OPENING\n",
            ),
            Edit(ForwardTable, "submit", "or frame.epoch != line.epoch", "or frame.epoch < line.epoch"),
            Edit(Sequencer, "on_forward", "or line.state is not LineState.OPEN", "or line.state is LineState.CLOSED"),
        ],
        LOW.but(faults="low loss rival kill snipe", latency="wan"),
    ),
    Mutant(
        "both-instances-open-an-epoch",
        "4.3",
        "the first instance wins an epoch, others are fenced",
        [
            Edit(Requests, "_epoch_decided", " and ask.instance == body.instance", ""),
            Edit(Requests, "_epoch_answer", " and line.instance == ask.instance", ""),
        ],
        RIVALS,
    ),
    Mutant(
        "aborted-below-the-epoch",
        "4.3",
        "a copy of an older epoch is answered Fenced, never Aborted: it may have committed",
        [
            Entry(ADMISSION, (False, Relation.OLDER), Admission.ABORTED),
            Entry(ADMISSION, (True, Relation.OLDER), Admission.ABORTED),
            Edit(ForwardTable, "fenced", "FencedAnswer(producer, epoch, frame.first_sequence)", "_aborted(frame, 'fenced')"),
        ],
        RIVALS.but(faults="", latency="wan", rate=15.0, script=answers_lost),
    ),
    Mutant(
        "late-offset-commit",
        "4.3",
        "a copy of an offset commit that comes late takes nothing back",
        [Edit(Sequencer, "_on_offsets_request", "if self._received.last_commit(ask.reader) > ask.frontier:", "if False:")],
        NETWORK.but(readers=3, script=late_copies),
        shows="reader",
    ),
    Mutant(
        "offset-commit-goes-back-unasked",
        "4.3",
        "an offset commit below the one before it is refused, unless it asks to go back",
        [Edit(Requests, "_offset_wrong", "if offset < before and not back", "if False")],
        MIXES["readers-back"],
        shows="reader",
    ),
    Mutant(
        "readers-without-a-floor",
        "1 C7",
        "a reader carries the highest frontier that it saw, and is shown no less elsewhere",
        [Edit(Reader, "_read", "process.offset < self.floor", "False")],
        NETWORK.but(readers=3),
    ),
    Mutant(
        "repair-acknowledged-at-once",
        "4.1",
        "what comes by repair is acknowledged when it is durable, as all else",
        [
            Edit(
                Repair,
                "on_repair",
                "        self._receiver.on_repair(sender, message)",
                "        self._receiver.on_repair(sender, message)\n"
                "        window = self.responder._window\n"
                "        self.responder._outbox.send(self._view_state.coordinator, messages.Vote(message.view, window.end))",
            )
        ],
        NETWORK,
    ),
    Mutant(
        "lost-last-message",
        "4.1",
        "heartbeats tell how far the log is: a last message that was lost shows too",
        [Edit(Repair, "log_end_reported", "        self._receiver.log_end_reported(member, end)\n", "        pass\n")],
        QUIET.but(producers=1, rate=0.3, readers=0, script=lost_last),
    ),
    Mutant(
        "order-of-an-old-view",
        "5.4",
        "an ORDER of another view is not taken",
        [
            Edit(Receiver, "_counts", "view_state.current(view) and sender == view_state.coordinator and sender", "sender"),
            Edit(Receiver, "_accept", "if frame.view != view:", "if False:"),
            Edit(Receiver, "_append_in_sequence", "or frame.view != view", "or False"),
        ],
        LATE,
    ),
    Mutant(
        "fenced-when-ordered",
        "4.3",
        "Fenced waits until the EPOCH that it rests on is decided",
        [
            Edit(
                ForwardTable,
                "submit",
                "    for session, frame in zip(event.sessions, event.frames, strict=True):\n",
                "    for session, frame in zip(event.sessions, event.frames, strict=True):\n"
                "        early = self._received.line(frame.producer)\n"
                "        if early and early.epoch > frame.epoch:\n"
                "            fence = FencedAnswer(frame.producer, early.epoch, frame.first_sequence)\n"
                "            self._outbox.answers(session).append(fence)\n"
                "            continue\n",
            )
        ],
        proof=f"{_OUTCOMES}test_a_producer_is_fenced_when_the_epoch_above_its_own_is_decided",
    ),
    Mutant(
        "fenced-when-its-forget-is-ordered",
        "4.3",
        "Fenced waits until the FORGET that it rests on is decided",
        [
            Edit(
                ForwardTable,
                "submit",
                "    for session, frame in zip(event.sessions, event.frames, strict=True):\n",
                "    for session, frame in zip(event.sessions, event.frames, strict=True):\n"
                "        if frame.producer in producers and self._received.line(frame.producer) is None:\n"
                "            fence = FencedAnswer(frame.producer, frame.epoch + 1, frame.first_sequence)\n"
                "            self._outbox.answers(session).append(fence)\n"
                "            continue\n",
            )
        ],
        proof=f"{_OUTCOMES}test_a_producer_is_fenced_when_the_forget_of_it_is_decided",
    ),
    Mutant(
        "gap-refused-when-ordered",
        "4.3",
        "the refusal of a gap waits until everything before it is decided",
        [Edit(Sequencer, "_judge", "if not line.undecided:", "if True:")],
        proof=f"{_OUTCOMES}test_a_gap_is_refused_when_everything_before_it_is_decided",
    ),
    Mutant(
        "duplicate-epoch-fenced",
        "4.3",
        "an instance that asks again for its epoch gets the answer again",
        [Edit(Requests, "_epoch_answer", "if line.epoch == ask.epoch and line.instance == ask.instance:", "if False:")],
        proof=f"{_OUTCOMES}test_a_duplicate_of_an_epoch_gets_its_decision",
    ),
    Mutant(
        "resumed-after-the-undecided",
        "4.3",
        "a producer resumes after what is decided",
        [
            Edit(
                Requests,
                "_epoch_answer",
                "EpochOpened(number, producer, line.epoch, line.sequence, line.progress)",
                "EpochOpened(\n"
                "            number,\n"
                "            producer,\n"
                "            line.epoch,\n"
                "            max([line.sequence, *(one.last_sequence for one in self._window.frames if one.producer)]),\n"
                "            line.progress,\n"
                "        )",
            )
        ],
        proof=f"{_OUTCOMES}test_a_duplicate_of_an_epoch_gets_its_decision",
    ),
    Mutant(
        "resumed-from-the-beginning",
        "4.3",
        "an epoch continues after the last sequence of the producer",
        [Edit(Requests, "_epoch_decided", "body.sequence, body.progress)", "0, body.progress)")],
        proof=f"{_OUTCOMES}test_an_epoch_continues_after_the_last_decided_sequence_with_its_progress",
    ),
    Mutant(
        "skips-its-next-epoch",
        "4.3",
        "after an abort a producer asks for its own next epoch, so that it sees who took that",
        [Edit(Session, "request_next_epoch", "self.epoch + 1", "self.epoch + 2")],
        proof=f"{_EPOCHS}test_after_an_abort_a_producer_requests_its_next_epoch_and_is_fenced_if_another_took_it",
    ),
    Mutant(
        "goes-above-its-fence",
        "4.3",
        "only a starting instance tries again above the epoch that a fence names",
        [Edit(OrderedDelivery, "_on_epoch_fenced", "if not self._starting and not (", "if False and (")],
        proof=f"{_EPOCHS}test_after_an_abort_a_producer_requests_its_next_epoch_and_is_fenced_if_another_took_it",
    ),
    Mutant(
        "draining-coordinator-orders",
        "5.0",
        "a coordinator that leaves orders no batch",
        [
            Edit(
                Ordering,
                "on_message",
                "if view_state.coordinating and not view_state.draining:\n            self.sequencer.on_forward",
                "if view_state.coordinating:\n            self.sequencer.on_forward",
            )
        ],
        proof=f"{_OUTCOMES}test_a_coordinator_that_leaves_orders_nothing_new",
    ),
    Mutant(
        "draining-coordinator-answers",
        "5.0",
        "a coordinator that leaves orders nothing that is asked for",
        [
            Edit(
                Ordering,
                "on_message",
                "if view_state.coordinating and not view_state.draining:\n            self.sequencer.on_request",
                "if view_state.coordinating:\n            self.sequencer.on_request",
            )
        ],
        proof=f"{_OUTCOMES}test_a_coordinator_that_leaves_orders_nothing_new",
    ),
)
