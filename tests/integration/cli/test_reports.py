"""Tests of the reporting commands on a running gateway and its directory, as JSON and as plain lines."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.commands import DevGroup, shell, tutti
from tests.support.ports import free_base
from tutti import Reader


@pytest.fixture(scope="module", autouse=True)
def _records(running: DevGroup) -> None:
    assert tutti("produce", "--topic", "a", "--producer", "p", given=b"1\n2\n3\n", url=running.url).code == 0
    assert tutti("produce", "--topic", "b", given=b"4\n", url=running.url).code == 0


def test_status_reports_members_and_frontiers(running: DevGroup) -> None:
    done = tutti("status", "--json", url=running.url)
    told = done.json
    assert (done.code, done.err) == (0, "")
    assert {"gateway", "pid", "group", "log", "state", "view", "frontier", "start", "lag"} <= told.keys()
    assert (told["gateway"], told["group"], told["state"], told["start"]) == ("g1", "dev", "primary", 0)
    assert told["pid"] == running.told["gateways"][0]["pid"]
    assert told["frontier"] >= 4
    assert (told["view"]["coordinator"], told["view"]["members"]) == ("g1", ["g1"])
    assert told["view"]["id"] > 0
    assert json.loads(tutti("status", url=running.url).out)["log"] == told["log"]


def test_admin_pages_answer_in_parallel(running: DevGroup) -> None:
    for page in ("healthz", "readyz", "v1/status"):
        with urllib.request.urlopen(f"http://127.0.0.1:{running.port + 3}/{page}", timeout=10) as answer:
            assert answer.status == 200


def test_topics_with_counts_offsets_and_times(running: DevGroup) -> None:
    done = tutti("topics", "--json", url=running.url)
    a, b = sorted(done.json, key=lambda topic: str(topic["name"]))
    assert (a["name"], a["records"], a["last_offset"] - a["first_offset"], b["records"]) == ("a", 3, 2, 1)
    assert a["bytes"] > 0
    assert a["first_time"] <= a["last_time"] < datetime.now(UTC).isoformat()
    header, *rows = tutti("topics", url=running.url).lines
    assert header.split("\t") == ["name", "records", "bytes", "first_offset", "last_offset", "first_time", "last_time"]
    assert [row.split("\t")[:2] for row in sorted(rows)] == [["a", "3"], ["b", "1"]]


def test_a_topic_is_created_before_its_first_record(running: DevGroup) -> None:
    empty = {"records": 0, "bytes": 0, "first_offset": None, "last_offset": None, "first_time": None, "last_time": None}
    made = tutti("topics", "create", "early", url=running.url)
    assert (made.code, made.out, made.err) == (0, "", "topic early now exists\n")
    again = tutti("topics", "create", "early", url=running.url)
    assert (again.code, again.err) == (0, "topic early exists already\n")
    assert tutti("topics", "create", "early", "--json", url=running.url).json == {"name": "early", "existed": True}
    assert tutti("topics", "describe", "early", "--json", url=running.url).json == {"name": "early", **empty}
    with Reader(running.url, topics=["early"], start=0) as reader:
        assert list(reader.records()) == []
    wrong = tutti("topics", "create", "a b", url=running.url)
    assert (wrong.code, wrong.err) == (2, "error: the topic name 'a b' contains ' ': use letters, digits, '.', '_' and '-'\n")
    assert "a b" not in tutti("topics", url=running.url).out


def test_a_topic_is_described(running: DevGroup) -> None:
    listed = {topic["name"]: topic for topic in tutti("topics", "list", "--json", url=running.url).json}
    assert tutti("topics", "describe", "a", "--json", url=running.url).json == listed["a"]
    # The options of the group hold for its commands.
    assert shell("topics", "--json", "--url", running.url, "describe", "a").json == listed["a"]
    told = dict(line.split(None, 1) for line in tutti("topics", "describe", "a", url=running.url).lines)
    assert (told["records"], told["last_time"]) == ("3", listed["a"]["last_time"])
    tutti("topics", "create", "flights", url=running.url)
    near = tutti("topics", "describe", "flihgts", url=running.url)
    assert (near.code, near.err) == (2, "error: no topic is named 'flihgts': did you mean 'flights'?\n")
    far = tutti("topics", "describe", "zzz", url=running.url)
    assert (far.code, far.err.startswith("error: no topic is named 'zzz': the topics are a, b, ")) == (2, True)


def test_a_url_of_the_group_of_commands_wins_over_the_environment(running: DevGroup) -> None:
    done = tutti("topics", "--url", running.url, "describe", "a", url="tutti://127.0.0.1:1")
    assert (done.code, done.lines[0].split()) == (0, ["name", "a"])


def test_offsets_of_times(running: DevGroup) -> None:
    frontier = tutti("status", "--json", url=running.url).json["frontier"]
    assert tutti("offsets", "--time", "2000-01-01T00:00:00Z", url=running.url).out == "0\n"
    later = tutti("offsets", "--time", "2100-01-01T00:00:00+01:00", "--json", url=running.url)
    assert later.json == {"time": "2099-12-31T23:00:00+00:00", "offset": frontier}
    wrong = tutti("offsets", "--time", "yesterday", url=running.url)
    assert (wrong.code, wrong.out) == (2, "")
    assert "'yesterday' is not a time: write ISO 8601 with a zone" in wrong.err


def test_producers_are_listed_fenced_and_forgotten(running: DevGroup) -> None:
    def listed() -> dict[str, dict[str, object]]:
        return {str(producer["name"]): producer for producer in tutti("producers", "list", "--json", url=running.url).json}

    one = listed()["p"]
    assert (one["epoch"], one["sequence"], one["closed"]) == (1, 3, False)
    assert json.loads(str(one["progress"]))["count"] == 3
    header, *rows = tutti("producers", "list", url=running.url).lines
    assert header.split("\t")[:3] == ["name", "epoch", "sequence"]
    assert any(row.split("\t")[:3] == ["p", "1", "3"] for row in rows)
    assert tutti("producers", "--json", "--url", running.url).json == tutti("producers", "list", "--json", url=running.url).json
    assert tutti("producers", "--url", running.url, "list").lines == [header, *rows]
    assert tutti("producers", "fence", "p", url=running.url).code == 0
    assert listed()["p"]["epoch"] == 2
    assert tutti("producers", "forget", "p", url=running.url).code == 0
    assert "p" not in listed()
    unknown = tutti("producers", "fence", "nobody", url=running.url)
    assert (unknown.code, unknown.err.count("\n")) == (1, 1)


def test_a_log_is_verified_inspected_and_digested_while_it_is_written(running: DevGroup) -> None:
    directory = str(running.data)
    verified = tutti("log", "verify", directory, "--json").json
    assert (verified["ok"], verified["damage"], verified["gateway"]) == (True, [], "g1")
    assert verified["records"] >= 4
    assert tutti("log", "verify", directory).lines[-1] == "good: no corruption"
    frames = [json.loads(line) for line in tutti("log", "inspect", directory, "--json").lines]
    assert [frame["position"] for frame in frames] == list(range(1, len(frames) + 1))
    assert [frame["kind"] for frame in frames[:2]] == ["ROSTER", "VIEW"]
    batch = next(frame for frame in frames if frame["kind"] == "BATCH")
    assert (batch["offset"], batch["count"], batch["fate"]) == (0, 3, "decided")
    assert json.loads(batch["progress"])["count"] == 3
    assert frames[0]["detail"]["group"] == "dev"
    header, *rows = tutti("log", "inspect", directory, "--start", "2", "--end", "3").lines
    assert header.split("\t")[:3] == ["position", "offset", "kind"]
    assert [row.split("\t")[0] for row in rows] == ["2", "3"]
    digest = tutti("log", "digest", directory, "--end", "4", "--json").json
    assert (digest["start"], digest["end"], len(digest["sha256"])) == (0, 4, 64)
    assert tutti("log", "digest", directory, "--end", "4").out == digest["sha256"] + "\n"
    assert tutti("log", "digest", directory, "--end", "3").out != digest["sha256"] + "\n"
    beyond = tutti("log", "digest", directory, "--end", "9999999")
    assert (beyond.code, beyond.err.count("\n")) == (2, 1)


@pytest.mark.parametrize("command", [["log", "verify"], ["log", "inspect"], ["log", "digest"], ["log", "repair"]])
def test_a_path_without_a_data_directory_is_refused(tmp_path: Path, command: list[str]) -> None:
    done = tutti(*command, str(tmp_path))
    assert (done.code, done.out) == (2, "")
    assert f"{tmp_path} is not the data directory of a gateway" in done.err


#: `tutti` that looks for a gateway for 2 s in place of 10.
HASTY = """\
import sys
from tutti_gateway.core import limits
limits.CONNECT_TIMEOUT_US = limits.REQUEST_TIMEOUT_US = 2_000_000
from tutti_gateway.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_gateway_that_is_not_there_is_named_by_every_command() -> None:
    port = free_base()
    commands = [
        ["status"],
        ["topics"],
        ["offsets", "--time", "2026-01-01T00:00:00Z"],
        ["producers", "list"],
        ["tail"],
        ["replay", "--out", "x.jsonl"],
        ["produce", "--topic", "t"],
    ]
    asked = [[sys.executable, "-c", HASTY, *command, "--url", f"tutti://127.0.0.1:{port}"] for command in commands]
    with ThreadPoolExecutor(len(asked)) as pool:  # each waits for its whole time limit
        answers = list(pool.map(lambda line: subprocess.run(line, capture_output=True, text=True, input="", check=False), asked))
    for command, answer in zip(commands, answers, strict=True):
        assert (answer.returncode, answer.stdout) == (3, ""), command
        assert f"127.0.0.1:{port}" in answer.stderr, command
        assert answer.stderr.startswith("error: "), command
        assert answer.stderr.count("\n") == 1, command


