"""Tests of the load generator against servers that answer as they should, late, in pieces, or wrongly."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks.figures import descendants
from benchmarks.load.generator import SOURCE, Message, compiler, program, run
from tests.integration.load.fake_server import EPOCH, MESSAGE, PRODUCER, SEQUENCE, Server, receipts, serving
from tutti.data.client_protocol import RefusedAnswer, Welcome, encode_control
from tutti.zmtp import framing

WELCOME = Welcome(1, "a", "group", "log", "primary", "1", "", "", {"a": "tutti://127.0.0.1:1"}, 1, 1, 1)


def answer_each(count: int) -> Callable[[Server], None]:
    def serve(server: Server) -> None:
        for number in range(count):
            assert server.fields() == (PRODUCER, SEQUENCE + number, EPOCH)
            server.send(receipts(number))
        assert server.read(1) == b""  # nothing follows until the load generator ends

    return serve


def test_each_record_has_the_next_sequence_and_one_time() -> None:
    with serving(answer_each(200)) as client:
        load = run([client], MESSAGE, 200)
    assert (load.records, len(load.times_ms)) == (200, 200)
    assert 0 < load.times_ms[0] <= load.times_ms[-1] <= load.elapsed_s * 1e3
    assert load.rate == 200 / load.elapsed_s
    assert load.cpu_s > 0


def test_the_records_of_all_connections_together_are_those_asked_for() -> None:
    answered = []

    def serve(server: Server) -> None:
        number = 0
        while server.read(len(MESSAGE.data)):
            server.send(receipts(number))
            number += 1
        answered.append(number)

    with serving(serve) as first, serving(serve) as second, serving(serve) as third:
        assert run([first, second, third], MESSAGE, 100).records == 100
    assert sum(answered) == 100
    assert len(answered) == 3


def test_so_many_records_are_under_way_and_one_message_has_their_receipts() -> None:
    def serve(server: Server) -> None:
        for turn in range(0, 600, 300):
            assert [server.fields()[1] for _ in range(300)] == [SEQUENCE + turn + number for number in range(300)]
            server.end.settimeout(0.2)
            with pytest.raises(TimeoutError):
                server.end.recv(1)  # no more than 300 are under way
            server.end.settimeout(30)
            server.send(receipts(*range(turn, turn + 300)))  # of more than 255 bytes, so its length has eight bytes

    with serving(serve) as client:
        assert run([client], MESSAGE, 600, in_flight=300).records == 600


@pytest.mark.parametrize("at_once", [1, 7, 4096])
def test_answers_in_pieces_are_joined(at_once: int) -> None:
    def serve(server: Server) -> None:
        for turn in range(0, 1200, 600):
            for _ in range(600):
                server.fields()
            server.send(receipts(*range(turn, turn + 600)), at_once)  # 19 KB, more than the first receive buffer

    with serving(serve) as client:
        assert run([client], MESSAGE, 1200, in_flight=600).records == 1200


def test_a_message_larger_than_the_socket_buffer_is_sent_whole() -> None:
    data = bytes(range(256)) * 8000  # 2 MB
    received = []

    def serve(server: Server) -> None:
        for number in range(5):
            received.append(server.read(len(data)))
            server.send(receipts(number))

    with serving(serve, buffer_bytes=8192) as client:
        run([client], Message(data, 100, 200, 300), 5, in_flight=2)
    for number, message in enumerate(received):
        expected = bytearray(data)
        expected[100:108] = PRODUCER.to_bytes(8, "little")
        expected[200:208] = (SEQUENCE + number).to_bytes(8, "little")
        expected[300:304] = EPOCH.to_bytes(4, "little")
        assert message == expected


def test_a_ping_gets_its_pong_between_two_messages_and_other_commands_get_nothing() -> None:
    def serve(server: Server) -> None:
        server.fields()
        server.send(framing.frame(b"\x05OTHER", framing.COMMAND))
        server.send(framing.frame(b"\x04PING\0\0context", framing.COMMAND))
        assert server.read(14) == framing.frame(b"\x04PONGcontext", framing.COMMAND)
        server.send(receipts(0))
        assert server.fields() == (PRODUCER, SEQUENCE + 1, EPOCH)
        server.send(receipts(1))

    with serving(serve) as client:
        assert run([client], MESSAGE, 2).records == 2


def test_a_load_that_was_stopped_and_continued_interrupts_no_receipt() -> None:
    def serve(server: Server) -> None:
        server.fields()
        (load,) = (pid for pid in descendants(os.getpid()) if Path(f"/proc/{pid}/exe").resolve() == program())
        for signum in (signal.SIGSTOP, signal.SIGCONT):  # a continued process gets EINTR from its system call
            os.kill(load, signum)
            time.sleep(0.05)
        server.send(receipts(0))

    with serving(serve) as client:
        assert run([client], MESSAGE, 1).records == 1


def test_a_change_of_the_group_is_no_error() -> None:
    def serve(server: Server) -> None:
        server.fields()
        server.send(framing.frame(encode_control(WELCOME)))
        server.send(receipts(0))

    with serving(serve) as client:
        assert run([client], MESSAGE, 1).records == 1


REFUSED = framing.frame(encode_control(RefusedAnswer(PRODUCER, EPOCH, SEQUENCE, "quota", "above its quota", retry=True)))
EMPTY = framing.frame(b"R\0\0\0\0\0\0\0")
TOO_SHORT = framing.frame(b"R\0\0\0\1\0\0\0")
ODD = {
    "another sequence": (receipts(1), "sequence 42"),
    "another producer": (receipts(0, producer=8), "has producer 8"),
    "another epoch": (receipts(0, epoch=4), "epoch 4"),
    "several records": (receipts(0, count=2), "count 2"),
    "no offset": (receipts(0, offset=-1), "offset -1"),
    "one receipt twice": (receipts(0, 0), "sequence 41"),
    "more than was sent": (receipts(0, 1), "no record is under way"),
    "a refusal": (REFUSED, "above its quota"),
    "no rows": (EMPTY, "0 rows has 8 bytes"),
    "too few bytes": (TOO_SHORT, "1 rows has 8 bytes"),
    "an empty message": (framing.frame(b""), "an unexpected answer of 0 bytes"),
    "several parts": (framing.frame(b"R", framing.MORE), "flags 1"),
    "a frame without end": (framing.frame_header(1 << 40, framing.LONG), "above the limit"),
}


@pytest.mark.parametrize(("answer", "text"), ODD.values(), ids=ODD)
def test_an_odd_answer_is_an_error(answer: bytes, text: str) -> None:
    def serve(server: Server) -> None:
        server.fields()
        server.send(answer)
        server.read(1 << 20)  # until the load generator has ended

    with serving(serve) as client, pytest.raises(SystemExit) as raised:
        run([client], MESSAGE, 1)
    assert text in str(raised.value)
    assert "of 1 receipts so far" in str(raised.value)


def test_the_end_of_a_connection_is_an_error() -> None:
    def serve(server: Server) -> None:
        server.fields()
        server.send(receipts(0))
        server.fields()

    with (
        serving(serve) as client,
        pytest.raises(SystemExit, match=r"connection 0: the server closed it \(1 of 3 receipts so far\)"),
    ):
        run([client], MESSAGE, 3)


@pytest.mark.parametrize("rate", [0.0, 1000.0])
def test_silence_is_an_error_also_while_records_become_due(rate: float) -> None:
    over = threading.Event()

    def serve(server: Server) -> None:
        server.fields()
        server.send(receipts(0))
        over.wait(30)

    with serving(serve) as client:
        with pytest.raises(SystemExit, match=r"no receipt came for 300 ms \(1 of 100000 receipts so far\)"):
            run([client], MESSAGE, 100_000, in_flight=1000, rate=rate, silence_s=0.3)
        over.set()


def test_answers_without_receipts_are_silence() -> None:
    def serve(server: Server) -> None:
        with suppress(BrokenPipeError):  # the load generator has ended
            while True:
                server.send(framing.frame(b"\x05OTHER", framing.COMMAND))
                time.sleep(0.01)

    with serving(serve) as client, pytest.raises(SystemExit, match="no receipt came for 300 ms"):
        run([client], MESSAGE, 1, silence_s=0.3)


def test_a_paced_run_lasts_until_its_last_record_is_due_and_goes_round_the_connections() -> None:
    with serving(answer_each(50)) as first, serving(answer_each(50)) as second:
        load = run([first, second], MESSAGE, 100, in_flight=10, rate=500.0)
    assert load.elapsed_s >= 99 / 500


def test_a_record_that_waits_for_its_turn_counts_from_when_it_was_due() -> None:
    def serve(server: Server) -> None:
        for number in range(20):
            server.fields()
            if number == 0:
                time.sleep(0.3)
            server.send(receipts(number))

    with serving(serve) as client:
        load = run([client], MESSAGE, 20, rate=1000.0)  # one under way: 19 wait for the first
    assert load.times_ms[0] >= 300 - 20  # the last one was due 19 ms after the first


def test_a_bare_server_answers_with_so_many_bytes() -> None:
    def serve(server: Server) -> None:
        for _ in range(10):
            assert server.read(200) == bytes(200)
            server.send(b"receipt.", 3)

    with serving(serve) as client:
        assert run([client], Message(bytes(200), answer_bytes=8), 10).records == 10


def test_a_bare_server_that_answers_twice_is_an_error() -> None:
    def serve(server: Server) -> None:
        server.read(200)
        server.send(b"receipt.receipt.")
        server.read(1)

    with serving(serve) as client, pytest.raises(SystemExit, match="no record is under way"):
        run([client], Message(bytes(200), answer_bytes=8), 2)


@pytest.mark.parametrize(
    ("count", "message", "in_flight", "text"),
    [
        (0, MESSAGE, 1, "1 to 100000000 records"),
        (1, MESSAGE, 0, "1 to 65536 messages under way"),
        (1, Message(b"", answer_bytes=8), 1, "of 1 to 67108864 bytes"),
        (1, Message(bytes(16), 0, 9, 0), 1, "a field lies outside of the message of 16 bytes"),
        (1, Message(bytes(16), 0, 8, 13), 1, "a field lies outside of the message of 16 bytes"),
        (1, Message(bytes(16), answer_bytes=100_000), 1, "an answer has at most 16384 bytes"),
    ],
)
def test_a_run_that_cannot_be_is_refused(count: int, message: Message, in_flight: int, text: str) -> None:
    with serving(lambda server: server.read(1)) as client, pytest.raises(SystemExit, match=text):
        run([client], message, count, in_flight=in_flight)


def test_a_run_without_connections_is_refused() -> None:
    with pytest.raises(SystemExit, match="1 to 65536 connections"):
        run([], MESSAGE, 1)


def test_the_program_compiles_without_a_warning(tmp_path: Path) -> None:
    strict = ["-O2", "-std=gnu11", "-Wall", "-Wextra", "-Wconversion", "-Werror"]
    ran = subprocess.run([str(compiler()), *strict, "-o", str(tmp_path / "out"), str(SOURCE)], capture_output=True, check=False)
    assert ran.stderr == b""
