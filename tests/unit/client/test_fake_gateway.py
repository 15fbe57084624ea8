"""Contract test of the fake gateway with the real origin of a lane: both give the same answer to every batch."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.client.fake_gateway import Line, Log, Rules
from tests.unit.core.lanes.lane_group import Group, answers, group
from tutti.batching.accumulator import Accumulator
from tutti.batching.encoder import validated_batch
from tutti.batching.options import BatchingOptions
from tutti.data.client_protocol import Committed, Duplicate, Expected, RefusedAnswer
from tutti.data.frames.frame import Frame, Kind

PRODUCER, TOPIC = 1, 1


def batch(epoch: int, first: int, count: int) -> Frame:
    """A batch as a client submits it."""
    feed = Accumulator(BatchingOptions())
    feed.add_batch("t", validated_batch(pa.record_batch({"value": pa.array([b"x"] * count, pa.binary())}), 0), b"", None)
    made = feed.queue[0]
    return Frame(
        Kind.BATCH,
        made.body,
        producer=PRODUCER,
        epoch=epoch,
        first_sequence=first,
        count=count,
        topic=TOPIC,
        min_timestamp=made.min_timestamp,
        max_timestamp=made.max_timestamp,
        raw_length=made.raw_length,
        body_crc=made.crc,
    )


def of_origin(made: Group, frame: Frame) -> Any:
    """Return the answers of the real origin when everything is decided; only the offset shows that a batch was decided before."""
    layer = made[1].layer
    assert layer is not None
    made.refused.pop((made[1].key, frame.producer, frame.first_sequence), None)  # another sending
    layer.submit(1, [frame])
    made.carry_out(1)
    made.settle()
    (answer,) = answers(made, 1)
    if isinstance(answer, Duplicate):
        decided = made.find(made[1].key, answer.producer, answer.epoch, answer.first_sequence)
        assert decided is not None
        offset = made.offsets[made[1].key, decided.position] + answer.first_sequence - decided.first_sequence
        return Committed(answer.producer, answer.epoch, answer.first_sequence, answer.count, offset)
    return answer


@pytest.mark.parametrize("seed", range(30))
def test_the_fake_answers_as_the_origin_does(seed: int) -> None:
    chance = random.Random(seed)
    made = group()
    fake = Rules(Log(lines={"p1": Line(PRODUCER, b"", 1)}, topics={"t": TOPIC}), lane="1-" + "0" * 32)
    epoch = 1
    kinds: set[type] = set()
    for _ in range(60):
        if chance.random() < 0.1:
            epoch += 1
            made.state.producers[PRODUCER].epoch = fake.log.lines["p1"].epoch = epoch
        of, first = max(1, epoch + chance.choice([-1, 0, 0, 0, 0, 1])), chance.randint(1, 6)
        (told,), expected = fake.take_unordered(batch(of, first, 1)), of_origin(made, batch(of, first, 1))
        kinds.add(type(told))
        if isinstance(told, RefusedAnswer):
            assert (told.code, told.retry, told.first_sequence) == (expected.code, expected.retry, expected.first_sequence)
        else:
            assert told == expected
    assert kinds >= {Committed, Expected}