@pytest.mark.parametrize("url", ["http://127.0.0.1:7403", "127.0.0.1:7400", "tutti://", "tutti://h"])
def test_an_invalid_url_is_refused(url: str) -> None:
    done = tutti("status", "--url", url)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)


def test_a_config_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "g.toml"
    file.write_text('name = "jfk"\ndata = "d"\nlisten = "127.0.0.1:7400"\n')
    good = tutti("config", "check", str(file))
    assert (good.code, good.err) == (0, "")
    assert good.out.startswith(f"{file}: valid: gateway jfk of group ingest, clients at 127.0.0.1:7400, reads at 127.0.0.1:7402")
    file.write_text('nam = "jfk"\ndata = 3\nlisten = "127.0.0.1:7400"\n')
    bad = tutti("config", "check", str(file))
    assert (bad.code, len(bad.lines)) == (2, 3)
    assert tutti("serve", "--config", str(file)).code == bad.code
    told = tutti("config", "check", str(file), "--json").json
    assert (told["ok"], [mistake["key"] for mistake in told["mistakes"]]) == (False, ["name", "nam", "data"])


def test_the_doctor_names_ports_of_a_gateway(running: DevGroup, tmp_path: Path) -> None:
    told = tutti("doctor", "--port", str(running.port), "--data", str(tmp_path / "new" / "directory"), "--json").json
    found = {finding["subject"]: finding for finding in told["findings"]}
    assert {"python", "packages", "open files", "ports", "disk space", "fdatasync", "java", "pyspark"} <= found.keys()
    assert found["ports"]["good"]
    assert "belong to gateway g1" in found["ports"]["found"]
    assert found["python"]["good"]
    assert told["ok"] == all(finding["good"] for finding in told["findings"])


