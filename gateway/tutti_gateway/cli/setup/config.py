"""`tutti config`: writes a configuration file to start from, and checks configuration files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from tutti.errors import UsageError
from tutti_gateway.cli.common.options import json_option
from tutti_gateway.cli.common.output import print_json

RESOLVE_S_MAX = 5.0  # time limit for resolving all host names in the file

#: Maps each value of `--kind` of `tutti config init` to a template below `shipped/conf`. Kinds in `_GROUPS` get one file a gateway.
TEMPLATES = {
    "single": "gateway.toml",
    "group": "group.toml",
    "secured": "secured.toml",
    "archive": "archive/archive.toml",
    **{name: f"connectors/{name}.toml" for name in ("files", "http", "kafka-in", "kafka-out", "zeromq-in", "zeromq-out")},
}
_GROUPS = ("group", "secured")


@click.group()
def config() -> None:
    """Write a configuration file to start from, or check one."""


@config.command()
@click.option(
    "--kind",
    type=click.Choice(list(TEMPLATES)),
    default="single",
    show_default=True,
    help="single: one gateway, with every key; group: three gateways; secured: three gateways with keys, tokens and certificates; "
    "archive: for `tutti archive run`; the others: for the connector of this name.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, readable=False),
    default=Path(),
    metavar="FILE|DIR",
    help="FILE.toml to write, or directory for the files; group and secured take a directory. [default: the current directory]",
)
@click.option("--force", is_flag=True, help="Replace files that exist.")
@json_option
def init(kind: str, out: Path, force: bool, as_json: bool) -> None:
    """Write a commented configuration file to start from.

    The kinds group and secured write one file for each of three gateways: jfk.toml, lga.toml and ewr.toml. Change the names and
    addresses to yours. The files of the kind group work unchanged on one machine.
    """
    import tomllib

    from tutti_gateway.cli.setup.kinds import KINDS
    from tutti_gateway.cli.setup.shipped_files import read_shipped, write_files

    if out.suffix not in ("", ".toml") and not os.path.isdir(out):
        raise UsageError(f"--out {out}: a file's name must end in .toml, and a directory with a dot in its name must exist")
    template = read_shipped(f"conf/{TEMPLATES[kind]}")
    if kind in _GROUPS:
        if out.suffix == ".toml" and not os.path.isdir(out):
            raise UsageError(f"--out {out}: the kind {kind} writes several files: name a directory")
        members: dict[str, str] = tomllib.loads(template.decode())["group"]["members"]
        contents = {out / f"{name}.toml": _of_member(template.decode(), members, name) for name in members}
        where = "in every file, put the addresses of your hosts into listen and members"
        steps = [where if kind == "secured" else f"{where}; keep them for a trial on this machine"]
        steps += _steps_of_start(list(contents), members)
        if kind == "secured":
            script = out / "certificates.sh"
            contents[script] = read_shipped("conf/certificates.sh")
            steps[1:1] = _steps_of_security(out, members)
    else:
        file = out if out.suffix == ".toml" and not os.path.isdir(out) else out / Path(TEMPLATES[kind]).name
        # The comments of the template name the file, for example in a command.
        contents = {file: template.replace(f"--config {Path(TEMPLATES[kind]).name}".encode(), f"--config {file.name}".encode())}
        command = KINDS["gateway" if kind == "single" else kind].command
        steps = [f"tutti config check {file}  (after each change)", f"{command} --config {file}"]
    write_files(contents, force=force)
    if as_json:
        print_json({"kind": kind, "files": [str(path) for path in contents], "next": steps})
        return
    for path in contents:
        print(f"wrote {path}")
    for step in steps:
        print(f"next: {step}")


def _of_member(template: str, members: dict[str, str], name: str) -> bytes:
    """Return the configuration of the member `name`. The template is the configuration of the first member."""
    first = next(iter(members))
    # The paths of data, keys and certificates contain the name after a slash.
    changes = {
        f'name = "{first}"': f'name = "{name}"',
        f'listen = "{members[first]}"': f'listen = "{members[name]}"',
        f"/{first}": f"/{name}",
        f" {first}.toml": f" {name}.toml",
    }
    for old, new in changes.items():
        template = template.replace(old, new)
    return template.encode()


def _steps_of_start(files: list[Path], members: dict[str, str]) -> list[str]:
    others = " and ".join(list(members)[1:])
    return [
        f"tutti config check {' '.join(map(str, files))}",
        f"tutti serve --config {files[0]}  (likewise {others}, each on its own host)",
    ]


def _steps_of_security(directory: Path, members: dict[str, str]) -> list[str]:
    hosts = " ".join(f"{name}:{address.rpartition(':')[0]}" for name, address in members.items())
    files = f"--file {directory / 'tokens.toml'} --keys {directory / 'keys/group.keys'} --ca {directory / 'ca.pem'}"
    return [
        f"tutti keys new --out {directory / 'keys'} {' '.join(members)}",
        f"sh {directory / 'certificates.sh'} {hosts}  (with the addresses of your hosts; needs openssl)",
        f"tutti tokens new feed --produce '*' --read '*' --client {directory / 'feed.client'} {files}",
        f"tutti tokens new ops --admin --read '*' --client {directory / 'ops.client'} {files}  (for tutti members and tutti leave)",
        f"TUTTI_TOKEN_FILE={directory / 'feed.client'} is for clients; copy the secret files to their hosts, and the others to all",
    ]


@config.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@json_option
def check(files: tuple[str, ...], as_json: bool) -> int:
    """Report every mistake in configuration files.

    FILE configures a gateway, the archiver or a connector, or contains the tokens, keys or credentials that a configuration names.
    The report has the line and the key of each mistake, the error, and the correction. With --json, the report has one line for
    each FILE. The exit code is 2 if a FILE has a mistake, and 0 if the report contains only advice or nothing.
    """
    return max([_check(file, as_json) for file in files])


def _check(file: str, as_json: bool) -> int:
    from tutti_gateway.cli.setup.kinds import KINDS, kind_of, mistakes_in
    from tutti_gateway.config import advice, check_config, unknown_hosts

    kind = kind_of(file)
    advised = []
    if kind == "gateway":
        config, mistakes = check_config(file)
        if config is not None:
            advised = [*advice(config), *unknown_hosts(config, RESOLVE_S_MAX)]
            valid = _gateway_text(config)
    else:
        mistakes = mistakes_in(KINDS[kind], file)
        valid = KINDS[kind].text
    if as_json:
        found = {"mistakes": [one._asdict() for one in mistakes], "advice": [one._asdict() for one in advised]}
        print_json({"file": file, "kind": kind, "ok": not mistakes, **found})
        return 2 if mistakes else 0
    if mistakes and kind != "gateway":
        print(f"{file}: checked as {KINDS[kind].text}")
    for mistake in mistakes:
        print(mistake.text(file))
    if not mistakes:
        print(f"{file}: valid: {valid}")
    for one in advised:
        print(f"advice: {one.text(file)}")
    return 2 if mistakes else 0


def _gateway_text(config: Any) -> str:
    addresses = f"clients at {config.client_address}, reads at {config.reads_address}, admin at {config.admin_address}"
    return f"gateway {config.name} of group {config.group.name}, {addresses}, data in {os.path.abspath(config.data)}"
