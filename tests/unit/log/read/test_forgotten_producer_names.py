"""The names of forgotten producers are found without going through the log for each of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.unit.log.history import History, write_log
from tutti import limits
from tutti.data.frames.frame import Kind
from tutti.errors import Damaged
from tutti.log.files.layout import segment_path
from tutti.log.read import name_registry
from tutti.log.read.reader import LogReader
from tutti.log.read.scan import scan
from tutti.log.read.segment_catalog import Catalog
from tutti.log.read.segment_view import SegmentView

COUNT = 600


@pytest.fixture(scope="module")
def churned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of several segments in which each record is of a producer that was forgotten right after it."""
    history = History()
    for number in range(COUNT):
        history.batch(f"~{number}", "t", [b"x" * 200])
        history.forget(f"~{number}")
    path = tmp_path_factory.mktemp("names") / "log"
    write_log(path, history, step=200)
    return path


@pytest.mark.parametrize("together", [1024, 7])
def test_each_segment_is_gone_through_once_for_all_of_its_names(
    churned: Path, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    monkeypatch.setattr(name_registry, "_NEIGHBOURS", together)
    frames, looks = [0], [0]
    frame, good_rows = SegmentView.frame, Catalog.readable_rows

    def counted_frame(view: SegmentView, row: object) -> object:
        frames[0] += 1
        return frame(view, row)  # type: ignore[arg-type]  # as it was given

    def counted_rows(*args: object) -> object:
        looks[0] += 1
        return good_rows(*args)  # type: ignore[arg-type]  # as they were given

    monkeypatch.setattr(SegmentView, "frame", counted_frame)
    reader = LogReader(churned)
    segments = len(list((churned / "log").glob("*.seg")))
    assert segments > 4
    found: list[str] = []
    monkeypatch.setattr(Catalog, "readable_rows", counted_rows)
    for batch in scan(reader, 0, COUNT, columns=["producer"]):
        found += map(str, batch.column(0).to_pylist())
    assert found == [f"~{number}" for number in range(COUNT)]
    assert frames[0] <= 2 * COUNT + 20  # each EPOCH once, and a few that stand at a border
    assert looks[0] <= 3 * segments + 2 * COUNT / min(together, COUNT / segments)
    reader.close()


def test_few_names_are_kept_and_all_are_found(churned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "NAMES_KEPT_MAX", 50)
    monkeypatch.setattr(name_registry, "_NEIGHBOURS", 16)
    reader = LogReader(churned)
    for number in [*range(0, COUNT, 7), *reversed(range(COUNT))]:
        assert reader.name_of(Kind.EPOCH, number + 1) == f"~{number}"
        assert len(reader._names._known) <= 50 + 16 + 2
    assert reader.name_of(Kind.TOPIC, 1) == "t"
    reader.close()


def test_names_are_found_without_snapshots_and_beside_damage(churned: Path, tmp_path: Path) -> None:
    path = tmp_path / "copy"
    shutil.copytree(churned, path)
    for snapshot in sorted((path / "log").glob("*.snap"))[::2]:
        snapshot.unlink()
    reader = LogReader(path)
    for number in range(0, COUNT, 5):
        assert reader.name_of(Kind.EPOCH, number + 1) == f"~{number}"
    view, rows = next(reader.positions(1, 50))
    epochs = [row for row in rows if row["kind"] == 5 or row["producer"] == 3]
    reader.close()
    place = next(int(row["file_position"]) for row in epochs if row["producer"] == 3)
    with open(segment_path(str(path), view.first), "r+b") as file:
        file.seek(place + 96)
        file.write(b"\xff\xff")
    reader = LogReader(path)
    with pytest.raises(Damaged, match="does not hold the name of producer number 3"):
        reader.name_of(Kind.EPOCH, 3)
    assert (reader.name_of(Kind.EPOCH, 2), reader.name_of(Kind.EPOCH, 4)) == ("~1", "~3")
    reader.close()
