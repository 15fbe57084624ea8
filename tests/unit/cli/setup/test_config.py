"""Tests of `tutti config`: it writes files that its own check accepts, keeps files that exist, and recognizes each kind of file."""

from __future__ import annotations

import json
import os
import re
import shutil
import tomllib
from pathlib import Path

import pytest

from tests.support.certificates import certificate
from tests.support.commands import tutti
from tutti_gateway.cli.setup.config import TEMPLATES
from tutti_gateway.cli.setup.kinds import KINDS
from tutti_gateway.transport.keys import generate

CONF = Path(__file__).resolve().parents[4] / "conf"
MEMBERS = ["jfk", "lga", "ewr"]
GROUPS = ["group", "secured"]
SINGLE = [kind for kind in TEMPLATES if kind not in GROUPS]


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def steps(out: str) -> list[str]:
    return [line.removeprefix("next: ") for line in out.splitlines() if line.startswith("next: ")]


# init


@pytest.mark.parametrize("kind", SINGLE)
def test_a_file_is_the_example_and_passes_the_check(kind: str) -> None:
    name = Path(TEMPLATES[kind]).name
    done = tutti("config", "init", "--kind", kind)
    assert (done.code, done.err) == (0, "")
    assert Path(name).read_bytes() == (CONF / TEMPLATES[kind]).read_bytes()
    command = "tutti serve" if kind == "single" else KINDS[kind].command
    assert done.lines[0] == f"wrote {name}"
    assert steps(done.out) == [f"tutti config check {name}  (after each change)", f"{command} --config {name}"]
    checked = tutti("config", "check", name)
    assert checked.code == 0
    assert ": valid: " in checked.out


def test_every_example_has_a_kind() -> None:
    examples = {str(path.relative_to(CONF)) for path in CONF.rglob("*.toml")}
    assert set(TEMPLATES.values()) == examples - {"minimal.toml"}  # gateway.toml has the keys of minimal.toml, and all others


@pytest.mark.parametrize("kind", GROUPS)
def test_each_gateway_of_a_group_gets_a_file(kind: str) -> None:
    done = tutti("config", "init", "--kind", kind, "--out", "new/place")
    place = Path("new/place")
    assert done.code == 0
    generate(place / "keys", MEMBERS)
    (place / "tokens.toml").write_text("[tokens]\n")
    tables = {}
    for name in MEMBERS:
        certificate(place / "tls", name, "IP:10.0.0.1,IP:10.0.0.2,IP:10.0.0.3")
        file = place / f"{name}.toml"
        checked = tutti("config", "check", str(file))
        assert checked.code == 0, checked.out
        assert checked.out.startswith(f"{file}: valid: gateway {name} of group ingest, ")
        assert "advice" not in checked.out
        tables[name] = tomllib.loads(file.read_text())
    assert len({table["data"] for table in tables.values()}) == len(MEMBERS)
    for name, table in tables.items():
        assert (table["name"], table["listen"]) == (name, table["group"]["members"][name])
        own = {value for value in table.get("security", {}).values() if name in value}
        assert own == ({f"keys/{name}.secret", f"tls/{name}.pem", f"tls/{name}.key"} if kind == "secured" else set())
    assert [table["group"] for table in tables.values()] == [tables["jfk"]["group"]] * 3
    assert (place / "certificates.sh").exists() == (kind == "secured")
    assert any(step.startswith(f"tutti serve --config {place}/jfk.toml") for step in steps(done.out))


def test_the_steps_of_a_secured_group_are_in_an_order_that_works() -> None:
    done = tutti("config", "init", "--kind", "secured", "--json")
    assert done.json["files"] == ["jfk.toml", "lga.toml", "ewr.toml", "certificates.sh"]
    wanted = [
        "in every file",
        "tutti keys new",
        "sh certificates.sh jfk:10.0.0.1 lga:10.0.0.2 ewr:10.0.0.3 ",
        "tutti tokens new feed",
        "tutti tokens new ops --admin",
    ]
    wanted += ["TUTTI_TOKEN_FILE=feed.client", "tutti config check jfk.toml", "tutti serve --config jfk.toml"]
    assert [step[: len(start)] for step, start in zip(done.json["next"], wanted, strict=True)] == wanted
    checked = tutti("config", "check", "jfk.toml")
    assert checked.code == 2
    assert "keys/jfk.secret cannot be read (no such file or directory)" in checked.out


