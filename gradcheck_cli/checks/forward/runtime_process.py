"""The process that runs models with onnxruntime: requests come on stdin, answers go to stdout, nothing else does.

It is started by `runtime` as a script of its own and imports nothing of gradcheck: a model that brings onnxruntime
down takes this process along and not the check.  A message is a line of JSON and the bytes of the arrays that it names.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from typing import IO, Any

_KEPT = 4  # sessions
_BITS = ("float8", "float4", "bfloat16", "int4", "int2")  # element types of which NumPy would show the bits
_BYTES = {"bfloat16": 16, "float8e4m3fn": 17, "float8e4m3fnuz": 18, "float8e5m2": 19, "float8e5m2fnuz": 20}  # by ONNX


def main() -> None:
    """Answers questions until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    _leave_no_core()
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    sessions: dict[str, Any] = {}
    while line := sys.stdin.buffer.readline():
        request = json.loads(line)
        _hold(request["memory"])
        try:
            found = _run(onnxruntime, sessions, request, sys.stdin.buffer)
            _answer(answers, found, request["maps"], onnxruntime.__version__)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"[:2000]
            _send(answers, {"error": text, "version": onnxruntime.__version__}, ())


def _run(onnxruntime: Any, sessions: dict[str, Any], request: dict[str, Any], source: IO[bytes]) -> dict[str, Any]:
    """The requested outputs by name; the request is read to its end first."""
    import numpy as np

    data = source.read(request["size"])
    feeds = {}
    for feed in request["feeds"]:
        array = np.frombuffer(bytearray(source.read(feed["size"])), feed["dtype"])
        feeds[feed["name"]] = array.reshape(feed["shape"])
    session = _session(onnxruntime, sessions, request, data)
    known = {entry.name: entry.type for entry in (*session.get_inputs(), *session.get_overridable_initializers())}
    feeds = {name: _given(onnxruntime, value, known[name]) for name, value in feeds.items() if name in known}
    names = request["outputs"]
    unread = {each.name for each in session.get_outputs() if any(bits in each.type for bits in _BITS)}
    names = [name for name in names if name not in unread]
    if not request["stacked"]:
        return dict(zip(names, session.run(names, feeds), strict=True)) if names else {}
    each = feeds.pop(request["stacked"])
    made = [session.run(names, {**feeds, request["stacked"]: value}) for value in each]
    return dict(zip(names, map(np.stack, zip(*made, strict=True)), strict=True))


def _given(onnxruntime: Any, value: Any, declared: str) -> Any:
    """A value as a session takes it: by its bits, with their type, where NumPy has no such type."""
    number = _BYTES.get(declared.removeprefix("tensor(").removesuffix(")"))
    if number is None:
        return value
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(value.view(f"u{value.itemsize}"), number)


def _session(onnxruntime: Any, sessions: dict[str, Any], request: dict[str, Any], data: bytes) -> Any:
    """The session of a model, which is run as written, without fusion or folding, unless `optimized`."""
    key = request["key"]
    if key not in sessions:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = request["threads"]
        options.enable_cpu_mem_arena = False
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # threads that have nothing to do wait
        if not request["optimized"]:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        if data:
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", request["folder"])
        while len(sessions) >= _KEPT:
            del sessions[next(iter(sessions))]
        model = data or request["path"]
        sessions[key] = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return sessions[key]


def _answer(answers: IO[bytes], found: dict[str, Any], maps: dict[str, Any], version: str) -> None:
    import numpy as np

    inside = [each for name, value in found.items() for each in _inside(name, value, maps)]
    arrays = [(name, np.shape(x), np.ascontiguousarray(x)) for name, x in inside if x.dtype.kind in "biufc"]
    outputs = [{"name": name, "dtype": x.dtype.str, "shape": shape, "size": x.nbytes} for name, shape, x in arrays]
    _send(answers, {"outputs": outputs, "version": version}, [x.tobytes() for _, _, x in arrays])


def _inside(name: str, value: Any, maps: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The arrays in a value by name, as in `graph/containers.py`; a map gives its values in the requested order."""
    import numpy as np

    if isinstance(value, np.ndarray):
        yield name, value
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _inside(f"{name}[{index}]", item, maps)
    elif isinstance(value, dict) and f"{name}[0]" in maps:
        asked = maps[f"{name}[0]"]
        keys = asked["keys"] if {*asked["keys"]} == {*value} else []  # other keys: a result of another length
        yield f"{name}[0]", np.asarray([value[key] for key in keys], asked["dtype"])


def _send(answers: IO[bytes], message: dict[str, Any], parts: Any) -> None:
    answers.write(json.dumps(message).encode() + b"\n")
    for part in parts:
        answers.write(part)
    answers.flush()


def _hold(memory: int) -> None:
    """Limits this process to `memory` more bytes than now, where the system allows: a model may ask for anything."""
    try:
        import resource

        with open("/proc/self/status", encoding="utf-8") as file:
            rows = dict(row.split(":", 1) for row in file)
        most, used = resource.getrlimit(resource.RLIMIT_DATA)[1], int(rows["VmData"].split()[0]) << 10
        wanted = used + memory if most == resource.RLIM_INFINITY else min(used + memory, most)
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, most))
    except (ImportError, OSError, ValueError, KeyError):
        return


def _leave_no_core() -> None:
    try:
        import resource
    except ImportError:  # Windows has no such module, and no such files
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main()
