"""Tests of the ZeroMQ connectors without sockets: which messages are records, and which are buffered, resent or dropped."""

from __future__ import annotations

import threading
import time
from base64 import b64decode
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Self

import orjson
import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tutti.data.frames.schema import HEADERS
from tutti.errors import Aborted, BufferFull, ConfigError, Fenced, FormatError, NotAllowed, Unavailable
from tutti.runtime.backoff import Backoff
from tutti.sources.source import Frontier
from tutti_connect import limits as common
from tutti_connect.zeromq import limits, sink
from tutti_connect.zeromq import memory_flow as flow_module
from tutti_connect.zeromq.batches import MessageConverter, TopicBatch
from tutti_connect.zeromq.config import Curve, load_sink_config, load_source_config
from tutti_connect.zeromq.memory_flow import Flow
from tutti_connect.zeromq.metrics import InMetrics
from tutti_connect.zeromq.sink import Publisher
from tutti_connect.zeromq.source import SourceConnector
from tutti_connect.zeromq.spooled_flow import SpooledFlow

EXAMPLES = Path(__file__).parents[4] / "conf" / "connectors"
IN = (
    'name = "z"\ngateways = "tutti://h:1"\nquarantine = "{q}"\ntopic = "t"\n'
    '[zeromq]\nsocket = "pull"\nbind = ["tcp://127.0.0.1:1"]\n'
)  # fmt: skip
OUT = 'name = "z"\ngateways = "tutti://h:1"\ntopics = ["t"]\n[zeromq]\nbind = ["tcp://127.0.0.1:1"]\n'


def test_each_topic_keeps_its_order_and_invalid_messages_are_named() -> None:
    sorter = MessageConverter(["topic", "key", "value"], "")
    parts, bad = sorter.to_batches(
        [[b"a", b"k", b"1"], [b"b", b"", b"2"], [b"a", b"", b"3"], [b"a"], [b"", b"", b""], [b"\xff", b"", b""], [b"..", b"", b""]]
    )
    assert [(part.topic, part.records.column("value").to_pylist()) for part in parts] == [("a", [b"1", b"3"]), ("b", [b"2"])]
    assert parts[0].records.column("key").to_pylist() == [b"k", b""]
    assert [one.reason.split(":")[0] for one in bad] == [
        "it has 1 frames, but zeromq.frames names 3",
        "its topic is ''",
        "its topic is '\ufffd'",
        "its topic is '..'",
    ]


def test_parts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that a batch ends at its size, that a larger record is a batch of its own, and that topics are bounded."""
    monkeypatch.setattr(limits, "FRAME_BYTES", 100)
    monkeypatch.setattr(limits, "RECORD_BYTES_MAX", 300)
    monkeypatch.setattr(limits, "TOPICS_MAX", 2)
    parts, bad = MessageConverter(["value"], "t").to_batches([[bytes(size)] for size in (10, 20, 30, 300, 5, 301)])
    assert [[len(value or b"") for value in part.records.column("value").to_pylist()] for part in parts] == [
        [10, 20],
        [30],
        [300],
        [5],
    ]
    assert "301 bytes" in bad[0].reason
    _, bad = MessageConverter(["topic", "value"], "").to_batches([[b"%d" % number, b""] for number in (1, 2, 3, 1)])
    assert ["exceeds the limit of 2" in one.reason for one in bad] == [True]


class Log:
    """The shared state of producers: commits, the last progress, the next sequence."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.values: list[bytes] = []
        self.progress = b""
        self.newest: Any = None
        self.fails = 0
        self.opened = 0
        self.refuses: set[str] = set()  # topics


class Resume(NamedTuple):
    sequence: int
    progress: bytes


class Receipt:
    error = None

    def done(self) -> bool:
        return False


