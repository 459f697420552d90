"""Models behind URLs, through fsspec: listed at once, and fetched into a cache when they are checked.

A copy in the cache is used again while the server says that none of its files has changed; if it cannot say so, files
are fetched each time.  A copy is made in a temporary folder and renamed, so that it is never incomplete.  Also reads
ONNX's list of the models in a hub, ONNX_HUB_MANIFEST.json, and the archives with test data that it names.  A list may come
from anywhere, so that this machine and its network are out of its reach unless `reaching` says otherwise.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import json
import os
import secrets
import shutil
import socket
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from io import BufferedReader
from ipaddress import ip_address, ip_network
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from gradcheck_cli.errors import GradcheckError, ModelError, SpecError, UsageError, did_you_mean, shown
from gradcheck_cli.formats import is_spec, named_files
from gradcheck_cli.formats.untrusted import content, leads_out, opened, sha256_of_text
from gradcheck_cli.zoo.parcel import content_of

PACKAGES = {  # scheme of a URL -> the package that it needs beside fsspec
    "http": "aiohttp", "https": "aiohttp", "s3": "s3fs",
    "gs": "gcsfs", "gcs": "gcsfs", "hf": "huggingface_hub", "file": "fsspec",
}  # fmt: skip
_VERSIONS = ("ETag", "etag", "md5Hash", "blob_id", "Content-MD5", "Digest", "Last-Modified", "LastModified", "mtime")
_UNLISTED = ("http", "https")  # schemes without folders
_TEST_DATA = "test_data_set_0"
_REACH = {"local": False}
_ASK = "--allow-local lets sources lead there"
_TRANSLATED = ip_network("64:ff9b::/96")  # addresses of IPv4 in IPv6
_BLOCK = 1 << 20
_LARGEST_LIST = 256 << 20  # bytes
_MOST_BYTES, _MOST_FILES = 16 << 30, 10_000  # in an archive
_LONGEST_HEADER = 16 << 20  # bytes, of a file in an archive


def is_url(text: str) -> bool:
    """True for a URL of any scheme."""
    return "://" in text


@contextmanager
def reaching(*, local: bool) -> Iterator[None]:
    """Allows file: URLs and servers of this machine and of its network in the block, in all threads."""
    before, _REACH["local"] = _REACH["local"], local
    try:
        yield
    finally:
        _REACH["local"] = before


def is_local(address: str) -> bool:
    """True for an IP address of this machine, its network, or of nobody: one that is not on the public internet."""
    found = ip_address(address.partition("%")[0])
    inner = getattr(found, "ipv4_mapped", None) or getattr(found, "sixtofour", None)
    if found in _TRANSLATED:
        inner = ip_address(int(found) & 0xFFFFFFFF)
    return not found.is_global or found.is_multicast or (inner is not None and is_local(str(inner)))


def is_here(url: str) -> bool:
    """True for the URL of a file on this machine."""
    return url.lower().startswith("file:")


def joined(folder: str, path: str, whose: str) -> str:
    """A path relative to the folder or URL of a list of models; a UsageError if it leads out of it."""
    if is_url(path) or leads_out(path):
        raise UsageError(f"{shown(whose)}: {shown(path)!r} leads out of the folder of the list")
    return f"{folder.rstrip('/')}/{path}" if is_url(folder) else os.path.join(folder, path)


def listed(url: str) -> list[str]:
    """The files that a URL stands for: itself, the matches of its pattern, or all files below its folder."""
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
    """Names of the files in a folder behind a URL, with those in its folder of test data."""
    if _kind(folder) in _UNLISTED:
        return []
    with _explaining(folder):
        system, path = _system(folder)
        names = [str(each).rstrip("/").rpartition("/")[2] for each in system.ls(path, detail=False)]
        data = system.glob(f"{path}/{_TEST_DATA}/*.pb") if _TEST_DATA in names else []
        return names + [f"{_TEST_DATA}/{Path(each).name}" for each in sorted(data)]


def fetched(url: str, along: Iterable[str] = (), sha256: str = "") -> Path:
    """The local copy of a file, with its companion files and the files `along` from the same folder."""
    place = cache_folder() / sha256_of_text(url)[:32]
    with _explaining(url):
        place.mkdir(parents=True, exist_ok=True)
        with _alone(place):
            copy = _kept(place, url, [*along]) or _copied(place, url, [*along])
    if sha256 and content_of(copy) != sha256.lower():
        shutil.rmtree(copy.parent, ignore_errors=True)
        raise ModelError(f"{shown(url)} is not the file that its list means: its SHA-256 is not {sha256.lower()}")
    return copy


def cache_folder() -> Path:
    """The folder for copies: `gradcheck/models` in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return Path(home if os.path.isabs(home) else Path.home() / ".cache") / "gradcheck" / "models"


