"""Models behind URLs: fetched with what belongs to them, kept as long as they are the same, refused where they lead out."""

from __future__ import annotations

import functools
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from gradcheck_cli.cli import main
from gradcheck_cli.cli.zoo.jobs import places
from gradcheck_cli.errors import GradcheckError, ModelError, UsageError
from gradcheck_cli.zoo import remote
from tests.cli import models

pytest.importorskip("aiohttp", reason="models at http URLs need fsspec and aiohttp")
pytest.importorskip("fsspec", reason="models at URLs need fsspec")


class Served(http.server.SimpleHTTPRequestHandler):
    """Files of a folder; what was asked for is kept."""

    asked: list[str]
    says_versions = True

    def do_GET(self) -> None:
        self.asked.append(self.path)
        super().do_GET()

    def send_header(self, keyword: str, value: str) -> None:
        if keyword != "Last-Modified" or self.says_versions:
            super().send_header(keyword, value)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(autouse=True)
def near() -> Iterator[None]:
    """Servers of this machine are asked for."""
    with remote.reaching(local=True):
        yield


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path, cache: Path) -> Path:
    """A served folder: a model, one with external data, and one that has it elsewhere."""
    place = tmp_path / "served"
    place.mkdir()
    models.mlp(place / "mlp.onnx")
    with_data(place, "sub/weights.bin", "big.onnx")
    with_data(place, "../secret.bin", "out.onnx")
    (tmp_path / "secret.bin").write_bytes(b"\0" * 10_000)
    return place


def with_data(place: Path, location: str, name: str) -> None:
    """A model whose tensors say that they are at a location."""
    model = onnx.load(models.conv(place / name))
    (place / location).parent.mkdir(exist_ok=True)
    for tensor in model.graph.initializer:
        (place / location).write_bytes(tensor.raw_data)
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)
    onnx.save(model, place / name)


