"""Tests of the ports for tests: each is lent once, to any process, and is outside the range that the system assigns."""

import socket
import subprocess
import sys
from pathlib import Path

from tests.support.ports import END, FIRST, free_ports

ROOT = Path(__file__).resolve().parents[2]
ASK = "from tests.support.ports import free_base, free_ports\nfor _ in range(50): print(*free_ports(2), free_base(), free_base(3))"


def test_a_port_lent_to_another_process_is_not_lent_again() -> None:
    processes = [subprocess.Popen([sys.executable, "-c", ASK], stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(3)]
    lines = [line.split() for process in processes for line in process.communicate(timeout=100)[0].splitlines()]
    lent: list[int] = []
    for one, other, base, three in (map(int, line) for line in lines):
        assert (other, base % 10, three % 10) == (one + 1, 0, 0)
        lent += [one, other]
        lent += [base + distance for distance in range(4)]
        lent += [three + 10 * place + distance for place in range(3) for distance in range(4)]
    assert len(lent) == len(set(lent)) == 3 * 50 * 18
    assert FIRST <= min(lent) <= max(lent) < END


def test_a_port_with_a_listener_is_skipped() -> None:
    after = free_ports(1)[0] + 1  # the next one, unless somebody else takes it now
    with socket.create_server(("127.0.0.1", after)):
        assert after not in free_ports(3)