class FakeProducer:
    """Accepts some frames, and fails at any of them with all that are in flight, of which some committed."""

    def __init__(self, log: Log) -> None:
        if log.fails and log.chance.random() < 0.3:
            log.fails -= 1
            raise Unavailable("no gateway")
        self.log = log
        self.sent: list[Any] = []
        log.newest = self
        log.opened += 1

    def resume(self) -> Resume:
        return Resume(0, self.log.progress)

    def send_batch(self, topic: str, records: Any, progress: bytes, outcome: Any) -> Receipt:
        if len(self.sent) == 3:
            raise BufferFull("full")
        self.sent.append((records.column("value").to_pylist(), progress, outcome, topic))
        return Receipt()

    def close(self) -> None:
        pass

    def turn(self) -> None:
        log = self.log
        fail = log.fails > 0 and log.chance.random() < 0.5
        for values, progress, outcome, topic in self.sent[: log.chance.randint(0, len(self.sent))]:
            if topic in log.refuses:  # a producer that uses progress fails all that comes after it, too
                for _, _, other, _ in self.sent:
                    other(NotAllowed(f"topic {topic!r} was refused", "rights", topic), Receipt())
                self.sent = []
                return
            log.values += values
            log.progress = progress
            self.sent.pop(0)
            if not fail:
                outcome(None, Receipt())
        if fail:
            log.fails -= 1
            for _, _, outcome, _ in self.sent:
                outcome(Aborted("lost its coordinator"), Receipt())
            self.sent = []


def nothing_refused(topic: str, reason: str, parts: Sequence[TopicBatch]) -> None:
    raise AssertionError(f"{topic}: {reason}: {parts}")


