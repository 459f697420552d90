"""Files in and out: an ONNX model or a YAML spec becomes a `Spec` of sources and checks.

Readers are imported when a file is read, so that `gradcheck schema` needs no NumPy.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradcheck_cli.formats.source import Spec

SPEC_SUFFIXES = (".yaml", ".yml")


def is_spec(path: str | os.PathLike[str]) -> bool:
    """True for the file name of a spec, False for that of a model."""
    return os.fspath(path).lower().endswith(SPEC_SUFFIXES)


def read(path: str | os.PathLike[str], *, dims: Mapping[str, int] | None = None, allow_python: bool = False) -> Spec:
    """Reads a YAML spec with its graphs and checks, or an ONNX model as a spec without checks.

    The steps of a model's training information are further sources.  `dims` overrides sizes of symbolic dimensions.
    Raises ModelError or SpecError.
    """
    if is_spec(path):
        from gradcheck_cli.formats.yaml.reading import read_spec

        return read_spec(path, dims=dims, allow_python=allow_python)
    from gradcheck_cli.formats.onnx.read import read as read_onnx
    from gradcheck_cli.formats.source import Spec

    source = read_onnx(path)
    return Spec(source.uri, {Path(path).name: source, **{name: source.at_step(name) for name in source.steps}}, ())