def test_queries_and_named_readers(running: DevGroup) -> None:
    """Proves that a query is listed with its last report, a named reader with its saved position, and both with their lag."""
    from tutti.sources.query_progress import QueryProgress

    assert tutti("queries", url=running.url).out == "no queries and no named readers\n"
    with QueryProgress(running.url) as query:
        frontier = query.frontier().offset
        query.report("run", 1, name="delays", label="job.py@host:1", topics=["a", "b"], lag_ms=70)
        query.report("other", frontier, label="other.py@host:2")
        query.save_offset("loader", 2)
        done = tutti("queries", "--json", url=running.url)
        query.save_offset("loader", frontier)
    delays, loader, nameless = done.json
    assert (done.code, done.err) == (0, "")
    assert (delays["name"], delays["offset"], delays["lag_records"], delays["lag_ms"]) == ("delays", 1, frontier - 1, 70)
    assert (delays["gateway"], delays["state"], delays["topics"]) == ("g1", "running", ["a", "b"])
    assert delays["since"] <= delays["seen"] < datetime.now(UTC).isoformat()
    assert (loader["name"], loader["offset"], loader["lag_records"], loader["state"]) == ("loader", 2, frontier - 2, None)
    assert (nameless["name"], nameless["label"], nameless["lag_records"]) == ("", "other.py@host:2", 0)
    header, *rows = [line.split("\t") for line in tutti("queries", url=running.url).lines]
    assert [dict(zip(header, row, strict=True))["query"] for row in rows] == ["job.py@host:1", "-", "other.py@host:2"]
    assert [dict(zip(header, row, strict=True))["topics"] for row in rows] == ["a,b", "-", "all"]
    told = tutti("status", "--json", url=running.url).json["queries"]
    assert {(query["name"], query["offset"], query["lag_records"]) for query in told} == {
        ("delays", 1, frontier - 1),
        ("", frontier, 0),
    }
    with urllib.request.urlopen(f"http://127.0.0.1:{running.port + 3}/v1/status", timeout=10) as answer:
        assert {query["run"] for query in json.load(answer)["queries"]} == {"run", "other"}
