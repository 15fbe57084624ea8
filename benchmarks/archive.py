"""Archiving a backlog beside a gateway that commits at a pace: how fast it goes, and what the commits wait for it."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa

from benchmarks.figures import Figure, figure, foreign_load
from benchmarks.fleet import Measured, gateway
from benchmarks.pace import Paced
from tutti import Producer

RATE = 1000
BATCH_RECORDS = 1000
BATCHES = 50  # different ones: what a compressor sees at once
MB = 1_000_000
TARGET_TIMES = 2.0


def archive(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    """Rounds of: commits alone, then commits beside `tutti archive run --once` over the whole log into a new directory."""
    volume, seconds = (400 * MB, 3.0) if quick else (1_500 * MB, 8.0)
    waits: dict[str, list[float]] = {"alone": [], "beside": [], "half alone": [], "half beside": [], "times": []}
    speed: list[float] = []
    share: list[float] = []
    foreign: list[float] = []
    with gateway(directory) as measured:
        _fill(measured.url, volume)
        with Paced(measured.url, RATE) as paced:
            paced.span(1.0)
            for number in range(rounds):
                with foreign_load(foreign):
                    alone = paced.span(seconds)
                    since = time.monotonic_ns()
                    told = _archived(directory, measured, directory / f"archive-{number}")
                    beside = since, time.monotonic_ns()
                speed.append(told["bytes"] / told["seconds"] / MB)
                share.append(100 * told["written"] / told["bytes"])
                for name, span in (("alone", alone), ("beside", beside)):
                    waits[name].append(paced.at_ms(span, 0.99))
                    waits[f"half {name}"].append(paced.at_ms(span, 0.5))
                waits["times"].append(waits["beside"][-1] / waits["alone"][-1])
    state = f"{RATE} records/s of 1 KB, log of {volume // MB} MB, foreign CPU {max(foreign):.2f}"
    return [
        figure("archived beside commits", speed, "MB/s", beside=f"read, written, read back; {share[0]:.0f}% on disk"),
        figure("commit alone, p50", waits["half alone"], "ms", better="less", beside=state),
        figure("commit alone, p99", waits["alone"], "ms", better="less", beside=state),
        figure("commit beside the archiver, p50", waits["half beside"], "ms", better="less", beside=state),
        figure("commit beside the archiver, p99", waits["beside"], "ms", better="less", beside=state),
        figure("p99 beside the archiver by p99 alone", waits["times"], "times", TARGET_TIMES, "less", beside=state),
    ]


def _fill(url: str, volume: int) -> None:
    """Records of two topics such as events are: JSON of 200 to 300 bytes, a fifth of it chance."""
    chance = random.Random(1)
    batches = [_batch(chance) for _ in range(BATCHES)]
    with Producer(url) as producer:
        for number in range(volume // batches[0].nbytes):
            producer.send_batch("ab"[number % 2], batches[number % BATCHES])


def _batch(chance: random.Random) -> pa.RecordBatch:
    values = [
        b'{"flight":"N%05d","origin":"JFK","destination":"LAX","delay":%d,"carrier":"UA","id":"%s","note":"%s"}'
        % (chance.randrange(100_000), chance.randrange(-20, 300), chance.randbytes(24).hex().encode(), b"on time " * 12)
        for _ in range(BATCH_RECORDS)
    ]
    keys = pa.array([value[11:17] for value in values], pa.binary())
    return pa.record_batch({"value": pa.array(values, pa.binary()), "key": keys})


def _archived(directory: Path, measured: Measured, where: Path) -> dict[str, float]:
    """What an archiver says that began with nothing, and what it wrote; its directory is gone then."""
    config = directory / "archive.toml"
    config.write_text(f'gateways = "{measured.url}"\narchive = "{where}"\nname = "{where.name}"\n')
    command = [sys.executable, "-m", "tutti_gateway", "archive", "run", "--once", "--json", "--config", str(config)]
    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    told: dict[str, float] = json.loads(ran.stdout)
    told["written"] = sum(path.stat().st_size for path in where.rglob("*.parquet"))
    shutil.rmtree(where)
    return told
