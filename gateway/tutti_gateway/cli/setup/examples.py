"""`tutti examples`: writes the example programs that the package contains."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path, readable=False),
    default=Path("examples"),
    show_default=True,
    metavar="DIR",
    help="Directory for the examples; a missing directory is created.",
)
@click.option("--force", is_flag=True, help="Replace files that exist.")
def examples(out: Path, force: bool) -> None:
    """Write the example programs to a directory.

    README.md in the directory gives the command for each example. Run the commands in the current directory.
    """
    from tutti_gateway.cli.setup.shipped_files import read_shipped, shipped_names, write_files

    names = shipped_names("examples")
    # The examples name their own paths in commands, relative to the parent of `examples`.
    place = f"{out}/".encode()
    contents = {out / name.removeprefix("examples/"): read_shipped(name).replace(b"examples/", place) for name in names}
    write_files(contents, force=force)
    print(f"wrote {len(names)} files to {out}; {out / 'README.md'} has the command for each example")