@pytest.fixture
def url(folder: Path) -> Iterator[str]:
    """The address of the folder."""
    Served.asked = []
    handler = functools.partial(Served, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_a_model_comes_with_its_external_data(url: str, folder: Path):
    copy = remote.fetched(f"{url}/big.onnx")
    assert copy.read_bytes() == (folder / "big.onnx").read_bytes()
    assert (copy.parent / "sub/weights.bin").read_bytes() == (folder / "sub/weights.bin").read_bytes()


def test_external_data_that_leads_out_is_not_asked_for(url: str, cache: Path):
    copy = remote.fetched(f"{url}/out.onnx")
    assert [path.name for path in copy.parent.rglob("*")] == ["out.onnx"]
    assert Served.asked == ["/out.onnx"]
    assert not list(cache.rglob("secret*"))


def test_what_has_not_changed_is_fetched_once_and_what_has_is_fetched_again(url: str, folder: Path):
    first = remote.fetched(f"{url}/big.onnx")
    assert remote.fetched(f"{url}/big.onnx") == first
    assert Served.asked == ["/big.onnx", "/sub/weights.bin"]
    data = folder / "sub/weights.bin"
    data.write_bytes(b"\1" * data.stat().st_size)
    os.utime(data, (1e9, 1e9))
    second = remote.fetched(f"{url}/big.onnx")
    assert (second.parent / "sub/weights.bin").read_bytes() == data.read_bytes()
    assert (first.parent / "sub/weights.bin").read_bytes() != data.read_bytes()


def test_a_file_of_which_the_server_says_no_version_is_fetched_each_time(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Served, "says_versions", False)
    remote.fetched(f"{url}/mlp.onnx")
    remote.fetched(f"{url}/mlp.onnx")
    assert Served.asked == ["/mlp.onnx"] * 2


def test_a_copy_that_was_broken_off_leaves_nothing(url: str, cache: Path):
    with pytest.raises(ModelError, match="does not exist"):
        remote.fetched(f"{url}/none.onnx")
    assert [path.name for path in cache.rglob("*") if path.is_file()] == ["lock"]


def test_a_copy_that_is_not_what_the_list_means_is_refused_and_goes(url: str, cache: Path):
    with pytest.raises(ModelError, match="its SHA-256 is not 0000"):
        remote.fetched(f"{url}/mlp.onnx", sha256="0" * 64)
    assert not list(cache.rglob("*.onnx"))


def test_processes_that_fetch_the_same_at_once_have_one_copy(url: str, cache: Path):
    copies: list[Path] = []
    threads = [threading.Thread(target=lambda: copies.append(remote.fetched(f"{url}/big.onnx"))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(copies) == 6
    assert len({*copies}) == 1
    assert Served.asked.count("/big.onnx") == 1


@pytest.mark.parametrize(
    "url, reason",
    [
        ("s4://bucket/a.onnx", "is none of http, https, s3"),
        ("htps://host/a.onnx", "Did you mean 'https'"),
        ("http://127.0.0.1:9/a.onnx", "cannot be fetched"),
        ("gs://bucket/a.onnx", "needs gcsfs: python -m pip install gcsfs"),
        ("reference::http://host/a", "is none of"),
    ],
)
def test_a_url_that_leads_nowhere_is_one_error(cache: Path, url: str, reason: str):
    if url.startswith("gs") and remote.find_spec("gcsfs"):
        pytest.skip("gcsfs is installed")
    with pytest.raises(GradcheckError, match=reason):
        remote.fetched(places([url])[0].url)


def test_a_list_behind_a_url_names_what_lies_beside_it_and_nothing_here(url: str, folder: Path):
    entries = (
        "[{path: mlp.onnx, name: first, seed: 2}, {path: /etc/passwd}, {path: ../x.onnx}, {path: 'file:///etc/passwd'}]"
    )
    (folder / "list.gradcheck.yaml").write_text(f"gradcheck: 1\nmodels: {entries}\n")
    found = places([f"{url}/list.gradcheck.yaml"])
    assert [place.uri for place in found if place.error is None] == ["first"]
    assert (found[0].url, found[0].said) == (f"{url}/mlp.onnx", {"seed": 2})
    for place, path in zip(found[1:], ("/etc/passwd", "../x.onnx", "file:///etc/passwd"), strict=True):
        assert f"{path!r} leads out of the folder of the list" in str(place.error)


def test_a_hub_behind_a_url_is_read(url: str, folder: Path):
    entry = {"model": "M", "model_path": "mlp.onnx", "metadata": {"model_sha": "a" * 64}}
    (folder / "ONNX_HUB_MANIFEST.json").write_text(json.dumps([entry]))
    (found,) = places([f"{url}/ONNX_HUB_MANIFEST.json"])
    assert (found.uri, found.sha256) == (f"{url}/mlp.onnx", "a" * 64)


def test_records_do_not_show_what_may_be_secret_in_a_url(url: str):
    (found,) = places([f"{url.replace('//', '//user:pass@')}/mlp.onnx?token=secret"])
    assert found.uri == f"{url}/mlp.onnx"


# --- S3, as moto serves it


@pytest.fixture
def bucket(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The folder in a bucket."""
    boto3 = pytest.importorskip("boto3", reason="a server of S3 needs moto and boto3")
    moto = pytest.importorskip("moto.server", reason="a server of S3 needs moto")
    s3fs = pytest.importorskip("s3fs", reason="models in S3 need s3fs")
    s3fs.S3FileSystem.clear_instance_cache()  # of other servers
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    settings = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
    for name, value in {**settings, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}.items():
        monkeypatch.setenv(name, value)
    (folder / "mlp.gradcheck.yaml").write_text("gradcheck: 1\ndefaults: {seed: 5}\nchecks: []\n")
    (folder / "test_data_set_0").mkdir()
    (folder / "test_data_set_0/input_0.pb").write_bytes(b"")
    client = boto3.client("s3")
    client.create_bucket(Bucket="models")
    for path in folder.rglob("*"):
        if path.is_file():
            client.upload_file(str(path), "models", f"zoo/{path.relative_to(folder)}")
    yield "s3://models/zoo"
    client.close()
    server.stop()


@pytest.mark.slow
def test_models_in_a_bucket_are_listed_and_fetched_with_what_lies_beside_them(bucket: str, folder: Path):
    names = [f"{bucket}/{name}.onnx" for name in ("big", "mlp", "out")]
    for source in (bucket, f"{bucket}/", f"{bucket}/*.onnx", "s3://models/**/*.onnx"):
        assert [place.uri for place in places([source])] == names
    mlp = places([bucket])[1]
    assert sorted(mlp.along) == ["mlp.gradcheck.yaml", "test_data_set_0/input_0.pb"]
    copy = remote.fetched(f"{bucket}/big.onnx")
    assert (copy.parent / "sub/weights.bin").read_bytes() == (folder / "sub/weights.bin").read_bytes()


def test_models_in_a_bucket_are_checked_as_those_in_a_folder_are(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gradcheck.toml").write_text("points = 2\nseed = 3\n")
    assert main(["zoo", bucket, "--run", "run", "-k", "not out", "--progress", "off"]) == 0
    assert "3 checks: 3 passed" in capsys.readouterr().out
    lines = [json.loads(line) for line in (tmp_path / "run/results.jsonl").read_text("ascii").splitlines()]
    assert {(record["model"]["uri"], record["check"], record["points"], record["seed"]) for record in lines} == {
        (f"{bucket}/big.onnx", f"{bucket}/big.onnx", 2, 3),
        (f"{bucket}/mlp.onnx", f"{bucket}/mlp.onnx", 2, 3),
    }
    assert main(["zoo", bucket, "--run", "run", "-k", "not out", "--progress", "off"]) == 0
    assert "2 of 2 models were done before" in capsys.readouterr().err


def test_a_bucket_that_is_not_there_is_one_error(bucket: str):
    with pytest.raises(GradcheckError, match="s3://nothing"):
        places(["s3://nothing/here/"])


def test_a_package_that_is_missing_is_named_as_pip_installs_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(remote.PACKAGES, "s3", "no_such_package")
    with pytest.raises(UsageError, match="needs no_such_package: python -m pip install no_such_package"):
        remote.listed("s3://models")


ODD = (
    "127.1",
    "2130706433",
    "0x7f000001",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "[::]",
    "[64:ff9b::7f00:1]",
    "[fe80::1]",
    "[fd00::1]",
)
HERE = [
    "127.0.0.1",
    "0.0.0.0",
    "localhost",
    "169.254.169.254",
    "10.0.0.1",
    "192.168.1.1",
    "172.16.0.1",
    "100.64.0.1",
    *ODD,
]


@pytest.mark.parametrize("host", HERE)
def test_servers_of_this_machine_and_its_network_are_out_of_reach(host: str, cache: Path):
    """Spellings of addresses that not all libraries read lead nowhere either."""
    with remote.reaching(local=False), pytest.raises(GradcheckError) as refused:
        remote.fetched(f"http://{host}:9/a.onnx")
    said = str(refused.value)
    assert "--allow-local lets sources lead there" in said or (host in ODD and "does not exist" in said), said


@pytest.mark.parametrize("address, local", [
    ("127.0.0.1", True), ("::1", True), ("::ffff:10.1.2.3", True), ("169.254.169.254", True), ("fe80::1%eth0", True),
    ("64:ff9b::a00:1", True), ("2002:7f00:1::", True), ("100.64.0.1", True), ("224.0.0.1", True), ("8.8.8.8", False),
    ("2606:4700::1111", False), ("64:ff9b::808:808", False), ("::ffff:8.8.8.8", False),
])  # fmt: skip
def test_addresses_of_this_machine_and_its_network_are_told_from_public_ones(address: str, local: bool):
    assert remote.is_local(address) is local


def test_files_of_this_machine_are_sources_by_their_paths_or_when_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    url, zoo = f"file://{folder}/mlp.onnx", ["zoo", "--run", "run", "-j", "1", "--forward", "internal", "-q"]
    monkeypatch.chdir(folder)
    with remote.reaching(local=False):
        assert main([*zoo, url]) == 2
        assert (
            "is a file of this machine: give its path; --allow-local lets sources lead there" in capsys.readouterr().err
        )
        (folder / "list.gradcheck.yaml").write_text(f"gradcheck: 1\nmodels: [{{path: '{url}'}}, {{path: mlp.onnx}}]\n")
        assert main([*zoo, "list.gradcheck.yaml"]) == 2
        assert main([*zoo, "mlp.onnx"]) == 0
        assert main([*zoo, url, "--allow-local"]) == 0
        assert "allow_local" not in json.loads(Path("run/run.json").read_text())["options"]
        assert main(["zoo", "resume", "run", "-q"]) == 2  # it is asked for each time
        assert main(["zoo", "resume", "run", "-q", "--allow-local"]) == 0


REDIRECTING = """
import fcntl, http.server, socket, struct, sys, threading
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.zoo import remote

def configured(name, address):  # an interface with an address, as `ip` would do it
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        request = struct.pack("16sH2s4s8s", name, socket.AF_INET, bytes(2), socket.inet_aton(address), bytes(8))
        fcntl.ioctl(s, 0x8916, request)  # SIOCSIFADDR
        fcntl.ioctl(s, 0x8914, struct.pack("16sH14s", name, 0x41, bytes(14)))  # SIOCSIFFLAGS: up and running

configured(b"lo", "127.0.0.1")
configured(b"lo:1", "8.8.8.8")

class Redirecting(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        asked.append((self.client_address[0], self.path))
        self.send_response(302 if self.path == "/a.onnx" else 200)
        self.send_header("Location", f"http://{sys.argv[1]}:8000/secret.onnx")
        self.send_header("Content-Length", "6")
        self.end_headers()
        self.wfile.write(b"secret" if self.command == "GET" else b"")
    do_HEAD = do_GET
    def log_message(self, *_): ...

asked = []
threading.Thread(target=http.server.HTTPServer(("0.0.0.0", 8000), Redirecting).serve_forever, daemon=True).start()
try:
    print("fetched", remote.fetched("http://8.8.8.8:8000/a.onnx"))
except GradcheckError as error:
    print(error)
print([path for _, path in asked if path != "/a.onnx"])
"""


@pytest.mark.parametrize("target, reached", [("127.0.0.1", False), ("localhost", False), ("8.8.8.8", True)])
def test_redirects_to_this_machine_are_refused(target: str, reached: bool, cache: Path):
    """In a network of its own, in which a public address is that of the server."""
    command = ["unshare", "--net", "--map-root-user", sys.executable, "-c", REDIRECTING, target]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if "unshare:" in ran.stderr or "ioctl" in ran.stderr:
        pytest.skip(f"no network of its own can be made here: {ran.stderr.strip().splitlines()[-1]}")
    first, asked = ran.stdout.splitlines()
    assert first.startswith("fetched") is reached, ran.stdout + ran.stderr
    assert ("is an address of this machine or its network" in first) is not reached
    assert (asked != "[]") is reached
