"""The environment as options: GRADCHECK_RTOL is --rtol.  What names no option is an error, as a misspelt option is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import rich_click as click
from click.core import ParameterSource

from gradcheck_cli.errors import UsageError, did_you_mean
from gradcheck_cli.settings import options_at

PREFIX = "GRADCHECK"
SETTINGS = {"auto_envvar_prefix": PREFIX}  # of a command that takes its options from the environment too
_GIVEN = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
_OF_KERNELS = ("GRADCHECK_KERNELS", "GRADCHECK_ISA", "GRADCHECK_NUM_THREADS")


def refuse_unknown_variables() -> None:
    """UsageError for a variable GRADCHECK_... that would be ignored."""
    known = [*(f"{PREFIX}_{option.name.upper()}" for option in options_at("check")), *_OF_KERNELS]
    for name in os.environ:
        if name.startswith(f"{PREFIX}_") and name not in known:
            near = did_you_mean(name, known) or " Options are spelt like GRADCHECK_RTOL."
            raise UsageError(f"{name} is set in the environment, but there is no such option.{near}")


def given_in(ctx: click.Context, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were typed, or set in the environment."""
    return {name: value for name, value in options.items() if ctx.get_parameter_source(name) in _GIVEN}


def words(text: str) -> list[str]:
    """Values of an option that may be repeated, separated by spaces; quotes and brackets keep theirs."""
    found, quote, depth = [""], "", 0
    for c in text:
        if quote:
            quote = "" if c == quote else quote
        elif c in "\"'":
            quote = c
        depth += (c in "[(") - (c in "])")
        if c.isspace() and not quote and depth <= 0:
            found.append("")
        else:
            found[-1] += c
    return [_unquoted(word) for word in found if word]


def _unquoted(word: str) -> str:
    return word[1:-1] if len(word) > 1 and word[0] == word[-1] and word[0] in "\"'" else word
