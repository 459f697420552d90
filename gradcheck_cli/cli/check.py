"""`gradcheck check`, the default command: takes the options that were given and starts the run.

With --watch it starts the same command again whenever a file changes that its result depends on.  Each check is a
process of its own, so that none inherits anything from the one before, and a file that is half written ends nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import rich_click as click

from gradcheck_cli.cli import interrupts, keeping
from gradcheck_cli.cli.options import MODELS, SETTINGS, TYPED, TypedCommand, given_in, options_of
from gradcheck_cli.errors import counted

_WATCHED = "_GRADCHECK_WATCHED"  # set for the processes of --watch
_PACE, _SETTLED, _PATIENCE = 0.3, 0.15, 10.0  # seconds: between two looks; without a change; for a check to end
_CLEAR = "\x1b[H\x1b[2J"
_Stamps: TypeAlias = Mapping[str, tuple[int, ...]]


@click.command("check", cls=TypedCommand, context_settings=SETTINGS, params=[MODELS, *options_of("check")])
@click.pass_context
def command(ctx: click.Context, /, models: tuple[str, ...], **options: Any) -> int:
    """Check the gradients of models: ONNX files, *.gradcheck.yaml specs, folders of them, or patterns.

    Every option can also be set by an environment variable (GRADCHECK_RTOL; several values are
    separated by spaces), in a side-car model.gradcheck.yaml, or in gradcheck.toml.
    """
    if options["watch"] and _WATCHED not in os.environ:
        return _watch(lambda: _stamps(models, given_in(ctx, options)), ctx.meta[TYPED])
    unbounded = options.get("timeout") is None and options.get("memory_limit") is None  # else its process asks its own
    if unbounded and options.get("forward") is None and any(path.lower().endswith(".onnx") for path in models):
        from gradcheck_cli.checks.forward.runtime import WORKER

        WORKER.warm()  # it gets ready while what follows is imported
    if os.environ.get("GRADCHECK_KERNELS") != "numpy":
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # products are not NumPy's: its threads would only spin
    with keeping():
        from gradcheck_cli.cli.run import begun

    return begun(models, given_in(ctx, options), ctx).run()


# --- watching


def _watch(look: Callable[[], _Stamps], typed: Sequence[str]) -> int:
    """Checks at each change, until Ctrl-C; gives the exit code of the last check, and 130 where it was interrupted."""
    code, terminal = 130, sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    changed: list[str] = []
    try:
        while True:
            seen = look()
            if changed:
                sys.stdout.write(_CLEAR if terminal else "")
                _say(f"{time.strftime('%H:%M:%S')}  {', '.join(changed[:3])} changed")
            code = _checked(typed)
            if code == 130:
                return code
            _say(f"watching {counted(len(seen), 'file')}; Ctrl-C ends")
            changed = _differing(seen, _next(look, seen))
    except KeyboardInterrupt:
        interrupts.heard()
        return code


def _say(text: str) -> None:
    from gradcheck_cli.errors import shown

    print(shown(text), file=sys.stderr, flush=True)


def _checked(typed: Sequence[str]) -> int:
    """Exit code of one check, run as it was typed; Ctrl-C, which a terminal sends to both, is left to it."""
    sys.stdout.flush()
    command = [sys.executable, "-P", "-m", "gradcheck_cli", "check", *typed]
    process = subprocess.Popen(command, env={**os.environ, _WATCHED: "1"})
    try:
        return process.wait()
    except KeyboardInterrupt:
        interrupts.heard(last=False)
        return _interrupted(process)


def _interrupted(process: subprocess.Popen[bytes]) -> int:
    """Waits for a check that ends because of Ctrl-C, or because this one asks it to; a second Ctrl-C ends it at once."""
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
        if process.poll() is None:
            process.terminate() if os.name == "nt" else process.send_signal(2)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE)
    except KeyboardInterrupt:
        interrupts.heard()
    if process.poll() is None:
        process.kill()
        process.wait()
    return 130


def _next(look: Callable[[], _Stamps], seen: _Stamps) -> _Stamps:
    """The files once one is not as it was, and nothing has changed for a moment: they may be half written."""
    while (now := look()) == seen:
        time.sleep(_PACE)
    while True:
        time.sleep(_SETTLED)
        if (later := look()) == now:
            return now
        now = later


def _differing(before: _Stamps, after: _Stamps) -> list[str]:
    return [path for path in {**before, **after} if before.get(path) != after.get(path)]


def _stamps(models: Sequence[str], given: Mapping[str, Any]) -> _Stamps:
    """Each file on which a check depends, with what changes when it is written or replaced."""
    from gradcheck_cli.cli.tasks import expand
    from gradcheck_cli.errors import GradcheckError

    files = [*models]
    with suppress(GradcheckError):  # none is there yet
        files = expand(models).files
    found: dict[str, tuple[int, ...]] = {}
    for path in chain(files, *map(_beside, files), _named(given)):
        with suppress(OSError, ValueError):
            found[path] = _stamp(path)
    return found


def _stamp(path: str) -> tuple[int, ...]:
    about = os.stat(path)
    return about.st_mtime_ns, about.st_size, about.st_ino


def _beside(path: str) -> Iterator[str]:
    """Files that are read with a model or spec: side-car, external data, models of checks, configuration files."""
    from gradcheck_cli.cli.tasks import SPEC_SUFFIXES

    root = os.path.splitext(path)[0]
    specs = [root + suffix for suffix in SPEC_SUFFIXES if root + suffix != path]
    for each in (path, *specs):
        with suppress(OSError):
            yield from (each, *_companions(each, _stamp(each)))
    for folder in Path(os.path.abspath(path)).parents:
        yield from (str(folder / name) for name in ("gradcheck.toml", "pyproject.toml"))


@lru_cache(256)
def _companions(path: str, stamp: tuple[int, ...]) -> list[str]:
    """The files that a model or spec names, which are looked for again where it has changed."""
    from gradcheck_cli.formats import named_files, record_beside

    own = [path, *_models_of(path)]
    named = [str(Path(each).parent / name) for each in own for name in named_files(Path(each))]
    return own[1:] + named + [str(record_beside(Path(each))) for each in own]


def _models_of(spec: str) -> list[str]:
    """The models that the checks of a spec name; none for what is no spec, or cannot be read now."""
    from gradcheck_cli.formats import is_spec

    with suppress(Exception):
        if is_spec(spec):
            from gradcheck_cli.formats.yaml.places import Document

            checks = Document.read(spec).root.value["checks"]
            return [str(Path(spec).parent / name) for check in checks if (name := check.get("model"))]
    return []


def _named(given: Mapping[str, Any]) -> Iterator[str]:
    """Files that options name: values as @FILE[:KEY], a baseline, a model with gradients."""
    yield from (given[name] for name in ("baseline", "grad_model") if name in given)
    for value in given.values():
        for text in value if isinstance(value, tuple) else ():
            path = text.partition("@")[2] if isinstance(text, str) else ""
            yield from (path, path.rpartition(":")[0]) if path else ()
