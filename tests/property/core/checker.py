"""Checks the safety properties (design, section 9) from outside: from logs, answers and messages to clients alone."""

from __future__ import annotations

from tests.property.core.clients import Client
from tests.transcripts.group import Group, Member
from tutti.data.frames.bodies import TxnBody, decode_body
from tutti.data.frames.frame import SEQUENCED, Frame, Kind
from tutti.data.log_state import LogState, Staged
from tutti_gateway.core.order.received_table import ReceivedTable


def check(group: Group, clients: list[Client]) -> None:
    """Every promise that can be checked at any moment."""
    assert group.problems == []
    members = list(group.members.values())
    longest = max((member.delivered for member in members), key=len)
    for member in members:
        _prefix(member, longest)
        _tables(member)
    records = _records(longest)
    _sequences(longest)
    for client in clients:
        for token in client.aborted:
            assert token not in records, f"{token} was reported aborted and is at offset {records[token]}"
        for token, offset in client.committed.items():
            assert token in records, f"{token} was reported committed and is not in the log"
            assert offset in (-1, records[token]), f"{token} was reported at {offset} and is at {records[token]}"


def _prefix(member: Member, longest: list[tuple[Frame, int, bool]]) -> None:
    """One sequence, everywhere (C1, C2): the same frames, offsets and void batches; positions dense, chain unbroken."""
    for number, (frame, offset, void) in enumerate(member.delivered):
        other, other_offset, other_void = longest[number]
        assert (frame.header, offset, void) == (other.header, other_offset, other_void), f"{member.name} differs at {number + 1}"
        assert frame.position == number + 1


def _records(delivered: list[tuple[Frame, int, bool]]) -> dict[str, int]:
    """Offset of every committed token; offsets are dense from 0."""
    records: dict[str, int] = {}
    staged: dict[int, list[str]] = {}
    expected = 0
    for frame, offset, void in delivered:
        assert offset == expected
        assert not (void and frame.kind == Kind.TXN)
        if frame.staged and not void:
            staged[frame.position] = bytes(frame.body).decode().split(",")
        elif frame.kind in SEQUENCED and not void:
            tokens = bytes(frame.body).decode().split(",") if frame.kind == Kind.BATCH else _named(frame, staged)
            assert len(tokens) == frame.count
            for place, token in enumerate(tokens):
                assert token not in records, f"{token} is at {records[token]} and at {offset + place}"
                records[token] = offset + place
            expected += frame.count
    return records


def _named(txn: Frame, staged: dict[int, list[str]]) -> list[str]:
    """The records that a transaction makes visible; none of its batches can be named again."""
    body = decode_body(TxnBody, txn.body)
    return [token for position in body.staged for token in staged.pop(position)]


def _sequences(delivered: list[tuple[Frame, int, bool]]) -> None:
    """A producer's sequences are 1, 2, 3, ... over all its epochs, and epochs only rise (C4)."""
    sequences: dict[int, int] = {}
    epochs: dict[int, int] = {}
    for frame, _, void in delivered:
        if frame.kind == Kind.EPOCH:
            assert frame.epoch > epochs.get(frame.producer, 0)
            epochs[frame.producer] = frame.epoch
        elif frame.kind in SEQUENCED:
            assert frame.epoch == epochs[frame.producer]
            if not void:
                assert frame.first_sequence == sequences.get(frame.producer, 0) + 1
                sequences[frame.producer] = frame.last_sequence


def _tables(member: Member) -> None:
    """Check that the decided state follows from the log, and that the received-table at its end adds the undecided frames."""
    layers = member.stack.layers
    window, order = layers.context.window, layers.order
    state = LogState()
    for frame, _, void in member.delivered:
        state.apply(frame, void)
    assert state == window.state
    fresh = ReceivedTable(window.state)
    fresh.rebuild(window.frames)
    held = order.received
    for number, line in fresh.lines.items():
        if number not in fresh.forgotten:
            assert _line(held, number) == _line(fresh, number), f"line {number} of {member.name}"
            assert held.lines[number].undecided == line.undecided
    assert all(line.undecided for line in held.lines.values())
    ends = [(one.next_producer, one.next_topic, one.floor, one.tick, one.tick_time) for one in (held, fresh)]
    assert ends[0] == ends[1]
    assert held.dirty or not fresh.dirty, "records without a tick behind them are not known"  # void ones may count too
    assert held.names.producers == fresh.names.producers
    assert held._staged == fresh._staged
    assert list(held._visible) == list(fresh._visible)
    # Frames that a rebuild applies by LogState itself come to the same producers.
    for frame in window.frames:
        state.apply(frame, window.is_void(frame.position) if frame.kind == Kind.BATCH else False)
    open_at_end = {**window.state.staged, **held._staged}
    ends_too = {position for position in open_at_end if position not in held._visible and _is_open(held, open_at_end[position])}
    assert ends_too == state.staged.keys()
    for number, producer in state.producers.items():
        end = held.line(number)
        assert end is not None
        assert (end.epoch, end.sequence, end.progress) == (producer.epoch, producer.sequence, producer.progress)


def _is_open(table: ReceivedTable, part: Staged) -> bool:
    line = table.line(part.producer)
    return line is not None and line.epoch == part.epoch


def _line(table: ReceivedTable, number: int) -> tuple[object, ...]:
    line = table.line(number)
    assert line is not None
    return line.epoch, line.instance, line.sequence, line.progress, line.state