def _kept(place: Path, url: str, along: list[str]) -> Path | None:
    """The copy in the cache, if the server has the same versions of all of its files."""
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
    """Fetches a file with its companion files."""
    name, new = _name(url), place / f".{secrets.token_hex(8)}"
    versions = {}
    try:
        versions[name] = _get(url, new / name)
        naming = is_spec(name) or name.lower().endswith((".onnx", ".pb"))
        data = named_files(new / name) if naming else []
        for other in dict.fromkeys([*data, *along]):
            with suppress(FileNotFoundError):  # the check reports missing files itself
                versions[other] = _get(_sibling(url, other), new / other)
        folder = sha256_of_text(json.dumps(versions, sort_keys=True) if all(versions.values()) else new.name)[:16]
        if not (place / folder).exists():
            os.rename(new, place / folder)
        told = place / f"copy.json.{os.getpid()}"
        about = {"url": url, "folder": folder, "name": name, "versions": versions}
        told.write_text(json.dumps(about, indent=1), encoding="utf-8")
        os.replace(told, place / "copy.json")
        return place / folder / name
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _get(url: str, file: Path) -> str:
    """Fetches a file; gives its version, "" if the server tells none."""
    system, path = _system(url)
    version = _version(url)
    file.parent.mkdir(parents=True, exist_ok=True)
    with system.open(path, "rb") as source, open(file, "wb") as copy:
        shutil.copyfileobj(source, copy, _BLOCK)
    return version


def _version(url: str) -> str:
    """A text that changes with the content of a file, from its ETag or similar; "" if the server has none."""
    system, path = _system(url)
    info: Mapping[str, Any] = system.info(path)
    known = [f"{name} {info[name]}" for name in _VERSIONS if info.get(name)]
    return f"{known[0]}, {info.get('size')} bytes" if known else ""


def _system(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    import fsspec

    options: dict[str, Any] = {}
    if _kind(url) in _UNLISTED:  # a web server may take its time for a file, as long as data arrives
        from aiohttp import ClientTimeout

        options = {"client_kwargs": {"timeout": ClientTimeout(total=None, sock_connect=30, sock_read=120)}}
        options |= {} if _REACH["local"] else {"get_client": _guarded}
    system, path = fsspec.core.url_to_fs(url, use_listings_cache=False, **options)
    system.invalidate_cache()
    return system, path


async def _guarded(**options: Any) -> Any:
    """A client that connects to public addresses alone, whatever a name or a redirect leads to."""
    from aiohttp import ClientSession, TCPConnector

    options.pop("loop", None)
    return ClientSession(connector=TCPConnector(socket_factory=_public_socket), **options)


def _public_socket(address: Any) -> socket.socket:
    family, kind, protocol, _, (host, *_) = address
    if is_local(host):
        raise OSError(errno.EACCES, f"{host} is an address of this machine or its network; {_ASK}")
    return socket.socket(family, kind, protocol)


def _kind(url: str) -> str:
    """The scheme of a URL; a UsageError if it is unknown, or if its package is not installed."""
    kind = url.partition("://")[0].lower()
    if kind not in PACKAGES:
        near = did_you_mean(kind, PACKAGES)
        raise UsageError(f"{shown(url)}: {shown(kind)}:// is none of {', '.join(PACKAGES)}.{near}")
    if is_here(url) and not _REACH["local"]:
        raise UsageError(f"{shown(url)} is a file of this machine: give its path; {_ASK}")
    if missing := [name for name in dict.fromkeys(("fsspec", PACKAGES[kind])) if find_spec(name) is None]:
        needed, install = " and ".join(missing), " ".join(missing)
        raise UsageError(f"{shown(url)} needs {needed}: python -m pip install {install}")
    return kind


def _sibling(url: str, name: str) -> str:
    return f"{url.partition('?')[0].rpartition('/')[0]}/{name}"


def _name(url: str) -> str:
    """The file name of a URL, with characters that every file system allows."""
    name = PurePosixPath(url.partition("?")[0].partition("#")[0]).name
    safe = "".join(c if c.isprintable() and c not in '/\\:*?"<>|' else "_" for c in name)[-120:]
    return safe if safe.strip(". ") else "model.onnx"


@contextmanager
def _explaining(url: str) -> Iterator[None]:
    """Turns all errors of fsspec into ModelErrors that name the URL."""
    try:
        yield
    except GradcheckError:
        raise
    except Exception as error:  # each of fsspec's packages has its own exceptions
        cause = error.__cause__ or error
        broken = isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError)  # the connection
        if isinstance(error, FileNotFoundError) and getattr(cause, "status", 404) in (404, 410) and not broken:
            raise ModelError(f"{shown(url)} does not exist") from None
        reason = str(cause).splitlines()[0] if str(cause).strip() else type(cause).__name__
        raise ModelError(f"{shown(url)} cannot be fetched: {shown(reason)}") from None


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Locks a folder of the cache, so that no other process fetches the same file."""
    import fcntl

    with open(place / "lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True, slots=True)
class Listed:
    """A model of a list: path or URL, digest, and the archive that holds it together with test data."""

    place: str
    sha256: str = ""
    archive: str = ""
    archive_sha256: str = ""


def is_list(path: str) -> bool:
    """True for the file name of a hub's list."""
    return path.partition("?")[0].lower().endswith(".json")


