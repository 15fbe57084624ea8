"""Proves that a mesh whose memory is short lets go of what came in, and that the others are back at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.transport.meshes import exchange, free_ports, run, town


@pytest.mark.parametrize("keys", [False, True])
def test_who_was_disconnected_for_want_of_memory_comes_again(tmp_path: Path, keys: bool) -> None:
    with town(tmp_path if keys else None, ["jfk", "lga"]) as place:
        ports = free_ports(4)
        addresses = [f"127.0.0.1:{ports[0]}/{ports[1]}", f"127.0.0.1:{ports[2]}/{ports[3]}"]
        jfk, lga = place.add("jfk", 1, addresses[0]), place.add("lga", 2, addresses[1])
        jfk.transport.peers([(2, "lga", addresses[1])])
        lga.transport.peers([(1, "jfk", addresses[0])])
        exchange(jfk, lga, [jfk, lga])
        changes = lga.transport.changes
        lga.transport.relieve()
        assert lga.transport.changes > changes
        exchange(jfk, lga, [jfk, lga])
        exchange(lga, jfk, [jfk, lga])
        assert (2, False) in [(link.peer, link.up) for link in jfk.links]


def test_a_peer_whose_name_is_not_known_is_told_of_and_the_others_are_reached() -> None:
    with town() as place:
        ports = free_ports(4)
        jfk = place.add("jfk", 1, f"127.0.0.1:{ports[0]}/{ports[1]}")
        lga = place.add("lga", 2, f"127.0.0.1:{ports[2]}/{ports[3]}")
        jfk.transport.peers([(2, "lga", f"localhost:{ports[2]}/{ports[3]}"), (3, "ewr", "no-such-host.invalid:7400")])
        lga.transport.peers([(1, "jfk", f"127.0.0.1:{ports[0]}/{ports[1]}")])
        exchange(jfk, lga, [jfk, lga])
        run(
            [jfk, lga],
            lambda: any("ewr: the host 'no-such-host.invalid' of its address is not known: " in line for line in jfk.said),
        )