@pytest.mark.parametrize("kind", list(TEMPLATES))
def test_a_written_file_names_its_own_path_and_none_of_a_checkout(kind: str) -> None:
    """Proves it of a file with a name of its own, because the comments of the template have the name of the template."""
    out = "there" if kind in GROUPS else "there/mine.toml"
    files = [Path(file) for file in tutti("config", "init", "--kind", kind, "--out", out, "--json").json["files"]]
    for file in files:
        text = file.read_text()
        assert re.findall(r"\b(?:conf|docs|examples|docker|deploy)/", text) == []
        assert set(re.findall(r"(?:--config|config check) (\S+\.toml)", text)) <= {file.name}
    assert any("--config " in file.read_text() for file in files) or kind == "single"


def test_out_names_a_file_or_a_directory() -> None:
    Path("there").mkdir()
    assert tutti("config", "init", "--out", "there").lines[0] == "wrote there/gateway.toml"
    assert tutti("config", "init", "--out", "not/there.toml").lines[0] == "wrote not/there.toml"
    assert tutti("config", "init", "--out", "new").lines[0] == "wrote new/gateway.toml"
    done = tutti("config", "init", "--out", "x.yaml")
    assert (done.code, done.out) == (2, "")
    assert done.err == "error: --out x.yaml: a file's name must end in .toml, and a directory with a dot in its name must exist\n"
    Path("v1.2").mkdir()
    assert tutti("config", "init", "--out", "v1.2").lines[0] == "wrote v1.2/gateway.toml"
    done = tutti("config", "init", "--kind", "group", "--out", "x.toml")
    assert (done.code, done.err) == (2, "error: --out x.toml: the kind group writes several files: name a directory\n")


def files_of_all_kinds() -> dict[str, str]:
    """Make a valid file of each kind in the working directory, and return the path for each kind."""
    files = {kind: shutil.copy(CONF / TEMPLATES[kind], Path(TEMPLATES[kind]).name) for kind in KINDS if kind in TEMPLATES}
    files["gateway"] = shutil.copy(CONF / "gateway.toml", "gateway.toml")
    generate("keys", ["jfk"])
    client = ("--client", "feed.client", "--keys", "keys/group.keys")
    assert tutti("tokens", "new", "feed", "--read", "*", "--file", "tokens.toml", *client).code == 0
    return files | {
        "tokens": "tokens.toml",
        "keys": "keys/group.keys",
        "secret": "keys/jfk.secret",
        "credentials": "feed.client",
    }


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind].command])
def test_each_command_names_the_kind_of_another_file_and_its_use(kind: str) -> None:
    files = files_of_all_kinds()
    assert files.keys() == KINDS.keys()
    del files[kind]
    for other, file in files.items():
        done = tutti(*KINDS[kind].command.split()[1:], "--config", file)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith(f"error: {file} is {KINDS[other].text}, not {KINDS[kind].text}: ")
        assert done.err.count("\n") == 1
        use = f"{KINDS[other].command} --config {file}" if KINDS[other].command else file
        assert use in done.err.partition(", not ")[2]


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [(("tokens", "list", "--file"), "tokens"), (("keys", "show"), "keys")],
)
def test_the_commands_of_keys_and_tokens_name_the_kind_of_another_file(arguments: tuple[str, ...], kind: str) -> None:
    for other, file in files_of_all_kinds().items():
        done = tutti(*arguments, file)
        if kind == other or (kind == "keys" and other == "secret"):
            assert done.code == 0
        else:
            assert done.code == 2
            assert done.err.startswith(f"error: {file} is {KINDS[other].text}, not {KINDS[kind].text}: ")


