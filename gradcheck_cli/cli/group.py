"""`gradcheck` and its commands, imported when they run; what names no command is an argument of `check`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import ClassVar

import rich_click as click
from click.shell_completion import CompletionItem

from gradcheck_cli.errors import VERSION, did_you_mean

_PATH_MARKS = (".", "/", "\\", "*", "?", "[", "~")


class Helpful(click.RichGroup):
    """A group that prints its help where nothing is given to it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)


class Commands(Helpful):
    """A group that needs no command: `gradcheck net.onnx --x a` is `gradcheck check net.onnx --x a`."""

    homes: ClassVar[Mapping[str, str]] = {  # command -> module:name in it
        **{
            name: f"{name}:command"
            for name in [
                "check",
                "zoo",
                "grad",
                "step",
                "diff",
                "inspect",
                "init",
                "config",
                "reproduce",
                "report",
                "prove",
                "fuzz",
                "conformance",
            ]
        },
        **{name: f"lookup:{name}" for name in ("ops", "explain", "schema", "completion")},
    }
    unnamed, modules = "check", "gradcheck_cli.cli."

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.homes)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.homes:
            return None
        module, _, attribute = self.homes[name].partition(":")
        command: click.Command = getattr(import_module(self.modules + module), attribute)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {option for param in self.get_params(ctx) for option in param.opts}
        if args and args[0] not in own and args[0] not in self.homes:
            self._refuse_mistyped(args[0], ctx)
            args = [self.unnamed, *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands and files; where an option begins also those of the command that needs no name."""
        found = super().shell_complete(ctx, incomplete)
        if not incomplete.startswith("-"):
            return [*found, CompletionItem(incomplete, type="file")]
        unnamed = self.get_command(ctx, self.unnamed)
        more = unnamed.shell_complete(ctx, incomplete) if unnamed is not None else []
        return [*found, *(item for item in more if item.value not in {each.value for each in found})]

    def _refuse_mistyped(self, word: str, ctx: click.Context) -> None:
        if word.startswith("-") or any(mark in word for mark in _PATH_MARKS) or os.path.exists(word):
            return
        if ctx.resilient_parsing:
            return
        meant = " Write gradcheck --help, or --help behind a command." if word == "help" else ""
        meant = meant or (" Write gradcheck --version." if word == "version" else did_you_mean(word, self.homes))
        known = "" if meant else f" Commands are {', '.join(self.homes)}."
        raise click.UsageError(f"{word!r} is neither a command nor a file.{meant or known}", ctx)


@click.group(
    cls=Commands,
    options_metavar="",
    subcommand_metavar="MODEL... [OPTIONS] | COMMAND ...",
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda token: token.replace("_", "-"),  # --extra_feed_dict, as in TensorFlow
        "rich_help_config": {"style_commands_table_column_width_ratio": (1, 5)},
    },
    epilog="`gradcheck check --help` lists the options of a check.",
)
@click.version_option(VERSION, message="gradcheck %(version)s", help="Show the version.")
def gradcheck() -> None:
    """Checks the gradients of a model: theoretical against numerical Jacobians.

    `gradcheck model.onnx --x input --y loss` checks the derivative of loss with respect to input.
    """
