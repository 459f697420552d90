"""Everything that reads a file from elsewhere, by name: some files that are right, and what reads one of them.

Whatever the bytes are, a reader gives a value or raises a GradcheckError, soon and in little memory; one that is asked
through NumPy may raise a MemoryError, which the command turns into an error of a limit.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.printer
import onnx.serialization
import rich_click as click
from onnx import numpy_helper

from gradcheck_cli.cli.check import command
from gradcheck_cli.cli.config import settings_above
from gradcheck_cli.cli.resolve import array_of, value_of
from gradcheck_cli.cli.zoo.jobs import places
from gradcheck_cli.cli.zoo.results import Baseline, FinishedJobs
from gradcheck_cli.formats import read
from gradcheck_cli.formats.onnx.read import read_value
from gradcheck_cli.formats.untrusted import own_folder
from gradcheck_cli.graph import TensorType
from gradcheck_cli.report import FORMATS, render
from gradcheck_cli.results import read_results
from gradcheck_cli.results.record import Check, ModelInfo, Report
from gradcheck_cli.zoo import remote as hub
from gradcheck_cli.zoo.bundle import load
from gradcheck_cli.zoo.parcel import read_along
from gradcheck_cli.zoo.store import RECORDS, About, Store, read_about, write_about

ROOT = Path(__file__).parents[2]
PLACES = ("read", "tried")  # folders that files are read in
NOT_ALL = (
    ".npz values",
    ".json values",
    "lists of models",
    "archives",
)  # of whose seeds some are refused where they lie
_SMALL = 40_000  # bytes of a seed
_FORMATS = tuple(form.name for form in FORMATS.values() if not form.pictured)  # pages take a while
_SEQUENCE = TensorType(np.dtype(np.float32), kind="sequence", inner=TensorType(np.dtype(np.float32)))


@dataclass(frozen=True)
class Kind:
    """A kind of file: what it is called where it is read, seeds, and its reader."""

    file: str
    seeds: Callable[[], list[bytes]]
    read: Callable[[Path], Any]


def _files(*patterns: str) -> Callable[[], list[bytes]]:
    """Files of this repository that are small."""
    found = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
    return lambda: [path.read_bytes() for path in found if path.stat().st_size < _SMALL]


def _put_beside(name: str, data: bytes) -> None:
    """A file that others name, where they are read."""
    for folder in filter(Path.is_dir, map(Path, PLACES)):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)


# --- models, specs


def _model(path: Path) -> Any:
    return read(path), list(read_along(path))


def _with_data() -> list[bytes]:
    """A model whose weights lie beside it, and models that hold theirs."""
    _put_beside("weights.bin", bytes(4096))
    model = onnx.ModelProto.FromString((ROOT / "examples/mlp.onnx").read_bytes())
    for tensor in model.graph.initializer:
        length = str(len(tensor.raw_data))
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", "weights.bin"), ("offset", "8"), ("length", length)):
            tensor.external_data.add(key=key, value=value)
    return [model.SerializeToString(), *_files("examples/*.onnx", "tests/models/files/**/*.onnx")()]


def _in_text(format: str) -> Callable[[], list[bytes]]:
    """A small model as text."""

    def made() -> list[bytes]:
        model = onnx.ModelProto.FromString((ROOT / "examples/mlp.onnx").read_bytes())
        if format == "onnxtxt":
            return [onnx.printer.to_text(model).encode()]
        return [onnx.serialization.registry.get(format).serialize_proto(model)]

    return made


# --- values


def _saved(save: Callable[..., Any], *arrays: Any, **named: Any) -> bytes:
    buffer = io.BytesIO()
    save(buffer, *arrays, **named)
    return buffer.getvalue()


def _npy() -> list[bytes]:
    arrays = (
        np.arange(12.0).reshape(4, 3),
        np.ones((2, 0), "f2"),
        np.asfortranarray(np.ones((3, 2), "c8")),
        np.array(["a"]),
    )
    return [_saved(np.save, array) for array in arrays]


def _npz() -> list[bytes]:
    two = {"a": np.arange(3.0), "b": np.ones((2, 2), np.int64)}
    return [_saved(np.savez, **two), _saved(np.savez_compressed, **two), _saved(np.savez, x=np.zeros(1000))]


def _pb() -> list[bytes]:
    arrays = (np.arange(3, dtype=np.float32), np.array(["a", "b"], object), np.ones((2, 2), np.complex64))
    return [numpy_helper.from_array(array, "x").SerializeToString() for array in arrays]


def _pb_of_many() -> list[bytes]:
    arrays = [np.ones(2, np.float32), np.zeros((1, 3), np.float32)]
    return [
        numpy_helper.from_list(arrays, "x").SerializeToString(),
        numpy_helper.from_list([], "x").SerializeToString(),
    ]


def _json_values() -> list[bytes]:
    return [b"[[1, 2.5], [NaN, Infinity]]", b'{"a": [1, 2], "b": "1+2j"}', b"0.5", b'["1+2j", 3]']


def _value(path: Path) -> Any:
    return array_of(f"@{path}"), array_of(f"@{path}:a")


# --- results, stores, reports


def _records() -> list[Check]:
    """Records with as much in them as there can be."""
    model = ModelInfo("net.onnx", "0" * 64, {"": 17}, 3)
    wrong = Check(
        "net.onnx::d y/d x", "net.onnx", "fail", "GC101", model, "x", "y", x_shape=(2, 3), y_shape=(),
        entries={"total": 6, "checked": 6, "failed": 2, "inconclusive": 1}, max_abs_err=0.5, max_rel_err=float("inf"),
        notes=("a note",), message="entries differ", duration_s=0.5,
        waiver={"status": "fail", "reason": "known", "until": "2030-01-01"},
    )  # fmt: skip
    return [
        wrong,
        Check("b", "b", "pass", "", ModelInfo("b"), "x", "y"),
        Check("c", "c", "error", "GC401", ModelInfo("c"), "", ""),
    ]


def _results() -> list[bytes]:
    records = [check.as_json() for check in _records()]
    run = {"schema": "gradcheck.run/1", "exit_code": 1, "checks": records}
    return ["".join(json.dumps(record) + "\n" for record in records).encode(), json.dumps(run, indent=1).encode()]


def _reported(path: Path) -> Any:
    report = Report(read_results(str(path)))
    return [render(form, report).encode("utf-8", "backslashreplace") for form in _FORMATS]


def _store() -> list[bytes]:
    """The lines of a run."""
    folder = Path("stores")
    with Store(folder) as store:
        for index, check in enumerate(_records()):
            store.append(f"job {index}", f"key {index}", [check.as_json()] * (index + 1), 600.0)
    return [(folder / RECORDS).read_bytes()]


def _summed_up(path: Path) -> Any:
    found = FinishedJobs(path.parent, None, Baseline("", {}))
    details = [found.detail(job) for job in found.lines]
    return details, render("full", found.full(found.report(("fail",), 1.0)))


def _about() -> list[bytes]:
    folder = Path("about")
    folder.mkdir(exist_ok=True)
    write_about(folder, About(("models",), {"seed": 3, "x": ("a",)}, os.getcwd(), "1/2", ("models/a.onnx",)))
    return [(folder / "run.json").read_bytes()]


def _bundle() -> list[bytes]:
    from gradcheck_cli.settings import Settings
    from gradcheck_cli.zoo import bundle

    folder, subject = Path("bundle"), bundle.Subject(str(ROOT / "examples/mlp.onnx"))
    if not folder.exists():
        settings = Settings(x=("input",), x_init_value={"input": np.ones((2, 4))})
        manifest = bundle.begin(folder.parent, folder.name, "mlp", subject, settings, ["gradcheck"], {"numpy": "2"})
        drawn = {0: {"labels": np.array([1, 2])}}
        with own_folder(folder) as own:
            bundle.complete(own, manifest, settings, drawn, {"N": 2}, [check.as_json() for check in _records()])
    for name in ("values.npz", "model/mlp.onnx"):
        _put_beside(name, (folder / name).read_bytes())
    return [(folder / "bundle.json").read_bytes()]


def _again(path: Path) -> Any:
    """All of a bundle that running it again would read."""
    bundle = load(path)
    return bundle.changes(), bundle.source()


# --- lists, configuration, archives


def _hub() -> list[bytes]:
    metadata = {"model_sha": "0" * 64, "model_with_data_path": "a.tar.gz", "model_with_data_sha": "1" * 64}
    return [
        json.dumps([{"model": "a", "model_path": "a/a.onnx", "metadata": metadata}, {"model_path": "b.onnx"}]).encode()
    ]


def _manifests() -> list[bytes]:
    return [
        b"gradcheck: 1\ndefaults: {seed: 1}\nmodels:\n  - path: net.onnx\n  - {path: '*.onnx', x: a, y: [b], rtol: 1e-3}\n",
        b"gradcheck: 1\nmodels: [a.onnx, {path: b.onnx, expect: {status: fail, reason: r, until: 2030-01-01}}]\n",
    ]


def _config() -> list[bytes]:
    return [
        b'seed = 3\nrtol = 1e-3\nfail-on = ["fail", "dead"]\n[dims]\nN = 2\n',
        b'mode = "directional"\nx = ["a", "b"]\nval-range = [-1, 1]\ntimeout = "5m"\n[x-init-value]\na = [[1, 2.5]]\n',
    ]


def _configured(path: Path) -> Any:
    return settings_above(str(path.parent), click.Context(command))


def _archives() -> list[bytes]:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as files:
        for name, data in (("net/a.onnx", b"model"), ("net/" + "long" * 40, b"x"), ("net/größe", b"y")):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            files.addfile(info, io.BytesIO(data))
    return [buffer.getvalue(), gzip.compress(buffer.getvalue(), mtime=0)]


KINDS = {
    "ONNX models": Kind("net.onnx", _with_data, _model),
    "models in JSON": Kind("net.json", _in_text("json"), _model),
    "models in protobuf's text format": Kind("net.textproto", _in_text("textproto"), _model),
    "models in ONNX's text syntax": Kind("net.onnxtxt", _in_text("onnxtxt"), _model),
    "YAML specs": Kind("net.gradcheck.yaml", _files("specs/*.gradcheck.yaml", "examples/*.yaml"), _model),
    ".npy values": Kind("v.npy", _npy, lambda path: array_of(f"@{path}")),
    ".npz values": Kind("v.npz", _npz, _value),
    ".pb values": Kind("v.pb", _pb, lambda path: array_of(f"@{path}")),
    ".pb sequences": Kind("v.pb", _pb_of_many, lambda path: (read_value(path, _SEQUENCE), value_of(f"@{path}", _SEQUENCE))),
    ".json values": Kind("v.json", _json_values, _value),
    "results": Kind("results.jsonl", _results, _reported),
    "stores of runs": Kind(RECORDS, _store, _summed_up),
    "run.json": Kind("run.json", _about, lambda path: read_about(path.parent)),
    "bundles": Kind("bundle.json", _bundle, _again),
    "lists of a hub": Kind("hub.json", _hub, lambda path: hub.models_in(path, "folder", "hub.json")),
    "lists of models": Kind("zoo.gradcheck.yaml", _manifests, lambda path: places([str(path)])),
    "gradcheck.toml": Kind("gradcheck.toml", _config, _configured),
    "archives": Kind("a.tar.gz", _archives, lambda path: hub.unpacked(path, "0" * 64)),
}  # fmt: skip
