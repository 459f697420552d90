"""An exception that nobody foresaw: one line for the user, the traceback in a file."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import traceback


def describe_bug(error: BaseException) -> str:
    """The sentence that says it is a bug and where its traceback was written."""
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    return f"a bug of gradcheck: {reason}\nThe traceback is in {_kept(error)}. Please report it."


def _kept(error: BaseException) -> str:
    """The file that holds the traceback."""
    text = "".join(traceback.format_exception(error))
    head = f"gradcheck on Python {platform.python_version()}, {platform.platform()}\n{' '.join(sys.argv)}\n\n"
    try:
        handle, path = tempfile.mkstemp(prefix="gradcheck-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(head + text)
    except OSError as failure:
        return f"no file ({failure.strerror})"
    return path
