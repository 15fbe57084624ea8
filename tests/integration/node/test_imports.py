"""Tests of imports: nothing loads pandas, which would block a gateway and delay a Ctrl-C, and a gateway loads all modules at its
start, because later it may have no descriptor to load them.
"""

from __future__ import annotations

import datetime
import importlib.util
import subprocess
import sys
from pathlib import Path

import pyarrow as pa

from benchmarks.figures import descendants
from tests.support.gateway_process import GatewayProcess, Placement
from tests.support.ports import free_base
from tutti import Producer, Reader

NOW = datetime.datetime.now(datetime.UTC)


def loaded(pid: int) -> bool:
    return "/pandas/" in Path(f"/proc/{pid}/maps").read_text()


def test_no_process_of_a_gateway_loads_pandas(tmp_path: Path) -> None:
    assert importlib.util.find_spec("pandas") is not None, "else nothing is proved: install pandas"
    with GatewayProcess(tmp_path) as gateway, Producer(gateway.url) as producer:
        producer.send("t", b"a", headers=[("name", b"value")], timestamp=NOW).result(30)
        rows = pa.record_batch({"key": pa.array([b"k", None]), "value": pa.array([b"v", b"w"])})
        producer.send_batch("t", rows).result(30)
        with Reader(gateway.url, start=0, end=3) as reader:
            assert [value for batch in reader for value in batch.column("value").to_pylist()] == [b"a", b"v", b"w"]
        for arguments in (["offsets", "--time", NOW.isoformat()], ["tail", "--key", "k"], ["topics"]):
            command = [sys.executable, "-m", "tutti_gateway", *arguments, "--url", gateway.url]
            subprocess.run(command, check=True, capture_output=True, timeout=60)
        processes = [gateway.pid, *descendants(gateway.pid)]
        assert len(processes) == 2
        assert [pid for pid in processes if loaded(pid)] == []


def test_no_command_that_reads_a_log_loads_pandas(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path) as gateway, Producer(gateway.url) as producer:
        producer.send("t", b"a", headers=[("name", b"value")], timestamp=NOW).result(30)
    for arguments in (["log", "verify"], ["log", "digest"], ["log", "repair"], ["log", "inspect"]):
        command = [sys.executable, "-X", "importtime", "-m", "tutti_gateway", *arguments, str(gateway.data)]
        done = subprocess.run(command, check=True, capture_output=True, timeout=60, text=True)
        assert "pyarrow" in done.stderr
        assert "pandas.core" not in {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}


def test_records_of_every_kind_have_a_gateway_load_no_more_modules(tmp_path: Path) -> None:
    told = Placement("127.0.0.1", free_base(), environment={"PYTHONPROFILEIMPORTTIME": "1"})
    with GatewayProcess(tmp_path, placement=told) as gateway, Producer(gateway.url, compression="zstd") as producer:
        before = len(modules(gateway))
        producer.send("t", b"a", headers=[("name", b"value"), ("none", None)], timestamp=NOW).result(30)
        rows = pa.record_batch({"key": pa.array([b"k", None]), "value": pa.array([b"v", None])})
        producer.send_batch("t", rows).result(30)
        producer.send("t", bytes(5000), ordering="unordered").result(30)
        assert before > 100, "it tells what it loads"
        assert set(modules(gateway)[before:]) <= {"pandas"}, "which is refused before a file is looked for"


def modules(gateway: GatewayProcess) -> list[str]:
    """Return the modules that its processes loaded; the reads process gets no requests here."""
    lines = gateway.log_tail(10_000_000).splitlines()
    return [line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")]
