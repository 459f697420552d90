"""Bash, zsh and fish driven through a terminal, as somebody types: what is typed, Tab, and the line that comes of it."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import sys
import termios
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gradcheck_cli.cli.completion import script

PATIENCE = 60.0
WORDS = "words.txt"  # into which the stand-in for `gradcheck` writes what it was called with
_ESCAPES = re.compile(r"\x1b\[[0-9;?>=]*[a-zA-Z]|\x1b[()][A-Z0-9]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[=>]|\r")
_READY = "ready%"
_STARTS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "source ./script", [
        "PS1='ready''%'", "bind 'set enable-bracketed-paste off'", "bind 'set bell-style none'",
        "bind 'set show-all-if-ambiguous on'",
        "bind 'set page-completions off'", "bind 'set completion-query-items -1'",
    ]),
    "zsh": (["zsh", "-f", "-i"], "source ./script", [
        "unsetopt zle_bracketed_paste prompt_sp beep list_ambiguous", "LISTMAX=10000",
        "autoload -Uz compinit && compinit -u -D",
        "PS1='ready''%%'",
    ]),
    "fish": (["fish", "--no-config", "-i"], "source ./script", [
        "function fish_prompt; echo -n 'ready''%'; end", "set -g fish_greeting", "set -g fish_autosuggestion_enabled 0",
    ]),
}  # fmt: skip
SHELLS = tuple(_STARTS)
_LAST = "/last"
_STAND_IN = """#!/bin/sh
if [ -n "$_GRADCHECK_COMPLETE" ]; then exec {python} -m gradcheck_cli "$@"; fi
{python} -c 'import sys; open("words.txt", "w", encoding="utf-8").write("\\0".join(sys.argv[1:]))' "$@"
echo cal""led
"""


class Shell:
    """A shell in a terminal of 200 columns, with completion turned on as its script says."""

    def __init__(self, name: str, folder: Path) -> None:
        (folder / "script").write_text(script(name))
        command, turned_on, setup = _STARTS[name]
        self.name, self.folder = name, folder
        programs = folder / "programs"
        programs.mkdir(exist_ok=True)
        (programs / "gradcheck").write_text(_STAND_IN.format(python=sys.executable))
        (programs / "gradcheck").chmod(0o755)
        env = {
            "PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(folder), "TERM": "xterm", "LANG": "C.UTF-8",
            "LC_ALL": "C.UTF-8", **{k: v for k, v in os.environ.items() if k.startswith("PYTHON")},
        }  # fmt: skip
        self.pid, self.terminal = pty.fork()
        if not self.pid:  # in the child
            os.chdir(folder)
            os.execvpe(command[0], command, env)
        termios.tcsetwinsize(self.terminal, (400, 200))
        self.seen = ""
        for line in [*setup, turned_on]:
            self.send(line + "\n")
        self.send("echo be''gun\n")
        self.until("begun")
        self.until(_READY)

    def send(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def until(self, text: str) -> str:
        """All that is shown until a text comes, with it."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.seen:
            if not self._more(deadline - time.monotonic()):
                raise AssertionError(f"{self.name} shows no {text!r}: {self.seen!r}")
        shown, self.seen = self.seen[: (end := self.seen.index(text) + len(text))], self.seen[end:]
        return shown

    def _more(self, seconds: float) -> bool:
        with suppress(OSError):  # the terminal is closed
            if select.select([self.terminal], [], [], max(seconds, 0.0))[0]:
                data = os.read(self.terminal, 65536).decode("utf-8", "replace")
                self.seen += _ESCAPES.sub("", data)
                return bool(data)
        return False

    def completed(self, typed: str) -> list[str]:
        """The words that the command gets when what comes of a typed line and Tab is run."""
        self.send(f"{typed}\t {_LAST}\n")
        self.until("called\n")
        *words, last = (self.folder / WORDS).read_text("utf-8").split("\0")
        self.until(_READY)
        assert last == _LAST
        return words

    def listed(self, typed: str, words: Sequence[str]) -> None:
        """Types a line and Tab, and waits until all words are shown; the shell is of no further use."""
        self.send(typed + "\t")
        deadline = time.monotonic() + PATIENCE
        while not all(word in self.seen for word in words):
            if not self._more(deadline - time.monotonic()):
                raise AssertionError(f"{self.name} lists {self.seen!r}")

    def close(self) -> None:
        with suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)
            os.close(self.terminal)
        os.waitpid(self.pid, 0)
