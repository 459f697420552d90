"""The command `gradcheck`: `main` runs it, and turns whatever happens into one line and a fixed exit code."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from gradcheck_cli.errors import GradcheckError

INTERRUPTED, BUG, BROKEN_PIPE = 130, 70, 141
_COMPLETE = "_GRADCHECK_COMPLETE"


def main(args: Sequence[str] | None = None) -> int:
    """Runs a command line (default: the process's own) and gives its exit code; nothing is raised."""
    _open_closed_streams()
    _tolerate_any_text()
    try:
        code = _invoke(sys.argv[1:] if args is None else list(args))
        _flush()
        return code
    except KeyboardInterrupt:
        return _end("interrupted", INTERRUPTED)
    except BrokenPipeError:  # whoever read our output has gone
        _discard_output()
        return BROKEN_PIPE
    except Exception as error:
        return _explain(error)


def run() -> NoReturn:
    """`main` as a process, which ends without taking apart what it has imported."""
    ended: list[int] = []
    if not atexit._ncallbacks():  # what is registered before comes after: a tracer may have its results to write
        atexit.register(_leave, ended)
    ended.append(main())
    sys.exit(ended[0])


@contextlib.contextmanager
def keeping() -> Iterator[None]:
    """For imports: what they make stays to the end, so that no garbage is looked for in it, now or later."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            gc.freeze()
        if enabled:
            gc.enable()


def say(error: GradcheckError) -> None:
    """One line on stderr for an error that does not end the run."""
    print(_titled(error.code, str(error)), file=sys.stderr)


def _invoke(args: list[str]) -> int:
    from gradcheck_cli.cli.group import gradcheck

    if _COMPLETE in os.environ:
        gradcheck.main(args, prog_name="gradcheck", complete_var=_COMPLETE)
    import click

    try:
        with gradcheck.make_context("gradcheck", args) as context:
            return int(gradcheck.invoke(context) or 0)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.Abort:
        raise KeyboardInterrupt from None


def _explain(error: Exception) -> int:
    """One line on stderr for an error, and its exit code."""
    import click

    from gradcheck_cli.errors import GradcheckError

    if isinstance(error, GradcheckError) and error.exit_code != BUG:
        return _end(_titled(error.code, str(error)), error.exit_code)
    if isinstance(error, click.ClickException):
        return _end(_titled("GC201", error.format_message()) + _where_help_is(error), 2)
    if isinstance(error, MemoryError):
        from gradcheck_cli.graph.memory import exhausted

        return _end(_titled("GC602", str(exhausted(error))), 6)
    if isinstance(error, OSError) and error.filename is None:
        return _end(_titled("GC201", f"the output cannot be written: {error.strerror or error}"), 2)
    from gradcheck_cli.cli.bugs import describe_bug

    return _end(_titled("GC901", describe_bug(error)), BUG)


def _where_help_is(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return f"\nTry '{context.command_path} --help'." if context is not None else ""


def _titled(code: str, message: str) -> str:
    """An error as it stands on stderr: `error GC201: ...`, red where there is a terminal."""
    from gradcheck_cli.report.text import clean, paint

    message = message.removeprefix(f"{code}: ")
    colored = bool(os.environ.get("FORCE_COLOR")) or (sys.stderr.isatty() and not os.environ.get("NO_COLOR"))
    return f"{paint(f'error {code}', 'red', colored)}: {clean(message)}"


def _end(message: str, code: int) -> int:
    try:
        _flush()
    except OSError:
        _discard_output()
    with contextlib.suppress(OSError):
        print(message, file=sys.stderr, flush=True)
    return code


def _leave(ended: Sequence[int]) -> None:
    """Ends the process, where it ends as planned; threads are done by now, and so are all other functions for its end."""
    if ended:
        with contextlib.suppress(OSError, ValueError):
            _flush()
        os._exit(ended[0])


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _discard_output() -> None:
    """Nothing more reaches stdout: what is left in its buffer would fail once more when Python ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_closed_streams() -> None:
    """Whoever closed our stdout or stderr wants nothing of it; the exit code still counts."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))


def _tolerate_any_text() -> None:
    """Names of tensors may be in any script: what a terminal cannot show is written as an escape."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
