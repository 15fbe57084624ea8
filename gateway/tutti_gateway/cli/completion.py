"""`tutti completion`: prints a shell script that completes commands, options and names (`cli/common/names.py`)."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script for completion in a shell.

    \b
    bash: eval "$(tutti completion bash)"           in ~/.bashrc
    zsh:  eval "$(tutti completion zsh)"            in ~/.zshrc
    fish: tutti completion fish > ~/.config/fish/completions/tutti.fish
    """
    from tutti_gateway.cli.commands import COMPLETION_VARIABLE, tutti

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"click has no completion for {shell}; use bash, zsh or fish")
    print(kind(tutti, {}, "tutti", COMPLETION_VARIABLE).source())
