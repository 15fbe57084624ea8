"""Random logs that a group could have ordered."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.unit.log.history import COMPRESSIONS, History
from tutti.data.frames.frame import Kind
from tutti.data.view_id import counter_of

MOVES = ("batch", "batch", "batch", "batch", "tick", "abort", "epoch", "forget", "offsets", "view")


@st.composite
def histories(draw: st.DrawFn, max_moves: int = 40) -> History:
    """A history of up to so many moves, with batches of up to 6 records of up to 3 KiB."""
    history = History()
    for _ in range(draw(st.integers(0, max_moves))):
        move = draw(st.sampled_from(MOVES))
        producer = draw(st.sampled_from(["p", "q", "~r"]))
        if move == "batch":
            size = draw(st.sampled_from([0, 1, 30, 3000]))
            count = draw(st.integers(1, 6))
            history.batch(
                producer,
                draw(st.sampled_from(["t", "u"])),
                [None if draw(st.booleans()) else bytes([97 + i]) * size for i in range(count)],
                progress=draw(st.binary(max_size=9)),
                compression=draw(st.sampled_from(COMPRESSIONS)),
            )
        elif move == "tick":
            history.tick()
        elif move == "view":
            history.view(counter_of(history.view_id) + 1)
        elif move == "offsets":
            history.offsets("reader", len(history.records))
        elif producer in history.producers:
            if move == "abort":
                abort_last(history, producer)
            elif move == "epoch":
                history.epoch(producer)
            elif move == "forget":
                history.forget(producer)
    return history


def abort_last(history: History, producer: str) -> None:
    """Void the producer's last batch of its epoch, if it has one, as the coordinator that ordered it might."""
    number, epoch, _ = history.producers[producer]
    for frame in reversed(history.frames):
        if frame.kind == Kind.VIEW:
            return  # carried over: never aborted
        if frame.kind == Kind.BATCH and (frame.producer, frame.epoch) == (number, epoch):
            if frame.position not in history.void:
                history.abort(frame.position)
                history.epoch(producer)
            return
