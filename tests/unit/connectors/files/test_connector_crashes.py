"""Tests of crashes: each row of a file is in the log once and in order, after a crash at every step and at random steps."""

from __future__ import annotations

import gzip
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.connectors.files.fake_log import Log, Rig
from tutti_connect.files import limits


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small frames and blocks, so that there are many."""
    monkeypatch.setattr(limits, "FRAME_BYTES", 200)
    monkeypatch.setattr(limits, "BLOCK_BYTES", 64)
    monkeypatch.setattr(limits, "PARQUET_ROWS", 3)
    monkeypatch.setattr(limits, "WAIT_S", 0.0)


def rows(name: str, count: int) -> list[bytes]:
    return [b'{"f":"%s","n":%d}' % (name.encode(), number) for number in range(count)]


def write(rig: Rig, form: str, name: str, wanted: list[bytes]) -> None:
    if form == "parquet":
        table = pa.table({"f": [name] * len(wanted), "n": pa.array(range(len(wanted)), pa.int64())})
        pq.write_table(table, rig.incoming / name, row_group_size=5)
    elif form == "csv":
        rig.write(name, b'"f","n"\n' + b"".join(b'"%s",%d\n' % (name.encode(), number) for number in range(len(wanted))))
    else:
        data = b"".join(value + b"\n" for value in wanted)
        rig.write(name, gzip.compress(data) if form == "gz" else data)


@pytest.mark.parametrize(
    ("form", "after"),
    [
        ("lines", "delete"),
        ("gz", "keep"),
        pytest.param("csv", "keep", marks=pytest.mark.slow),
        pytest.param("parquet", "delete", marks=pytest.mark.slow),
    ],
)
def test_a_crash_at_each_step_loses_and_doubles_nothing(tmp_path: Path, form: str, after: str) -> None:
    """Proves it for every step of a run over files that are smaller and larger than a frame, and an empty one between them."""
    kind = "jsonl" if form == "gz" else form
    sizes = {"a": 3, "b": 40, "c": 0, "d": 1, "e": 17}
    steps = 0
    while True:
        root = tmp_path / str(steps)
        root.mkdir()
        rig = Rig(root, Log(Random(steps)), files=f'format = "{kind}"\nafter = "{after}"')
        wanted: list[bytes] = []
        for name, count in sizes.items():
            values = rows(name + (".gz" if form == "gz" else ""), count)
            write(rig, form, name + (".gz" if form == "gz" else ""), values)
            wanted += values
        crashed = rig.crash(steps)
        rig.turns()
        if form == "csv":
            wanted = [b'{"f":"%s","n":"%d"}' % (name.encode(), n) for name, count in sizes.items() for n in range(count)]
        assert rig.log.values() == wanted, f"step {steps}"
        assert (list(rig.incoming.iterdir()) == []) == (after == "delete")
        if not crashed:
            break
        steps += 1
    assert steps > 20


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(8, 120))])
def test_crashes_while_files_come_and_grow(tmp_path: Path, seed: int) -> None:
    """Proves that each file's lines are in the log once and in its order, when lines and files come between crashes, and logs are
    rotated.
    """
    chance = Random(seed)
    grows = seed % 2 == 0
    rig = Rig(tmp_path, Log(chance), files=f'format = "lines"\ngrows = {str(grows).lower()}\npattern = "*.log*"')
    wanted: dict[str, list[bytes]] = {}
    current: dict[str, str] = {}
    number = 0
    for turn in range(30):
        for _ in range(chance.randint(0, 3)):
            name = f"{chance.choice('abc')}.log" if grows else f"{chance.randint(0, 999):03}-{turn}.log"
            if not grows and name in current:
                continue
            if grows and name in current and chance.random() < 0.1:
                (rig.incoming / name).rename(rig.incoming / f"{name}.{number}-{turn}")
                del current[name]
            source = current.setdefault(name, f"{name}-{number}-{turn}")
            lines = [b"%s %06d" % (source.encode(), number + more) for more in range(chance.randint(0, 30))]
            number += len(lines)
            wanted.setdefault(source, []).extend(lines)
            data = b"".join(line + b"\n" for line in lines)
            cut = chance.randint(0, len(data)) if grows else len(data)
            rig.write(name, data[:cut], append=grows)
            if grows and chance.random() < 0.5:
                rig.turns(1)  # a line that is not whole
            rig.write(name, data[cut:], append=True)
        if chance.random() < 0.8:
            rig.crash(chance.randint(0, 40))
    rig.turns(4)
    found: dict[str, list[bytes]] = {}
    for value in rig.log.values():
        found.setdefault((value or b"").split()[0].decode(), []).append(value or b"")
    assert found == {source: lines for source, lines in wanted.items() if lines}