def test_a_token_file_in_place_of_credentials_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    files_of_all_kinds()
    monkeypatch.setenv("TUTTI_TOKEN_FILE", "tokens.toml")
    done = tutti("status", "--url", "tutti://127.0.0.1:1")
    assert done.code == 2
    assert done.err.startswith("error: tokens.toml is a file of tokens, not a file of client credentials: name it as `tokens` in")


@pytest.mark.parametrize("text", ["", "x = 1\n", "[[[", "token = 5\n"])
def test_an_unknown_file_gets_the_mistakes_of_the_expected_kind(text: str) -> None:
    Path("f.toml").write_text(text)
    assert "f.toml is not a tokens file" in (listed := tutti("tokens", "list", "--file", "f.toml").err) or "is not TOML" in listed
    for kind in KINDS.values():
        if kind.command:
            done = tutti(*kind.command.split()[1:], "--config", "f.toml")
            assert done.code == 2
            assert done.err.startswith("error: f.toml:")


def test_nothing_is_overwritten_without_force() -> None:
    Path("lga.toml").write_text("mine")
    done = tutti("config", "init", "--kind", "group")
    assert (done.code, done.out) == (2, "")
    assert done.err == "error: lga.toml already exists: choose another place with --out, or replace with --force\n"
    assert os.listdir() == ["lga.toml"]
    assert Path("lga.toml").read_text() == "mine"
    assert tutti("config", "init", "--kind", "group", "--force").code == 0
    assert tomllib.loads(Path("lga.toml").read_text())["name"] == "lga"
    again = tutti("config", "init", "--kind", "group")
    assert again.err.startswith("error: jfk.toml already exists (and 2 more files): ")


@pytest.mark.parametrize("out", ["file/below", "file/below/deep", "/dev/null/x"])
def test_a_place_that_cannot_be_written_is_named(out: str) -> None:
    Path("file").touch()
    for kind in ("single", "group"):
        done = tutti("config", "init", "--kind", kind, "--out", out)
        assert done.code == 2
        assert done.err.startswith(f"error: {out}")
        assert "cannot be written (not a directory)" in done.err


def test_a_file_is_no_directory_for_a_group() -> None:
    Path("file").touch()
    done = tutti("config", "init", "--kind", "group", "--out", "file", "--force")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: file/jfk.toml cannot be written (not a directory)")


def test_an_unknown_kind_is_refused_with_the_kinds() -> None:
    done = tutti("config", "init", "--kind", "three")
    assert done.code == 2
    assert all(f"'{kind}'" in done.err for kind in TEMPLATES)


# check


def test_several_files_are_checked_each_as_its_kind() -> None:
    files = files_of_all_kinds()
    del files["gateway"]
    done = tutti("config", "check", *files.values())
    assert (done.code, done.err) == (0, "")
    assert done.lines == [f"{file}: valid: {KINDS[kind].text}" for kind, file in files.items()]
    Path("wrong.toml").write_text("x = 1\n")
    told = tutti("config", "check", "--json", "wrong.toml", *files.values())
    assert told.code == 2
    lines = [json.loads(line) for line in told.lines]
    assert [(line["file"], line["kind"], line["ok"]) for line in lines] == [
        ("wrong.toml", "gateway", False),
        *((file, kind, True) for kind, file in files.items()),
    ]


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        ("tokens", ("sha256", "sha"), "tokens.feed has sha: it takes admin, bytes_per_s,"),
        ("keys", ('jfk = "', 'jfk = "zz'), "the key of jfk is 'zz"),
        ("secret", ('public = "', 'public = "z'), "public is not a key of 40 Z85 characters: "),
        ("credentials", ('token = "', 'token = "\u00e9'), "token and certificates must be text: "),
    ],
)
def test_mistakes_in_tokens_keys_and_credentials_are_found(kind: str, change: tuple[str, str], said: str) -> None:
    file = files_of_all_kinds()[kind]
    path = Path(file)
    path.write_text(path.read_text().replace(*change))
    done = tutti("config", "check", file)
    assert done.code == 2
    assert done.lines[0] == f"{file}: checked as {KINDS[kind].text}"
    assert done.lines[1].startswith(f"{file}: {said}")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind in TEMPLATES])
