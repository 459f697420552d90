"""Models behind URLs, through fsspec: listed where they are, and fetched into a cache when their turn comes.

A copy in the cache is used again as long as the server says that none of its files has changed; a server that cannot
say so is asked for the file each time.  A copy is put together beside its place and then renamed: it is whole or absent.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

from gradcheck_cli.errors import GradcheckError, ModelError, UsageError, did_you_mean, shown
from gradcheck_cli.formats import SPEC_SUFFIXES
from gradcheck_cli.formats.companions import leads_out, named
from gradcheck_cli.zoo.digest import content_of

PACKAGES = {  # what a kind of URL needs: the package and the extra that brings it
    "http": ("aiohttp", "zoo"), "https": ("aiohttp", "zoo"), "s3": ("s3fs", "s3"),
    "gs": ("gcsfs", "gs"), "gcs": ("gcsfs", "gs"), "hf": ("huggingface_hub", "hf"), "file": ("fsspec", "zoo"),
}  # fmt: skip
_VERSIONS = ("ETag", "etag", "md5Hash", "blob_id", "Content-MD5", "Digest", "Last-Modified", "LastModified", "mtime")
_UNLISTED = ("http", "https")  # kinds without folders
_TEST_DATA = "test_data_set_0"
_BLOCK = 1 << 20


def is_url(text: str) -> bool:
    """It names something that is reached over a network, or like that."""
    return "://" in text


def is_here(url: str) -> bool:
    """It names a file of this machine."""
    return url.lower().startswith("file:")


def joined(folder: str, path: str, whose: str) -> str:
    """A path seen from a folder or URL that a list of models lies in; UsageError where it leads out of it."""
    if is_url(path) or leads_out(path):
        raise UsageError(f"{shown(whose)}: {shown(path)!r} leads out of the folder of the list")
    return f"{folder.rstrip('/')}/{path}" if is_url(folder) else os.path.join(folder, path)


def listed(url: str) -> list[str]:
    """The files that a URL means: itself, those that match its pattern, or those in its folder, however deep."""
    kind = _kind(url)
    if kind in _UNLISTED:
        return [url]
    with _explaining(url):
        system, path = _system(url)
        if any(mark in path for mark in "*?["):
            found = system.glob(path)
        elif system.isfile(path):
            return [url]
        else:
            found = system.find(path)
    return [f"{kind}://{str(each).removeprefix('/') if kind != 'file' else each}" for each in sorted(found)]


def neighbors(folder: str) -> list[str]:
    """What there is in a folder behind a URL: files, and test data in its folder."""
    if _kind(folder) in _UNLISTED:
        return []
    with _explaining(folder):
        system, path = _system(folder)
        names = [str(each).rstrip("/").rpartition("/")[2] for each in system.ls(path, detail=False)]
        data = system.glob(f"{path}/{_TEST_DATA}/*.pb") if _TEST_DATA in names else []
        return names + [f"{_TEST_DATA}/{Path(each).name}" for each in sorted(data)]


def fetched(url: str, along: Iterable[str] = (), sha256: str = "") -> Path:
    """The local copy of a file, with its external data and some files of its folder beside it."""
    place = cache_folder() / _hex(url)[:32]
    with _explaining(url):
        place.mkdir(parents=True, exist_ok=True)
        with _alone(place):
            copy = _kept(place, url, [*along]) or _copied(place, url, [*along])
    if sha256 and content_of(copy) != sha256.lower():
        shutil.rmtree(copy.parent, ignore_errors=True)
        raise ModelError(f"{shown(url)} is not the file that its list means: its SHA-256 is not {sha256.lower()}")
    return copy


def cache_folder() -> Path:
    """Where copies are kept: `gradcheck` in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return Path(home if os.path.isabs(home) else Path.home() / ".cache") / "gradcheck" / "models"


