"""Tests of `tutti serve`: start, stop, restart, and the errors of an impossible start."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import TUTTI, WAIT_S, dev_group, shell, tutti
from tests.support.ports import free_base
from tests.support.waiting import wait_until


def a_config(directory: Path, port: int, name: str = "jfk", more: str = "") -> Path:
    file = directory / f"{name}.toml"
    file.write_text(f'name = "{name}"\ndata = {json.dumps(str(directory / "data"))}\nlisten = "127.0.0.1:{port}"\n{more}')
    return file


@contextmanager
def serving(config: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    process = subprocess.Popen(
        [*TUTTI, "serve", "--config", str(config)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield process, json.loads(line)
    finally:
        process.kill()
        process.communicate()


def test_one_ready_line_and_an_orderly_end(tmp_path: Path) -> None:
    port = free_base()
    with serving(a_config(tmp_path, port)) as (process, told):
        assert told["ready"] is True
        assert (told["url"], told["name"], told["pid"]) == (f"tutti://127.0.0.1:{port}", "jfk", process.pid)
        assert tutti("produce", "--topic", "t", given=b"kept\n", url=told["url"]).code == 0
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=WAIT_S)
        assert (process.returncode, out) == (0, "")
    with serving(a_config(tmp_path, port)) as (_, told):
        assert tutti("tail", "--format", "value", url=told["url"]).lines == ["kept"]


def refused(config: Path) -> str:
    done = shell("serve", "--config", str(config))
    assert done.code not in (0, 130)
    assert done.out == ""
    errors = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.err
    assert "Traceback" not in done.err
    return f"{done.code} {errors[0]}"


def test_a_wrong_configuration(tmp_path: Path) -> None:
    said = refused(a_config(tmp_path, 7400, more="[timers]\nheartbeet_ms = 1\n"))
    assert said.startswith("2 error: ")
    assert "jfk.toml:5: timers.heartbeet_ms is not known: did you mean heartbeat_ms?" in said


@pytest.mark.parametrize("distance", [0, 2, 3])
def test_a_port_in_use(tmp_path: Path, distance: int) -> None:
    port = free_base()
    with socket.socket() as other:
        other.bind(("127.0.0.1", port + distance))
        other.listen()
        said = refused(a_config(tmp_path, port))
    assert f"{port + distance}" in said
    assert "in use" in said


def test_a_directory_of_a_running_gateway_and_of_another(tmp_path: Path) -> None:
    port = free_base()
    with serving(a_config(tmp_path, port)) as (process, _):
        said = refused(a_config(tmp_path, free_base()))
        assert str(process.pid) in said
        assert said.startswith("1 ")  # another start may find it free
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WAIT_S)
    said = refused(a_config(tmp_path, port, name="lga"))
    assert "jfk" in said
    assert said.startswith("2 ")
    said = refused(a_config(tmp_path, port, more='[group]\nname = "other"\n'))
    assert "other" in said
    assert "ingest" in said
    assert said.startswith("2 ")


def test_damage_is_found_named_and_truncated_only_on_request(tmp_path: Path) -> None:
    port = free_base()
    with serving(a_config(tmp_path, port)) as (process, told):
        for number in range(4):
            assert tutti("produce", "--topic", "t", given=b"record %d\n" % number * 50, url=told["url"]).code == 0
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WAIT_S)
    data = tmp_path / "data"
    frames = [json.loads(line) for line in tutti("log", "inspect", str(data), "--json").lines]
    third = [frame for frame in frames if frame["kind"] == "BATCH"][2]
    with Path(third["file"]).open("r+b") as segment:
        segment.seek(third["byte"] + third["size"] - 100)
        segment.write(b"\xff" * 8)
    verified = tutti("log", "verify", str(data))
    assert verified.code == 4
    assert f"position {third['position']}" in verified.err
    looked = tutti("log", "repair", str(data), "--json")
    assert (looked.code, looked.json["offset"], looked.json["lost"], looked.json["cut"]) == (4, 100, 100, False)
    assert f"tutti log repair {data} --accept-loss-from 100" in tutti("log", "repair", str(data)).out
    summed = tutti("log", "digest", str(data))
    assert (summed.code, "; the first 100 records of the range are readable\n" in summed.err) == (4, True)
    out = tmp_path / "out.jsonl"
    for topic in ([], ["--topic", "t"]):
        written = tutti("replay", "--path", str(data), *topic, "--out", str(out))
        assert (written.code, out.exists(), "; all records below offset 100 are readable\n" in written.err) == (4, False, True)
    assert tutti("replay", "--path", str(data), "--end", "100", "--out", str(out)).code == 0
    with serving(a_config(tmp_path, port)) as (_, told):
        shown = tutti("tail", url=told["url"])
        assert (shown.code, len(shown.lines)) == (4, 100)
        assert shown.err.endswith("; all records below offset 100 are readable\n")
        running = tutti("log", "repair", str(data), "--accept-loss-from", "100")
        assert (running.code, running.out) == (1, "")
    assert tutti("log", "repair", str(data), "--accept-loss-from", "50").code == 2
    assert tutti("log", "repair", str(data), "--accept-loss-from", "100").code == 0
    assert tutti("log", "verify", str(data)).code == 0
    with serving(a_config(tmp_path, port)) as (_, told):
        assert len(tutti("tail", url=told["url"]).lines) == 100


def test_a_killed_gateway_of_dev_comes_back_with_everything_acknowledged(tmp_path: Path) -> None:
    with dev_group(tmp_path / "dev", "--restart-after", "0.2") as running:
        assert tutti("produce", "--topic", "t", given=b"1\n2\n", url=running.url).code == 0
        killed = running.pid
        os.kill(killed, signal.SIGKILL)
        assert tutti("produce", "--topic", "t", given=b"3\n", url=running.url).code == 0
        wait_until(lambda: tutti("tail", "--format", "value", url=running.url).lines == ["1", "2", "3"])
        assert running.pid != killed
        assert running.stop() == 0
    assert "dev: g1 was killed by SIGKILL; it restarts in 0.2 s" in running.log.read_text()


def test_dev_reports_why_a_gateway_cannot_start(tmp_path: Path) -> None:
    port = free_base()
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        done = shell("dev", "--port", str(port), "--data", str(tmp_path / "dev"))
    assert done.code in (1, 3)
    assert done.out == ""
    assert [line for line in done.err.splitlines() if line.startswith("error: ") and f"{port}" in line]