def test_each_kind_of_file_is_recognized_and_checked(kind: str) -> None:
    file = shutil.copy(CONF / TEMPLATES[kind], "f.toml")
    done = tutti("config", "check", str(file))
    assert (done.code, done.out) == (0, f"f.toml: valid: the configuration of `{KINDS[kind].command}`\n")
    Path(file).write_text(f"metrix = 1\n{Path(file).read_text()}\n[zzz]\n".replace("tutti://127.0.0.1:7400", "x"))
    wrong = tutti("config", "check", str(file))
    assert wrong.code == 2
    assert wrong.lines[0] == f"f.toml: checked as the configuration of `{KINDS[kind].command}`"
    assert wrong.lines[1].startswith("f.toml:1: metrix is not known: ")
    assert any(": zzz is not known: " in line for line in wrong.lines)
    told = tutti("config", "check", "--json", str(file)).json
    assert (told["kind"], told["ok"], told["advice"]) == (kind, False, [])
    assert [one["key"] for one in told["mistakes"]] == ["metrix", "zzz"]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", "gateway"),
        ('name = "x"\n', "gateway"),
        ('name = "x"\nlisten = "127.0.0.1:7400"\n', "gateway"),
        ('name = "x"\ndata = "d"\nlisten = "127.0.0.1:7400"\nzzz = 1\n[kafka]\n', "gateway"),
        ('nmae = "x"\ndata = 5\nlisten = 7400\n[group]\nmembers = "x"\n', "gateway"),
        ('name = "x"\ngateways = "tutti://h:1"\nlisten = "127.0.0.1:7480"\n', "http"),
        ('gateways = "tutti://h:1"\narchive = "a"\n', "archive"),
        ('archive = "a"\n', "archive"),
        ('name = "x"\ngateways = "tutti://h:1"\nquarantine = "q"\n[kafka]\nservers = "h:1"\n', "kafka-out"),
        ('name = "x"\ngateways = "tutti://h:1"\nquarantine = "q"\n[kafka]\nservers = "h:1"\ntopics = ["a"]\n', "kafka-in"),
        ('name = "x"\nquarantine = "q"\ntopic = "t"\n[files]\ndirectory = "d"\n', "files"),
        ('name = "x"\ngateways = "tutti://h:1"\n[zeromq]\nbind = ["tcp://127.0.0.1:1"]\n', "zeromq-out"),
        ('name = "x"\ngateways = "tutti://h:1"\nquarantine = "q"\n[zeromq]\nsocket = "pull"\n', "zeromq-in"),
        ("name = ", "gateway"),
    ],
)
def test_a_file_with_mistakes_is_of_the_kind_whose_keys_match_best(text: str, kind: str) -> None:
    Path("f.toml").write_text(text)
    assert tutti("config", "check", "--json", "f.toml").json["kind"] == kind


def test_a_rule_between_the_keys_of_a_connector_is_a_mistake_too() -> None:
    text = (CONF / "connectors/http.toml").read_text().replace("127.0.0.1:7480", "0.0.0.0:7480")
    Path("f.toml").write_text(text)
    done = tutti("config", "check", "f.toml")
    assert done.code == 2
    assert done.lines[1].startswith("f.toml: other hosts can reach '0.0.0.0:7480' (listen), ")
    [mistake] = tutti("config", "check", "--json", "f.toml").json["mistakes"]
    assert mistake["do"] == "set both, or listen on 127.0.0.1, or set insecure = true"


def test_a_connectors_sizes_and_times_may_have_units() -> None:
    text = (CONF / "connectors/kafka-out.toml").read_text()
    Path("f.toml").write_text(text + 'bytes = "8MB"\nwait_ms = "1s"\n')
    assert tutti("config", "check", "f.toml").code == 0
    Path("f.toml").write_text(text + 'wait_ms = "1 second"\n')
    assert "transaction.wait_ms is '1 second': it takes 0 to " in tutti("config", "check", "f.toml").out
    assert "as a whole number with a unit (ms, s, m, h, d)" in tutti("config", "check", "f.toml").out