def _kept(place: Path, url: str, along: list[str]) -> Path | None:
    """The copy in the cache, if all of its files are still what the server has."""
    try:
        told = json.loads((place / "copy.json").read_text("utf-8"))
        copy, versions = place / told["folder"] / told["name"], told["versions"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not copy.is_file() or not {*along} <= {*versions} or not all(versions.values()):
        return None
    now = {name: _version(url if name == told["name"] else _sibling(url, name)) for name in versions}
    return copy if now == versions else None


def _copied(place: Path, url: str, along: list[str]) -> Path:
    """A file fetched with what belongs to it."""
    name, new = _name(url), place / f".{secrets.token_hex(8)}"
    versions = {}
    try:
        versions[name] = _get(url, new / name)
        data = named(new / name, spec=name.lower().endswith(SPEC_SUFFIXES)) if _may_name_files(name) else []
        for other in dict.fromkeys([*data, *along]):
            with suppress(FileNotFoundError):  # the model says of itself what it lacks
                versions[other] = _get(_sibling(url, other), new / other)
        folder = _hex(json.dumps(versions, sort_keys=True) if all(versions.values()) else new.name)[:16]
        if not (place / folder).exists():
            os.rename(new, place / folder)
        _write(place / "copy.json", {"url": url, "folder": folder, "name": name, "versions": versions})
        return place / folder / name
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _get(url: str, file: Path) -> str:
    """Fetches a file, and gives the version that the server says it is of; "" where it says none."""
    system, path = _system(url)
    version = _version(url)
    file.parent.mkdir(parents=True, exist_ok=True)
    with system.open(path, "rb") as source, open(file, "wb") as copy:
        shutil.copyfileobj(source, copy, _BLOCK)
    return version


def _version(url: str) -> str:
    """What tells a file from other content under the same URL; "" where the server has no such thing."""
    system, path = _system(url)
    info: Mapping[str, Any] = system.info(path)
    known = [f"{name} {info[name]}" for name in _VERSIONS if info.get(name)]
    return f"{known[0]}, {info.get('size')} bytes" if known else ""


def _system(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    import fsspec

    system, path = fsspec.core.url_to_fs(url, use_listings_cache=False, **_patience(url))
    system.invalidate_cache()
    return system, path


def _patience(url: str) -> dict[str, Any]:
    """A large file may take its time, as long as something comes."""
    if _kind(url) not in _UNLISTED:
        return {}
    from aiohttp import ClientTimeout

    return {"client_kwargs": {"timeout": ClientTimeout(total=None, sock_connect=30, sock_read=120)}}


def _kind(url: str) -> str:
    """The scheme of a URL; UsageError for one that is not known, or whose package is not there."""
    kind = url.partition("://")[0].lower()
    if kind not in PACKAGES:
        near = did_you_mean(kind, PACKAGES)
        raise UsageError(f"{shown(url)}: {shown(kind)}:// is none of {', '.join(PACKAGES)}.{near}")
    package, extra = PACKAGES[kind]
    for needed in ("fsspec", package):
        if find_spec(needed) is None:
            raise UsageError(f"{shown(url)} needs {needed}: pip install 'gradcheck-cli[{extra}]'")
    return kind


def _sibling(url: str, name: str) -> str:
    return f"{url.partition('?')[0].rpartition('/')[0]}/{name}"


def _may_name_files(name: str) -> bool:
    return name.lower().endswith((".onnx", ".pb", *SPEC_SUFFIXES))


def _name(url: str) -> str:
    """The name of the file that a URL means, as one of a folder here."""
    name = PurePosixPath(url.partition("?")[0].partition("#")[0]).name
    safe = "".join(c if c.isprintable() and c not in '/\\:*?"<>|' else "_" for c in name)[-120:]
    return safe if safe.strip(". ") else "model.onnx"


@contextmanager
def _explaining(url: str) -> Iterator[None]:
    """Whatever goes wrong with a URL is a ModelError that says so."""
    try:
        yield
    except GradcheckError:
        raise
    except Exception as error:  # fsspec's packages have trees of their own, one for each kind
        cause = error.__cause__ or error  # which a web server that does not answer has too
        if (
            isinstance(error, FileNotFoundError)
            and getattr(cause, "status", 404) in (404, 410)
            and not _is_broken(cause)
        ):
            raise ModelError(f"{shown(url)} does not exist") from None
        reason = str(cause).splitlines()[0] if str(cause).strip() else type(cause).__name__
        raise ModelError(f"{shown(url)} cannot be fetched: {shown(reason)}") from None


def _is_broken(error: BaseException) -> bool:
    """A connection that could not be had, or that ended."""
    return isinstance(error, OSError) and not isinstance(error, FileNotFoundError)


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """No other process fetches the same."""
    import fcntl

    with open(place / "lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write(file: Path, value: Any) -> None:
    new = file.with_name(f"{file.name}.{os.getpid()}")
    new.write_text(json.dumps(value, indent=1), encoding="utf-8")
    os.replace(new, file)


def _hex(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
