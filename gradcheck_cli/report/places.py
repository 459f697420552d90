"""Where a check belongs in a project: the path of its model or spec as the services of a repository want it."""

from __future__ import annotations

import hashlib
import os
from urllib.parse import quote

from gradcheck_cli.results.record import Check

_OF_A_URL = ":/?#[]@!$&'()*+,;=%~"


def path(check: Check) -> str:
    """The path from the project's folder where it lies in there, with slashes: models/net.onnx; a URL as it is."""
    uri = check.model.uri or check.check
    if is_url(uri):
        return uri
    file = os.path.abspath(uri)
    inside = next((base for base in (*_projects(), os.getcwd()) if _within(file, base)), "")
    return (os.path.relpath(file, inside) if inside else os.path.normpath(uri)).replace(os.sep, "/")


def uri(check: Check) -> str:
    """The same as a URI."""
    found = path(check)
    if is_url(found):
        return quote(found, safe=_OF_A_URL, errors="replace")
    return ("file://" if found.startswith("/") else "") + quote(found, safe="/~", errors="replace")


def is_url(text: str) -> bool:
    """It names a model elsewhere: s3://..."""
    scheme, mark, _ = text.partition("://")
    return bool(mark) and scheme.isalnum()


def fingerprint(check: Check, code: str) -> str:
    """The same for what is wrong with a check in every run, wherever it runs."""
    return hashlib.sha256(f"{path(check)}\0{check.id}\0{code}".encode(errors="replace")).hexdigest()


def _projects() -> list[str]:
    """The folder of the project that a job of a CI service is about."""
    return [folder for name in ("GITHUB_WORKSPACE", "CI_PROJECT_DIR") if (folder := os.environ.get(name))]


def _within(file: str, folder: str) -> bool:
    try:
        return os.path.commonpath([file, folder]) == os.path.normpath(folder)
    except ValueError:  # on another drive, or no absolute path
        return False
