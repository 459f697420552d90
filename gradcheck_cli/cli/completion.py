"""`gradcheck completion`: the script that makes a shell complete commands, options, files and tensors."""

from __future__ import annotations

import sys

import rich_click as click

from gradcheck_cli.cli.options import OneOf

_HOW = {
    "bash": 'eval "$(gradcheck completion bash)"  in ~/.bashrc',
    "zsh": 'eval "$(gradcheck completion zsh)"  in ~/.zshrc',
    "fish": "gradcheck completion fish > ~/.config/fish/completions/gradcheck.fish",
}


@click.command("completion")
@click.argument("shell", type=OneOf(tuple(_HOW)))
def command(shell: str) -> int:
    """Print a shell's completion script; the script's first line says where it goes."""
    from click.shell_completion import get_completion_class

    from gradcheck_cli.cli.group import gradcheck

    script = get_completion_class(shell)
    assert script is not None
    source = script(gradcheck, {}, "gradcheck", "_GRADCHECK_COMPLETE").source()
    first = f"# {_HOW[shell]}\n" if shell != "zsh" else ""  # zsh looks for #compdef in the first line
    sys.stdout.write(f"{first}{source.strip()}\n")
    return 0
