"""Tests of the files connector: it never reads its own files as a source, and an empty topic is an error."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.unit.connectors.files.fake_log import Rig
from tutti.errors import ConfigError
from tutti_connect.files.connector import Connector
from tutti_connect.files.discovery.directory import Directory


def test_an_empty_topic_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="topic is '': it takes text in \"quotes\" that is not empty"):
        Rig(tmp_path, top='topic = ""')


@pytest.mark.parametrize("key", ["state", "quarantine"])
@pytest.mark.parametrize(
    ("place", "topic", "taken"), [(".", True, True), ("x", True, False), ("x", False, True), (".x", False, False)]
)
def test_the_connectors_own_files_are_not_read_as_sources(tmp_path: Path, key: str, place: str, topic: bool, taken: bool) -> None:
    rig = Rig(tmp_path, top="" if topic else "# no topic")
    directory = Directory(msgspec.structs.replace(rig.config, **{key: str(rig.incoming / place)}))
    if not taken:
        directory.check()
        return
    with pytest.raises(
        ConfigError, match=f"^{key} .* is inside the scanned directories: choose a directory outside {rig.incoming}"
    ):
        directory.check()


def test_nothing_is_made_where_there_is_no_directory_of_files(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.incoming.rmdir()
    with pytest.raises(
        ConfigError, match=f"^files.directory {rig.incoming}: no such file or directory: create it, or choose a readable directory"
    ):
        Connector(msgspec.structs.replace(rig.config, quarantine=str(tmp_path / "new")))
    assert not (tmp_path / "new").exists()


def test_a_commit_resets_the_backoff(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.write("a", b"1\n")
    with rig.session() as (connector, session):
        waits = [connector._backoff.next_s() for _ in range(3)]
        session._scan()
        rig.log.decide(len(rig.log.undecided))
        session._process_outcomes()
        assert waits[2] > waits[0] == connector._backoff.next_s()
