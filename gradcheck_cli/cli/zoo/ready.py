"""Imported in the server from which children of a zoo are forked, so that children start with everything imported.

It also imports modules that are otherwise imported on demand, and checks a small model, since first calls take longer.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pkgutil
import tempfile
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from gradcheck_cli.checks.forward.runtime import NAME
from gradcheck_cli.cli.zoo import child_check
from gradcheck_cli.zoo import MEMORY, Job
from gradcheck_cli.zoo.child import Desk, Errand
from gradcheck_cli.zoo.processes import remove_folder_at_exit

_NOT_OF_A_CHECK = {
    "__main__", "api", "backend", "cli", "export", "pytest_plugin", "report", "zoo",
}  # fmt: skip
_HUGE, _COLLAPSE = 2 << 20, 25  # bytes of a huge page; MADV_COLLAPSE, since Linux 6.1
_SMALL = """
<ir_version: 9, opset_import: ["" : 17]>
small (float[1,2,4,4] x, float[2,2,3,3] w, float[8,3] v) => (float[1,3] y) {
  shape = Constant <value_ints = [1, 8]> ()
  c = Conv <pads = [1, 1, 1, 1]> (x, w)
  r = Relu (c)
  p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
  f = Reshape (p, shape)
  m = MatMul (f, v)
  y = Softmax (m)
}
"""


def warm() -> None:
    """Imports everything, and uses it once."""
    for found in pkgutil.iter_modules([str(Path(__file__).parents[2])]):
        if found.name not in _NOT_OF_A_CHECK:
            _imported(f"gradcheck_cli.{found.name}")
    import_module("multiprocessing.popen_forkserver")
    with suppress(Exception):  # checks report a broken onnxruntime themselves
        import_module(NAME)
    with suppress(Exception):
        _check_a_model()
    gc.collect()
    gc.freeze()  # so that garbage collection in children does not touch, and hence copy, shared pages
    _in_huge_pages()


def _imported(name: str) -> None:
    with suppress(Exception):  # it may need a package that is not installed
        module = import_module(name)
        for found in pkgutil.iter_modules(getattr(module, "__path__", ())):
            if not found.name.endswith("_worker"):
                _imported(f"{name}.{found.name}")


def _check_a_model() -> None:
    """Runs the work of a child on a small model, without a driver."""
    import onnx.parser

    with tempfile.TemporaryDirectory(dir=remove_folder_at_exit() or None) as folder, open(os.devnull, "wb") as nobody:
        path = os.path.join(folder, "small.onnx")
        onnx.save(onnx.parser.parse_model(_SMALL), path)
        job = Job("small", path, options={"save_failures": "none", "forward": "internal"})
        errand = Errand(job, "", timeout=None, memory=MEMORY, granted=MEMORY)
        list(child_check.records(job, Desk(errand, nobody.fileno())))
        with suppress(Exception):  # onnxruntime may not be installed
            _run_with_onnxruntime(path)


def _run_with_onnxruntime(path: str) -> None:
    """Runs onnxruntime once, so that processes forked from children find it initialized; one thread survives forks."""
    runtime: Any = import_module(NAME)
    runtime.set_default_logger_severity(4)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    session.run(None, {each.name: np.ones(each.shape, np.float32) for each in session.get_inputs()})


def _in_huge_pages() -> None:
    """Puts memory into huge pages, so that a fork copies, and an exit frees, one page table entry instead of 512."""
    with suppress(OSError, AttributeError):
        madvise = ctypes.CDLL(None).madvise
        for line in Path("/proc/self/maps").read_text().splitlines():
            place, access, *_, name = [*line.split(), ""][:6]
            start, end = (int(each, 16) for each in place.split("-"))
            start, end = -(-start // _HUGE) * _HUGE, end // _HUGE * _HUGE
            if access == "rw-p" and name in ("", "[heap]") and start < end:
                madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _COLLAPSE)


warm()