def models_in(path: Path, folder: str, name: str) -> list[Listed]:
    """The models of a list, each once; paths are relative to the folder or URL of the list."""
    try:
        entries = json.loads(content(path, _LARGEST_LIST))
        if not isinstance(entries, list):
            raise ValueError("it holds no list")
        found = [_listed(entry, index, folder, name) for index, entry in enumerate(entries)]
    except OSError as error:
        raise SpecError(f"{name} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, SpecError):
            raise
        raise SpecError(f"{name} is no list of models as ONNX's hub has it: {error or 'nested too deeply'}") from None
    return list({each.place: each for each in found}.values())


def _listed(entry: Any, index: int, folder: str, name: str) -> Listed:
    if not isinstance(entry, Mapping):
        raise ValueError(f"its entry {index} is no object")
    about = entry.get("metadata", {})
    texts = [*_texts(entry, index, "model_path"), *_texts(about, index, "model_sha", "model_with_data_path",
                                                          "model_with_data_sha")]  # fmt: skip
    path, sha256, archive, archive_sha256 = texts
    if not path:
        raise ValueError(f"its entry {index} has no model_path")
    return Listed(joined(folder, path, name), sha256, joined(folder, archive, name) if archive else "", archive_sha256)


def _texts(entry: Any, index: int, *keys: str) -> Iterator[str]:
    """The values of some keys, which must be strings; "" for a missing one."""
    for key in keys:
        value = entry.get(key) if isinstance(entry, Mapping) else None
        if not isinstance(value, str | None):
            raise ValueError(f"{key} of its entry {index} is no text")
        yield value or ""


def unpacked(archive: Path, sha256: str) -> Path | None:
    """Unpacks an archive; gives the model in it with this digest, None if there is none."""
    place = cache_folder() / f"archive-{content_of(archive)[:32]}"
    if not place.exists():
        new = place.with_name(f".{secrets.token_hex(8)}")
        try:
            new.mkdir(parents=True)
            _unpack(archive, new)
            if not place.exists():
                os.rename(new, place)
        except Exception as error:  # tarfile and the decompressors have their own exceptions
            raise ModelError(f"{archive} cannot be unpacked: {str(error) or type(error).__name__}") from None
        finally:
            shutil.rmtree(new, ignore_errors=True)
    models = (path for path in sorted(place.rglob("*.onnx")) if path.is_file())
    return next((path for path in models if content_of(path) == sha256.lower()), None)


def _unpack(archive: Path, folder: Path) -> None:
    """Unpacks regular files and folders that stay inside the folder; refuses an archive that is too large."""
    size = count = 0
    with (
        opened(archive) as file,
        _decompressed(file) as plain,
        tarfile.open(fileobj=_ShortHeaders(plain), mode="r:") as files,
    ):
        for member in files:
            size, count = size + member.size, count + 1
            if size > _MOST_BYTES or count > _MOST_FILES:
                raise tarfile.TarError("it holds too much")
            if member.isreg() or member.isdir():
                _extract(files, member, folder)


def _extract(files: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Writes a regular file or a folder; tarfile has filters for this, but not in Python 3.11.0 to 3.11.3."""
    place = (folder / member.name).resolve()
    if not place.is_relative_to(folder.resolve()):
        raise tarfile.TarError(f"{member.name!r} leads out of it")
    content = files.extractfile(member)
    (place if content is None else place.parent).mkdir(parents=True, exist_ok=True)
    if content is not None:
        with content, place.open("wb") as written:
            shutil.copyfileobj(content, written)


def _decompressed(file: BufferedReader) -> BinaryIO:
    start = file.peek(4)[:4]
    if start.startswith(b"BZh"):
        return cast(BinaryIO, bz2.open(file))
    return cast(BinaryIO, gzip.open(file)) if start.startswith(b"\x1f\x8b") else file


class _ShortHeaders:
    """A file in which tarfile cannot read very long headers, which it would read into memory at once."""

    def __init__(self, plain: BinaryIO) -> None:
        self.plain, self.seek, self.tell, self.close = plain, plain.seek, plain.tell, plain.close

    def read(self, size: int) -> bytes:
        if size > _LONGEST_HEADER:
            raise tarfile.ReadError("one of its headers is too long")
        return self.plain.read(size)

    def write(self, data: bytes) -> int:
        raise tarfile.TarError("it is only read")
