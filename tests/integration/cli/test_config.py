"""Tests that gateways start with the files that `tutti config init` writes."""

from __future__ import annotations

from pathlib import Path

from tests.support.commands import WAIT_S, serving, tutti
from tests.support.ports import GATEWAY_STEP, free_base
from tutti import Producer


def on_ports(files: list[Path], base: int) -> None:
    """Replace the ports 7400, 7410 and 7420, which another test can use, by free ones."""
    for file in files:
        text = file.read_text()
        for place in range(3):
            text = text.replace(f":{7400 + GATEWAY_STEP * place}", f":{base + GATEWAY_STEP * place}")
        file.write_text(text)


def test_a_gateway_starts_with_the_file_of_a_single_one(tmp_path: Path) -> None:
    assert tutti("config", "init", "--out", str(tmp_path)).code == 0
    base = free_base()
    on_ports([tmp_path / "gateway.toml"], base)
    with serving([Path("gateway.toml")], tmp_path) as [ready]:
        assert (ready["name"], ready["url"]) == ("jfk", f"tutti://127.0.0.1:{base}")
        assert tutti("produce", "--topic", "t", given=b"first\n", url=ready["url"]).code == 0
        assert tutti("tail", "--format", "value", url=ready["url"]).lines == ["first"]
    assert (tmp_path / "data/jfk").is_dir()


def test_a_group_starts_with_the_files_of_three_gateways(tmp_path: Path) -> None:
    assert tutti("config", "init", "--kind", "group", "--out", str(tmp_path)).code == 0
    names = ["jfk", "lga", "ewr"]
    on_ports([tmp_path / f"{name}.toml" for name in names], free_base(3))
    with serving([Path(f"{name}.toml") for name in names], tmp_path) as ready:
        assert [line["name"] for line in ready] == names
        with Producer(",".join(line["url"] for line in ready).replace(",tutti://", ",")) as producer:
            assert producer.send("t", b"first").result(WAIT_S) == 0
        members = tutti("members", "--json", url=ready[2]["url"])
        assert sorted(one["name"] for one in members.json) == sorted(names)
