"""The command `gradcheck`: `main` runs it, and turns whatever happens into one line and a fixed exit code."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, NoReturn

from gradcheck_cli.cli import interrupts
from gradcheck_cli.cli.interrupts import INTERRUPTED

if TYPE_CHECKING:
    from gradcheck_cli.errors import GradcheckError

# Objects more than before, after which cycles are looked for: graphs have many, and few die.
_COLLECTED = 50_000, 20, 20
BUG, BROKEN_PIPE = 70, 141
_COMPLETE = "_GRADCHECK_COMPLETE"


class Titles:
    """Colors of the titles of errors: as --color says, once it has been read."""

    color = "auto"


def main(args: Sequence[str] | None = None) -> int:
    """Runs a command line (default: the process's own) and gives its exit code; nothing is raised."""
    _prepare_streams()
    Titles.color = "auto"
    args = sys.argv[1:] if args is None else list(args)
    try:
        if _COMPLETE in os.environ:
            from gradcheck_cli.cli.completion import answer

            return answer()
        import click

        from gradcheck_cli.cli.group import gradcheck

        try:
            with gradcheck.make_context("gradcheck", args) as context:
                code = int(gradcheck.invoke(context) or 0)
        except click.exceptions.Exit as done:
            code = done.exit_code
        except click.Abort:
            raise KeyboardInterrupt from None
        _flush()
        return code
    except KeyboardInterrupt as interrupt:
        return _interrupted(str(interrupt))
    except BrokenPipeError:  # whoever read our output has gone
        _discard_output()
        return BROKEN_PIPE
    except Exception as error:
        return _interrupted() if interrupts.caused(error) else _explain(error)


def run() -> NoReturn:
    """Runs `main` as the whole process, and ends it without tearing down what was imported, which takes long."""
    ended: list[int] = []
    gc.set_threshold(*_COLLECTED)
    interrupts.install()
    if not atexit._ncallbacks():  # what is registered before comes after: a tracer may have its results to write
        atexit.register(_leave, ended)
    ended.append(main())
    interrupts.done(ended[0])
    sys.exit(ended[0])


@contextlib.contextmanager
def keeping() -> Iterator[None]:
    """Turns garbage collection off during imports, and lets it pass over what they made from then on."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        _set_aside()
        if enabled:
            gc.enable()


@cache  # a second run would set what the first one left behind aside for good, and to count what is aside takes long
def _set_aside() -> None:
    gc.freeze()


def say(error: GradcheckError) -> None:
    """Prints an error that does not end the run to stderr."""
    print(_titled(error.code, str(error)), file=sys.stderr)


def note(text: str) -> None:
    """Prints a remark to stderr."""
    from gradcheck_cli.errors import clean

    print(f"note: {clean(text)}", file=sys.stderr)


def described(bug: BaseException) -> str:
    """The sentence that an exception is a bug of gradcheck, and where its traceback was written."""
    import platform
    import tempfile
    import traceback

    head = f"gradcheck on Python {platform.python_version()}, {platform.platform()}\n{' '.join(sys.argv)}\n\n"
    try:
        handle, path = tempfile.mkstemp(prefix="gradcheck-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(head + "".join(traceback.format_exception(bug)))
    except OSError as failure:
        path = f"no file ({failure.strerror})"
    reason = f"{type(bug).__name__}: {bug}".splitlines()[0]
    return f"a bug of gradcheck: {reason}\nThe traceback is in {path}. Please report it."


def _interrupted(said: str = "") -> int:
    """Says that the user has interrupted, and gives the exit code of that."""
    interrupts.heard()
    return _end(said or "interrupted", INTERRUPTED)


def _explain(error: Exception) -> int:
    """Prints an error to stderr and gives its exit code."""
    import click

    from gradcheck_cli.errors import GradcheckError

    if isinstance(error, GradcheckError) and error.exit_code != BUG:
        return _end(_titled(error.code, str(error)), error.exit_code)
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        help_at = f"\nTry '{context.command_path} --help'." if context is not None else ""
        from gradcheck_cli.cli.options import said_better

        return _end(_titled("GC201", said_better(error)) + help_at, 2)
    if isinstance(error, MemoryError):
        from gradcheck_cli.graph.memory import exhausted

        return _end(_titled("GC602", str(exhausted(error))), 6)
    if isinstance(error, OSError) and error.filename is None:
        return _end(_titled("GC201", f"the output cannot be written: {error.strerror or error}"), 2)
    return _end(_titled("GC901", described(error)), BUG)


def _titled(code: str, message: str) -> str:
    """An error as it stands on stderr: `error GC201: ...`, red where there is a terminal, or where it was asked for."""
    from gradcheck_cli.errors import clean
    from gradcheck_cli.report.text import colored, linked, paint

    message = message.removeprefix(f"{code}: ")
    terminal = sys.stderr.isatty()
    color = colored(Titles.color, terminal)
    title = linked(paint(f"error {code}", "red", color), color and terminal)
    return f"{title}: {clean(message)}"


def _end(message: str, code: int) -> int:
    try:
        _flush()
    except OSError:
        _discard_output()
    with contextlib.suppress(OSError):
        print(message, file=sys.stderr, flush=True)
    return code


def _leave(ended: Sequence[int]) -> None:
    """Ends the process at once if `main` has returned; other functions registered for the exit have run by now."""
    if ended:
        with contextlib.suppress(OSError, ValueError):
            _flush()
        os._exit(ended[0])


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _discard_output() -> None:
    """Sends what is left in the buffer of stdout to nowhere: writing it would fail once more when Python ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _prepare_streams() -> None:
    """Opens streams that the caller has closed on the null device, so that only the exit code is left.

    Characters that a terminal cannot show are written as escapes: names of tensors may be in any script.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # else the next pipe gets its number, and a process that is begun later loses that pipe
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))
        if hasattr(stream := getattr(sys, name), "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