def flow_on(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Flow:
    monkeypatch.setattr(flow_module, "Producer", lambda *_, **__: FakeProducer(log))
    monkeypatch.setattr(limits, "RETRY_S_MAX", 0.0)
    (tmp_path / "in.toml").write_text(IN.replace("{q}", str(tmp_path / "q")))
    return Flow(load_source_config(str(tmp_path / "in.toml")), nothing_refused)


@pytest.mark.parametrize("seed", range(30))
def test_failed_records_are_resent_once_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Proves it for failures at any frame, of which some were committed without a word."""
    log = Log(seed)
    flow = flow_on(log, tmp_path, monkeypatch)
    flow.open()
    log.fails = 10
    sorter = MessageConverter(["value"], "t")
    wanted = []
    for number in range(60):
        messages = [[b"%d.%d" % (number, one)] for one in range(log.chance.randint(1, 3))]
        wanted += [message[0] for message in messages]
        flow.add(sorter.to_batches(messages)[0])
        flow.run_once(time.monotonic())
        log.newest.turn()
    deadline = time.monotonic() + 60
    while flow.waiting:
        assert time.monotonic() < deadline, f"{flow.waiting} wait"
        flow.run_once(time.monotonic())
        log.newest.turn()
        flow.wait(0.0005)
    assert log.values == wanted
    assert (flow.records, flow.close(1.0), flow.has_space) == (len(wanted), 0, True)


def test_a_permanent_error_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that a fenced connector does not fence back, and that progress of another program is refused."""
    log = Log(1)
    flow = flow_on(log, tmp_path, monkeypatch)
    flow.open()
    flow.add(MessageConverter(["value"], "t").to_batches([[b"1"]])[0])
    flow.run_once(time.monotonic())
    log.newest.sent[0][2](Fenced("another one"), Receipt())
    with pytest.raises(Fenced):
        flow.run_once(time.monotonic())
    log.progress = b"17"
    with pytest.raises(FormatError, match="another `name`"):
        flow.open()


@pytest.mark.parametrize("seed", range(20))
def test_topics_that_are_refused_go_to_quarantine_and_the_others_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Proves that each message is in the log or in quarantine, once, among other failures, and that a topic fails one producer."""
    log = Log(seed)
    log.refuses = {"no", "never"}
    monkeypatch.setattr(flow_module, "Producer", lambda *_, **__: FakeProducer(log))
    monkeypatch.setattr(limits, "RETRY_S_MAX", 0.0)
    text = IN.replace("{q}", str(tmp_path / "q")).replace('topic = "t"\n', "") + 'frames = ["topic", "skip", "value"]\n'
    (tmp_path / "in.toml").write_text(text)
    connector = SourceConnector(load_source_config(str(tmp_path / "in.toml")))
    connector.flow.open()
    log.fails = 3
    topics = [log.chance.choice(["yes", "no", "other", "never"]) for _ in range(100)]
    sent = [[topic.encode(), b"skipped", b"%s %d" % (topic.encode(), number)] for number, topic in enumerate(topics)]
    for start in range(0, 100, 10):
        connector._process(sent[start : start + 10])
        log.newest.turn()
    deadline = time.monotonic() + 60
    while connector.flow.waiting:
        assert time.monotonic() < deadline, f"{connector.flow.waiting} wait"
        connector.flow.run_once(time.monotonic())
        log.newest.turn()
        connector.flow.wait(0.0005)
    assert connector.flow.close(1.0) == 0
    good = [value for topic, _, value in sent if topic in (b"yes", b"other")]
    for topic in (b"yes", b"other"):
        assert [value for value in log.values if value.startswith(topic)] == [value for value in good if value.startswith(topic)]
    assert sorted(log.values) == sorted(good)
    told = [orjson.loads(line) for file in (tmp_path / "q").iterdir() for line in file.read_bytes().splitlines()]
    assert {one["reason"] for one in told} == {"topic 'no' was refused", "topic 'never' was refused"}
    kept = [tuple(b64decode(frame["base64"]) for frame in one["frames"]) for one in told]
    assert sorted((topic, value) for topic, _, value in kept) == sorted(
        (topic, value) for topic, _, value in sent if topic in (b"no", b"never")
    )
    assert connector.flow.records == len(good)
    assert log.opened <= 1 + len(log.refuses) + 3, "messages of a topic that is known to be refused fail no producer"


def test_a_refused_topic_that_the_configuration_names_holds_its_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that they wait for the right: the pusher is blocked, and nothing goes to quarantine."""
    log = Log(1)
    log.refuses = {"t"}
    flow = flow_on(log, tmp_path, monkeypatch)
    flow.open()
    flow.add(MessageConverter(["value"], "t").to_batches([[b"1"]])[0])
    deadline = time.monotonic() + 60
    while flow.waiting:
        assert time.monotonic() < deadline
        flow.run_once(time.monotonic())
        log.newest.turn()
        if flow.failures == 3:
            log.refuses.clear()
    assert (log.values, flow.close(1.0)) == ([b"1"], 0)


class FakeSocket:
    """Gives messages as long as it has some."""

    def __init__(self, messages: list[list[bytes]]) -> None:
        self.messages = messages

    def poll(self, _ms: int) -> int:
        return len(self.messages)

    def recv(self) -> bytes:
        return self.messages.pop(0)[0]

    def recv_multipart(self, _flags: int) -> list[bytes]:
        import zmq

        if not self.messages:
            raise zmq.Again
        return self.messages.pop(0)


@pytest.mark.parametrize(("kind", "left", "dropped"), [("pull", 5, 0), ("sub", 0, 5)])
def test_without_buffer_space_a_pusher_waits_and_published_messages_are_counted(
    tmp_path: Path, kind: str, left: int, dropped: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.toml").write_text(IN.replace("{q}", str(tmp_path / "q")).replace("pull", kind))
    connector = SourceConnector(load_source_config(str(tmp_path / "in.toml")))
    monkeypatch.setattr(limits, "BUFFER_BYTES", 0)
    monkeypatch.setattr(connector.flow, "run_once", lambda _: None)
    socket: Any = FakeSocket([[b"x"]] * 5)
    connector._run_once(socket, pull=kind == "pull")
    assert (len(socket.messages), connector.dropped, connector.messages) == (left, dropped, dropped)


@pytest.mark.parametrize("kind", ["pull", "sub"])
def test_garbage_fills_no_directory_and_holds_no_flow(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that however much a stranger sends, there are few files, what has no space is counted, and good messages pass."""
    (tmp_path / "in.toml").write_text(IN.replace("{q}", str(tmp_path / "q")).replace("pull", kind))
    connector = SourceConnector(load_source_config(str(tmp_path / "in.toml")))
    monkeypatch.setattr(connector.flow, "run_once", lambda _: None)
    monkeypatch.setattr(common, "QUARANTINE_LOG_FILES", 3)
    monkeypatch.setattr(common, "QUARANTINE_LOG_FILE_BYTES", 1000)
    for number in range(50):
        socket: Any = FakeSocket([[b"%d" % number, b"no"], [b"good %d" % number], [b"", b"", b"x" * 70_000]])
        connector._run_once(socket, pull=kind == "pull")
        assert socket.messages == []
    files = list((tmp_path / "q").iterdir())
    assert len(files) == 3
    told = [orjson.loads(line) for file in sorted(files) for line in file.read_bytes().splitlines()]
    assert (told[0]["reason"], told[0]["count"]) == ("it has 2 frames, but zeromq.frames names 1", 2)
    assert told[0]["frames"][0] == {"bytes": 1, "base64": "MA=="}
    assert [len(one["base64"]) for one in told[1]["frames"]] == [0, 0, 87384]
    registry = CollectorRegistry()
    registry.register(InMetrics(connector))
    metrics = generate_latest(registry).decode()
    assert f'tutti_zeromq_in_quarantined{{connector="z"}} {float(len(told))}' in metrics
    assert f'tutti_zeromq_in_quarantine_dropped_total{{connector="z"}} {float(100 - len(told))}' in metrics
    assert (connector.dropped, connector.flow.waiting) == (0, 50)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (IN.replace('"pull"', '"push"'), '"pull" or "sub"'),
        (IN.replace('bind = ["tcp://127.0.0.1:1"]', ""), "zeromq.bind or zeromq.connect is missing"),
        (IN.replace("tcp://127.0.0.1:1", "localhost"), "'localhost' is not an endpoint"),
        (IN + 'subscribe = ["a"]', "remove subscribe"),
        (IN + 'frames = ["vlue"]', 'it takes a list of some of "'),
        (IN + 'frames = ["key"]', 'has no "value"'),
        (IN + 'frames = ["value", "value"]', '"value" twice'),
        (IN + 'frames = ["topic", "value"]', "remove one of them"),
        (IN.replace('topic = "t"', ""), "topic is ''"),
        (IN + "high_water_mark = 0", "a whole number from 1"),
        (IN + '[curve]\nserver = "x"', "curve.certificate is missing"),
        (IN + '[curve]\ncertificate = "x"', "curve.clients is '': zeromq.bind needs it"),
        (IN + '[curve]\ncertificate = "x"\nclients = "c"\nserver = "s"', "remove it, because zeromq.connect is empty"),
    ],
)
def test_mistakes_in_the_configuration_are_reported(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "in.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        load_source_config(str(file))
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (OUT.replace('["t"]', '["t", "t"]'), "topics has 't' twice"),
        *(
            (OUT.replace("127.0.0.1:1", host), "without [curve] any of them may")
            for host in ("*:1", "0.0.0.0:1", "[::]:1", "eth0:1")
        ),
        (OUT.replace('["t"]', '["a b"]'), "topics is 'a b'"),
        (OUT + 'slow = "stop"', '"drop" or "wait"'),
        (OUT.replace("bind", "connect") + '[curve]\ncertificate = "x"', "zeromq.connect needs it"),
    ],
)
def test_mistakes_in_the_configuration_of_the_sink_are_reported(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "out.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        load_sink_config(str(file))
    assert told in str(raised.value)


@pytest.mark.parametrize("curve", ['certificate = "nowhere"', 'certificate = "FILE"'])
def test_unusable_keys_are_reported(tmp_path: Path, curve: str) -> None:
    import zmq

    from tutti_connect.zeromq.sockets import open_socket

    (tmp_path / "k").write_text('curve\n    public-key = "' + "x" * 40 + '"\n')
    file = tmp_path / "in.toml"
    file.write_text(IN + f'[curve]\n{curve.replace("FILE", str(tmp_path / "k"))}\nclients = "{tmp_path}"')
    config = load_source_config(str(file))
    with pytest.raises(ConfigError, match=r"curve\.certificate"), open_socket(zmq.PULL, config.zeromq.bind, [], config.curve, 10):
        pass


def test_the_examples_are_right() -> None:
    assert load_source_config(str(EXAMPLES / "zeromq-in.toml")).zeromq.socket == "pull"
    assert load_sink_config(str(EXAMPLES / "zeromq-out.toml")).topics == ["quotes"]


def test_for_a_forgotten_topic_it_reports_from_where_on_it_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that no subscriber is told that it missed nothing of a topic which there was no room to remember."""
    monkeypatch.setattr(limits, "PREVIOUS_MAX", 2)
    (tmp_path / "out.toml").write_text(OUT)
    publisher = Publisher(load_sink_config(str(tmp_path / "out.toml")))
    topics = "abcacbdca"
    count = len(topics)
    columns: dict[str, Any] = {
        "offset": pa.array(range(count), pa.int64()),
        "topic": list(topics),
        "key": pa.nulls(count, pa.binary()),
        "value": [b"v"] * count,
        "timestamp": pa.array([0] * count, pa.timestamp("us", "UTC")),
        "headers": pa.nulls(count, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    }
    told = [orjson.loads(message[3]) for _, message in publisher._messages(pa.record_batch(columns))]
    known = [{key: one[key] for key in ("previous", "since") if key in one} for one in told]
    assert known == [
        {"since": 0},
        {"since": 0},
        {"since": 0},  # for it a at 0 was forgotten
        {"since": 1},  # and b at 1
        {"previous": 2},
        {"since": 2},
        {"since": 4},
        {"since": 5},
        {"since": 6},
    ]
    for place, (topic, one) in enumerate(zip(topics, known, strict=True)):
        before = topics.rfind(topic, 0, place)
        assert one.get("previous", before) == before
        assert before < one.get("since", count), "who has the one before it is not told of a gap that may be"


def test_no_header_represents_other_bytes(tmp_path: Path) -> None:
    r"""Bytes that are not UTF-8 were escaped: b"\xff" and the text \xff became the same."""
    (tmp_path / "out.toml").write_text(OUT)
    publisher = Publisher(load_sink_config(str(tmp_path / "out.toml")))
    values = [b"\xff", rb"\xff", None, b"", "ü".encode()]
    columns: dict[str, Any] = {
        "offset": pa.array([0], pa.int64()),
        "topic": ["a"],
        "key": pa.nulls(1, pa.binary()),
        "value": [b""],
        "timestamp": pa.array([-62_135_596_800_000_000], pa.timestamp("us", "UTC")),
        "headers": pa.array([[{"key": "h", "value": value} for value in values]], HEADERS),
    }
    [(_, [*_, told])] = publisher._messages(pa.record_batch(columns))
    shown = [value for _, value in orjson.loads(told)["headers"]]
    assert shown == [{"base64": "/w=="}, r"\xff", None, "", "ü"]
    assert orjson.loads(told)["timestamp"] == "0001-01-01T00:00:00.000000Z"


class FakeProgress:
    """Gateways whose log starts, with records, at the third poll. Remembers saved positions."""

    def __init__(self, saved: dict[str, int], logs: list[tuple[str, int]]) -> None:
        self.saved, self.logs = saved, logs

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def frontier(self) -> Frontier:
        log, offset = self.logs.pop(0) if len(self.logs) > 1 else self.logs[0]
        return Frontier(log, 0, offset, 0, 0, 0, "primary")

    def readers(self) -> dict[str, int]:
        return self.saved

    def save_offset(self, name: str, offset: int) -> None:
        self.saved[name] = offset


@pytest.mark.parametrize(
    ("before", "logs", "after"),
    [
        ({}, [("", 0), ("", 0), ("log", 7)], {"z": 0}),  # all records came after the first start
        ({}, [("log", 7)], {"z": 7}),
        ({"z": 3}, [("log", 7)], {"z": 3}),
    ],
)
def test_a_start_at_latest_is_saved_before_it_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: dict[str, int], logs: list[tuple[str, int]], after: dict[str, int]
) -> None:
    monkeypatch.setattr(sink, "QueryProgress", lambda _: FakeProgress(before, logs))
    monkeypatch.setattr(limits, "START_POLL_S", 0.001)
    (tmp_path / "out.toml").write_text(OUT.replace("topics", 'start = "latest"\ntopics'))
    publisher = Publisher(load_sink_config(str(tmp_path / "out.toml")))
    publisher._resolve_latest(threading.Event())
    assert before == after


class Handed:
    """A producer that is looked at while records are handed over."""

    def __init__(self, look: Callable[[], None]) -> None:
        self.look, self.waiting = look, 0

    def __len__(self) -> int:
        return self.waiting

    def send_batch(self, _topic: str, records: Any, on_delivery: Any) -> Receipt:
        self.waiting += records.num_rows
        self.look()
        return Receipt()


def test_the_committed_position_never_goes_back(tmp_path: Path) -> None:
    """Proves that whoever looks while records are handed to the spool counts none of them as taken back."""
    (tmp_path / "in.toml").write_text(IN.replace("{q}", str(tmp_path / "q")))
    flow = SpooledFlow(load_source_config(str(tmp_path / "in.toml")), nothing_refused)
    seen: list[int] = []
    producer: Any = Handed(lambda: seen.append(flow.records))
    flow._producer = producer
    part = TopicBatch("t", pa.record_batch({"value": [b"x"] * 10}), 10)
    for turn in range(3):
        flow.add([part, part])
        flow.run_once(0.0)
        assert flow.waiting == 20
        producer.waiting = 0
        seen.append(flow.records)
        assert seen[-1] == 20 * (turn + 1)
    assert seen == sorted(seen)


def test_an_address_is_reported_as_written() -> None:
    import zmq

    from tutti_connect.zeromq.config import Curve
    from tutti_connect.zeromq.sockets import open_socket

    with open_socket(zmq.PULL, ["tcp://127.0.0.1:*", "tcp://[::1]:*"], [], Curve(), 10) as (_, (four, six)):
        assert four.startswith("tcp://127.0.0.1:")
        assert six.startswith("tcp://[::1]:")


def test_a_flood_of_subscriptions_blocks_nothing_and_uses_no_memory(tmp_path: Path) -> None:
    (tmp_path / "out.toml").write_text(OUT)
    publisher = Publisher(load_sink_config(str(tmp_path / "out.toml")))
    socket: Any = FakeSocket([[b"\1%d" % number] for number in range(3 * limits.SUBSCRIPTIONS_A_CHECK)])
    publisher._read_subscriptions(socket, 0)
    assert (len(socket.messages), publisher.subscriptions) == (2 * limits.SUBSCRIPTIONS_A_CHECK, limits.SUBSCRIPTIONS_A_CHECK)
    socket.messages = [[b"\0%d" % number] for number in range(limits.SUBSCRIPTIONS_A_CHECK)]
    publisher._read_subscriptions(socket, 0)
    assert publisher.subscriptions == 0
    socket.messages = [[b"\0"], [b"anything else"], [b"\1"]]
    publisher._read_subscriptions(socket, 0)
    assert publisher.subscriptions == 1


def test_a_subscriber_with_keys_and_the_longest_topic_may_say_it(tmp_path: Path) -> None:
    """Its handshake is under that bound, too."""
    import zmq
    import zmq.auth

    from tutti_connect.zeromq.sockets import open_socket

    (tmp_path / "clients").mkdir()
    _, ours = zmq.auth.create_certificates(tmp_path, "ours")
    _, theirs = zmq.auth.create_certificates(tmp_path / "clients", "theirs")
    curve, topic = Curve(certificate=str(ours), clients=str(tmp_path / "clients")), b"t" * 249
    context: Any = zmq.Context()
    with (
        open_socket(zmq.XPUB, ["tcp://127.0.0.1:*"], [], curve, 10) as (socket, (address,)),
        context,
        context.socket(zmq.SUB) as subscriber,
    ):
        subscriber.curve_serverkey = zmq.auth.load_certificate(ours)[0]
        subscriber.curve_publickey, subscriber.curve_secretkey = zmq.auth.load_certificate(theirs)
        subscriber.setsockopt(zmq.LINGER, 0)
        subscriber.setsockopt(zmq.RCVTIMEO, 10_000)
        subscriber.subscribe(topic)
        subscriber.connect(address)
        assert socket.poll(10_000)
        assert socket.recv() == b"\1" + topic
        socket.send_multipart([topic, bytes(100_000)])
        assert len(subscriber.recv_multipart()[1]) == 100_000


def test_a_commit_resets_the_backoff(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(1)
    flow = flow_on(log, tmp_path, monkeypatch)
    flow._backoff = Backoff(1.0, 60.0)
    flow.open()
    waited = []
    for _ in range(3):
        flow._fail(Aborted("lost its coordinator"), 0.0)
        waited.append(flow._retry_at)
    while flow._producer is None:
        flow.run_once(100.0)
    flow.add(MessageConverter(["value"], "t").to_batches([[b"1"]])[0])
    while flow.waiting:
        flow.run_once(100.0)
        log.newest.turn()
    flow._fail(Aborted("lost its coordinator"), 0.0)
    assert [*waited, flow._retry_at] == [1, 2, 4, 1]
    flow.close(1.0)
