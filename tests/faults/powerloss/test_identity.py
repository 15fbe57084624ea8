"""Power loss at any instant leaves an identity that names the file in which it stands: none is ever taken for that of a copy, and
none is torn or gone.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.faults.powerloss.recorder import Op, Recorder, contents_of, names_of, sectors
from tests.unit.log.history import SMALL, decide, opened, sample
from tutti.data.hard_state import HardState

pytestmark = pytest.mark.faults

_LOW = (1 << 32) - 1  # of the recorder's number of a file: the number that the system gave it
SEEDS = range(12)


def test_the_identity_always_matches_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tutti_gateway.core.limits.IDENTITY_FRESH_US", 0)
    monkeypatch.setattr("tutti_gateway.core.limits.IDENTITY_IDLE_US", 0)
    recorder, history, begun = Recorder(), sample(4), 0
    for start in range(3):
        writer, _, close = opened(tmp_path, SMALL, recorder)
        begun = begun or len(recorder.ops)
        if not start:
            writer.append(history.frames)
            writer.sync()
            decide(writer, history, 1, len(history.frames))
        while writer.idle():
            continue
        writer.idle()
        writer.write_hard_state(HardState(start + 1, 0, 0))
        close()
    identity = str(tmp_path / "identity.json")
    noted = set()
    for at in range(1, len(recorder.ops) + 1):
        for seed in SEEDS:
            chance = random.Random(f"{at} {seed}")

            def choose(op: Op, chance: random.Random = chance, seed: int = seed) -> list[tuple[int, int]]:
                return [] if not seed else sectors(op, chance, 0.5)

            def count(most: int, chance: random.Random = chance, seed: int = seed) -> int:
                return (0, most)[seed] if seed < 2 else chance.randint(0, most)

            names = names_of(recorder.ops[:at], count)
            assert identity in names or at < begun
            if identity in names:
                told = json.loads(contents_of(recorder.ops[:at], choose)[names[identity]])
                assert told["file"]["inode"] == names[identity] & _LOW
                noted.add(names[identity])
    assert len(noted) >= 8  # three starts, what was remembered, idle and promised
