"""Arrays of a spec: written out, drawn at random, or read from .npy and .npz files beside it.

Random values depend only on the spec's seed and the tensor's own name, so that a new tensor in a spec changes no
other.  Specs are untrusted: paths stay inside the spec's folder.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from gradcheck_cli.errors import SpecError, counted, did_you_mean, named
from gradcheck_cli.formats.arrays import Npz, read_npy
from gradcheck_cli.formats.untrusted import inside
from gradcheck_cli.formats.yaml.fields import KINDS, REQUIRED, DTypeName, Unknown, is_number, listed, show
from gradcheck_cli.formats.yaml.places import DocumentPath, show_path
from gradcheck_cli.graph import Array
from gradcheck_cli.settings import SETTINGS

Shape = tuple[int, ...]
DType = np.dtype[Any]
DTYPE_NAMES = get_args(DTypeName)
MAX_ARRAY_BYTES = 2 << 30
_FAILURES = (OSError, ValueError, RuntimeError, MemoryError)  # of reading files; RuntimeError: links in a circle
_YAML_WORDS = {"nan": ".nan", "inf": ".inf", "-inf": "-.inf"}

_TYPES = {
    **dict.fromkeys(("int_type", "int_from_float"), "an integer"), "float_type": "a number",
    "finite_number": "a finite number", "bool_type": "true or false", "string_type": "a text", "list_type": "a list",
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "a mapping"),
}  # fmt: skip
_BOUNDS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
}


@dataclass(frozen=True, slots=True)
class Values:
    """Makes the arrays of one spec from its folder and its seed."""

    folder: Folder
    seed: int

    def initial(self, init: Any, shape: Shape | None, dtype: DType, spot: DocumentPath, *identity: str) -> Array:
        """The array for an `init`, in the shape if one is given; random values depend on seed and `identity`."""
        kind, options = _normal_form(init, spot)
        if kind == "file":
            found = self.folder.array(options["path"], options["key"], spot)
            return _fitting(_cast(found, dtype, spot), shape, spot)
        if kind == "values":
            return literal(options["values"], dtype, shape, spot)
        if kind == "constant":
            return literal(options["value"], dtype, shape, spot)
        if shape is None:
            raise spot.error(f"{kind} needs a shape")
        _check_size(shape, dtype, spot)
        return _drawn(kind, options, shape, dtype, spot, self._random(identity))

    def _random(self, identity: tuple[str, ...]) -> np.random.Generator:
        digest = hashlib.sha256("\0".join((str(self.seed), *identity)).encode()).digest()
        return np.random.default_rng(list(np.frombuffer(digest, dtype="<u4").tolist()))


@dataclass(frozen=True, slots=True)
class Folder:
    """The folder of a spec: the only place from which it may read."""

    root: Path

    def array(self, path: str, key: str | None, spot: DocumentPath) -> Array:
        """The array in a .npy file, or the one called `key` in a .npz file."""
        file = self.inside(path, spot)
        if file.suffix not in (".npy", ".npz"):
            raise spot.error(f"{path!r} is neither a .npy nor a .npz file")
        if file.suffix == ".npy" and key is not None:
            raise spot.error(f"{path!r} holds a single array; leave out the key {key!r}")
        with _reading(path, spot):
            if file.suffix == ".npy":
                return read_npy(file, MAX_ARRAY_BYTES)
            arrays = Npz(file, MAX_ARRAY_BYTES)
            if key is None and len(arrays) == 1:
                key = next(iter(arrays))
            if key is not None and key in arrays:
                return arrays[key]
        known = named(list(arrays), 10)
        several = f"has {len(arrays)} arrays; choose one by key: {known}"
        wrong = f"has no array {key!r}; it has {known}" if key else several
        raise spot.error(f"{path!r} {wrong}.{did_you_mean(key or '', arrays)}")

    def names(self, path: str, spot: DocumentPath) -> tuple[str, ...]:
        """Names of the arrays in a .npz file."""
        file = self.inside(path, spot)
        if file.suffix != ".npz":
            raise spot.error(f"{path!r} is no .npz file, so its arrays have no names")
        with _reading(path, spot):
            return tuple(Npz(file, MAX_ARRAY_BYTES))

    def inside(self, path: str, spot: DocumentPath) -> Path:
        """The file at a path relative to the folder; refused if the path or a link leads out of the folder."""
        with _reading(path, spot):
            try:
                file = inside(self.root, path, "the spec's folder")
            except ValueError as error:
                raise spot.error(str(error)) from None
            if file.is_file():
                return file
        raise spot.error(f"there is no file {path!r} in the spec's folder")


@contextmanager
def _reading(path: str, spot: DocumentPath) -> Iterator[None]:
    """Gives failures to read a file their place in the spec."""
    try:
        yield
    except SpecError:
        raise
    except _FAILURES as error:
        raise spot.error(f"{path!r} cannot be read: {error}") from None


def dtype_of(name: str) -> DType:
    """The dtype for its name in a spec."""
    if name == "bfloat16":
        import ml_dtypes

        name = ml_dtypes.bfloat16
    return np.dtype(name)


def literal(values: Any, dtype: DType | None, shape: Shape | None, spot: DocumentPath) -> Array:
    """Written values as an array; one number fills the shape.  Without a dtype NumPy chooses it."""
    if dtype is None or dtype.kind != "c":
        _refuse_real_texts(values, spot)
    array = _cast(_written(values, spot), dtype, spot)
    if shape is not None:
        _check_size(shape, array.dtype, spot)
    return _fitting(array, shape, spot)


def _written(values: Any, spot: DocumentPath) -> Array:
    values = _map_nested(lambda value: _number_in(value, spot), values)
    flat = _flat(values)
    if any(isinstance(value, bool) for value in flat) and not all(isinstance(value, bool) for value in flat):
        raise spot.error("true and false stand among numbers")
    try:
        return np.array(values, dtype=None if flat else np.float64)
    except (ValueError, OverflowError):
        raise spot.error("the lists have different lengths, so they are no tensor") from None


def _flat(values: Any) -> list[Any]:
    """The numbers of nested lists, in order."""
    return [each for value in values for each in _flat(value)] if isinstance(values, list) else [values]


def _map_nested(change: Callable[[Any], Any], values: Any) -> Any:
    return [_map_nested(change, value) for value in values] if isinstance(values, list) else change(values)


def _number_in(value: Any, spot: DocumentPath) -> Any:
    found = _complex_in(value) if isinstance(value, str) else value
    if isinstance(found, (bool, int, float, complex)):
        return found
    hint = "; a complex one is written '1+2j'" if isinstance(value, str) else ""
    raise spot.error(f"{show(value)} is no number{hint}")


def _refuse_real_texts(values: Any, spot: DocumentPath) -> None:
    """Refuses texts that Python reads as numbers, unless complex ones stand among them: they would be complex too."""
    texts = [value for value in _flat(values) if isinstance(value, str)]
    if any("j" in text.lower() for text in texts):
        return
    for text in texts:
        if (found := _complex_in(text)) is not None:
            meant = _YAML_WORDS.get(str(found.real), text.replace("_", ""))
            raise spot.error(f"{show(text)} is a text in YAML, no number; write {meant}")


def _cast(array: Array, dtype: DType | None, spot: DocumentPath) -> Array:
    if dtype is None or array.dtype == dtype:
        return array
    if array.dtype.kind == "c" and dtype.kind != "c":
        raise spot.error(f"complex values for a tensor of {dtype}")
    try:
        with np.errstate(all="ignore"):
            cast = array.astype(dtype)
    except (TypeError, ValueError, OverflowError):
        raise spot.error(f"values of {array.dtype} are no {dtype}") from None
    if dtype.kind in "iub" and (changed := np.flatnonzero(cast.astype(object) != array.astype(object))).size:
        raise spot.error(f"{array.ravel()[changed[0]]} is no {dtype}")
    return cast


def _fitting(array: Array, shape: Shape | None, spot: DocumentPath) -> Array:
    if shape is None or array.shape == shape:
        return array
    if array.ndim == 0:
        return np.full(shape, array)
    raise spot.error(f"the values have the shape {list(array.shape)}, declared is {list(shape)}")


def _check_size(shape: Shape, dtype: DType, spot: DocumentPath) -> None:
    size = math.prod(shape) * dtype.itemsize
    if size > MAX_ARRAY_BYTES or len(shape) > 32:
        raise spot.error(f"a tensor of shape {list(shape)} is too large: {size / 2**30:.3g} GiB")


def _normal_form(init: Any, spot: DocumentPath) -> tuple[str, dict[str, Any]]:
    """The kind of an `init` and all options of that kind."""
    if isinstance(init, dict):
        given = {key: value for key, value in init.items() if key != "kind"}
        return init["kind"], {**KINDS[init["kind"]], **given}
    if isinstance(init, str) and init in KINDS:
        needed = [name for name, default in KINDS[init].items() if default is REQUIRED]
        if needed:
            raise spot.error(f"{init} needs {needed[0]!r}: write {{kind: {init}, {needed[0]}: ...}}")
        return init, KINDS[init]
    if isinstance(init, str) and _complex_in(init) is None:
        near = did_you_mean(init, KINDS)
        raise spot.error(f"{show(init)} is no way to initialise; known are {listed(KINDS)}.{near}")
    return "values", {"values": init}


def _complex_in(text: str) -> complex | None:
    """The complex number in a string as Python writes it, 1+2j; None if there is none."""
    with suppress(ValueError):
        return complex(text.replace(" ", ""))
    return None


def _drawn(
    kind: str, options: dict[str, Any], shape: Shape, dtype: DType, spot: DocumentPath, random: np.random.Generator
) -> Array:
    if kind in ("zeros", "ones"):
        return np.full(shape, kind == "ones").astype(dtype)
    if kind == "arange":
        steps = np.arange(math.prod(shape)).reshape(shape)
        return _cast(options["start"] + options["step"] * steps, dtype, spot)
    if kind in ("identity", "eye"):
        _check_rank(kind, shape, spot)
        return _cast(options["gain"] * np.eye(shape[-2], shape[-1]) * np.ones(shape), dtype, spot)
    if dtype.kind in "iu" and kind == "uniform":
        low, high, limits = math.ceil(options["low"]), math.floor(options["high"]), np.iinfo(dtype)
        if not limits.min <= low <= high <= limits.max:
            raise spot.error(f"no values of {dtype} from {options['low']} to {options['high']}")
        return random.integers(low, high, shape, dtype=dtype, endpoint=True)
    if dtype.kind in "iub":
        raise spot.error(f"{kind} gives no values of {dtype}")
    drawn: Array = _real(kind, options, shape, spot, random)
    if dtype.kind == "c":  # each part has half the variance, so that |x|**2 is as large as for a real tensor
        drawn = (drawn + 1j * _real(kind, options, shape, spot, random)) / math.sqrt(2)
    result: Array = drawn.astype(dtype)
    return result


def _real(kind: str, options: dict[str, Any], shape: Shape, spot: DocumentPath, random: np.random.Generator) -> Array:
    if kind == "uniform":
        low, high = options["low"], options["high"]
        if not low <= high or not math.isfinite(high - low):
            raise spot.error(f"uniform from {low} to {high} is empty")
        return random.uniform(low, high, shape)
    if kind == "normal":
        if options["std"] < 0:
            raise (spot / "std").error("the standard deviation must not be below 0")
        return float(options["mean"]) + float(options["std"]) * random.standard_normal(shape)
    if kind == "orthogonal":
        _check_rank(kind, shape, spot)
        rows, columns = shape[0], math.prod(shape[1:])
        q, r = np.linalg.qr(random.standard_normal((max(rows, columns), min(rows, columns))))
        q = q * np.sign(np.diag(r))
        return float(options["gain"]) * (q if rows >= columns else q.T).reshape(shape)
    return float(options["gain"]) * _scaled_by_fans(kind, shape, random)


def _scaled_by_fans(kind: str, shape: Shape, random: np.random.Generator) -> Array:
    rule, distribution = kind.split("_")
    if len(shape) < 2:
        inward = outward = math.prod(shape)
    elif len(shape) == 2:  # [in, out]
        inward, outward = shape
    else:  # [out, in, *space], the kernel of a convolution
        outward, inward = (size * math.prod(shape[2:]) for size in shape[:2])
    fan = inward + outward if rule == "glorot" else inward
    variance = (1 if rule == "lecun" else 2) / max(1, fan)
    if distribution == "normal":
        return math.sqrt(variance) * random.standard_normal(shape)
    return random.uniform(-1, 1, shape) * math.sqrt(3 * variance)


def _check_rank(kind: str, shape: Shape, spot: DocumentPath) -> None:
    if len(shape) < 2:
        raise spot.error(f"{kind} needs a shape of two or more dimensions, not {list(shape)}")


def graph_float(dtypes: list[DType]) -> DType:
    """The float dtype of constants without a dtype: that of the graph's tensors if there is only one, else float32."""
    parts = {np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype for dtype in dtypes}
    floats = {dtype for dtype in parts if dtype.kind == "f"}
    return floats.pop() if len(floats) == 1 else np.dtype(np.float32)


def constant(values: Any, float_dtype: DType, spot: DocumentPath) -> Array:
    """A constant written without a dtype."""
    array = literal(values, None, None, spot)
    if array.dtype.kind == "f":
        return array.astype(float_dtype)
    if array.dtype.kind == "O":
        raise spot.error("a number too large for int64")
    return array.astype(np.int64) if array.dtype.kind in "iu" else array


def is_constant(value: Any) -> bool:
    """True if an input of a node is a written value and not a name."""
    return isinstance(value, (bool, list)) or is_number(value)


def mistake(error: Any, path: tuple[str | int, ...], root: str = "the spec") -> str:
    """The words for an error of pydantic at a path, `root` at the empty one."""
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    where = show_path(path) or root
    if kind == "extra_forbidden":
        inside = f" in {show_path(path[:-1])}" if len(path) > 1 else ""
        known, home = value if isinstance(value, Unknown) else ((), "")
        if home:
            return f"{path[-1]!r} stands one level further in: {home}"
        meant = next((o.field for o in SETTINGS.values() if path[-1] in o.keys and o.field in known), str(path[-1]))
        near = did_you_mean(meant, known) or (f" Known are {listed(known)}." if known else "")
        return f"unknown key {path[-1]!r}{inside}.{near}"
    if kind == "missing":
        return f"{show_path(path[:-1]) or root} lacks the key {path[-1]!r}"
    if kind == "literal_error":
        known = context["expected"].replace(" or ", ", ").replace("'", "").split(", ")
        return f"{where} is {show(value)}; known are {listed(known)}.{did_you_mean(str(value), known)}"
    if kind == "value_error":
        return f"{where} {context['error']}"
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        return f"{where} is {show(value)}; it must be {words} {context[key]:g}"
    if kind in _TYPES:
        other = " or a text" if error["loc"][-1:] == ("<list>",) else ""
        return f"{where} is {show(value)}; it must be {_TYPES[kind]}{other}"
    if kind in ("too_short", "string_too_short", "too_long"):
        length = context["max_length" if kind == "too_long" else "min_length"]
        least_one = length == 1 and kind != "too_long"
        need = "not be empty" if least_one else f"have {counted(length, 'value')}"
        return f"{where} is {show(value)}; it must {need}"
    return f"{where} is {show(value)}; {error['msg']}"
