"""Complex numbers, Fourier transforms, windows and mel filters.

ONNX has no complex numbers: its transforms keep one as two reals along the last axis.  The operators of the domain
`gradcheck` (Complex, Real, FFT ...) work on complex arrays.  A cotangent pairs with a tangent as Re(ct dy), without
conjugation, and a rule is the transpose under that pairing: Im(dx) = Re(-i dx), so Imag gives -i ct.  The rule of a
transform is the transform of as many points the other way; padding is cut off, cut entries get zeros.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.errors import ModelError
from gradcheck_cli.graph import Array
from gradcheck_cli.op import Interval, Op, Vjp, composite, from_end, zero
from gradcheck_cli.op.batching import Kernel, elementwise, of_line, on, spread_out, trailing
from gradcheck_cli.op.sparsity import along
from gradcheck_cli.ops.shape import checked, scalar

DOMAIN = "gradcheck"
FLOAT = np.dtype(np.float32)
_TRANSFORMS: Any = ((np.fft.fft, np.fft.rfft), (np.fft.ifft, np.fft.irfft))  # by direction, and for half a spectrum


def complex_(re: Array, im: Array) -> Array:
    """re + i im, for operands that broadcast; infinities keep to their part."""
    y = np.empty(np.broadcast_shapes(re.shape, im.shape), np.result_type(re, im, np.complex64))
    y.real, y.imag = re, im
    return y


def angle_vjp(ct: Var, y: Var, x: Var) -> tuple[Var | None]:
    """-i ct / x, and 0 at 0, since d angle = Im(dx / x); a real number has no derivative."""
    if x.dtype.kind != "c":
        return (None,)
    at_0 = sym.equal(x, 0)
    return (sym.where(at_0, 0, sym.cast(ct, x.dtype) * -1j / sym.where(at_0, 1, x)),)


def transform(function: Kernel) -> Kernel:
    """A kernel from one of `np.fft`."""

    def kernel(x: Array, *, axis: int = -1, n: int | None = None) -> Array:
        length = x.shape[axis] if n is None else n
        if length < 1:
            raise ValueError(f"a transform has at least one point, not {length}")
        checked((length, *x.shape[:axis], *x.shape[axis + x.ndim + 1 :]))
        return np.asarray(function(x, n=length, axis=axis))

    return kernel


def transform_vjp(op: str) -> Vjp:
    """The same transform of ct, since its matrix is symmetric; padding is cut off, cut entries get zeros."""

    def vjp(ct: Var, y: Var, x: Var, *, axis: int = -1, n: int | None = None) -> tuple[Var]:
        back, missing = sym.custom(op, ct, axis=axis), x.shape[axis] - y.shape[axis]
        if missing > 0:
            shape = [missing if i - x.ndim == axis else n for i, n in enumerate(back.shape)]
            return (sym.concat([back, sym.full(back.tape, shape, 0, back.dtype)], axis),)
        return (back if not missing else sym.slice(back, (0,), (x.shape[axis],), (axis,)),)

    return vjp


def _own(name: str, forward: Kernel, vjp: Vjp, batching: Any = elementwise, **more: Any) -> Op:
    outline = spread_out if batching is elementwise else of_line()
    return Op(name, forward, vjp, batching, domain=DOMAIN, outline=outline, **more)


def dft(x: Array, *, dft_length: int = 0, axis: int = -2, inverse: int = 0, onesided: int = 0) -> Array:
    """The discrete Fourier transform of `dft_length` points along an axis; the last axis holds real and imaginary part.

    With `onesided` the spectrum of real numbers is given by its first half, in either direction.
    """
    if x.dtype.kind == "c":
        re, im = (dft(part, dft_length=dft_length, axis=axis, inverse=inverse, onesided=onesided)
                  for part in (x.real, x.imag))  # fmt: skip
        return re + 1j * im
    parts = x if x.dtype.itemsize >= 4 else x.astype(np.float32)
    z = parts[..., 0] if x.shape[-1] == 1 else complex_(parts[..., 0], parts[..., 1])
    y = _TRANSFORMS[inverse][onesided](z, n=dft_length, axis=axis + 1)
    pair = y[..., None] if y.dtype.kind == "f" else np.stack([y.real, y.imag], axis=-1)
    return pair.astype(x.dtype, copy=False)


def bind_dft(metadata: dict[str, Any], x: Array) -> dict[str, Any]:
    """Metadata with the axis counted from the end and the number of points; ModelError if the last axis does not fit."""
    inverse, onesided = (int(bool(metadata.get(k, 0))) for k in ("inverse", "onesided"))
    axis = from_end(int(scalar(metadata.get("axis", -2))), x.ndim)
    if x.ndim < 2 or axis == -1:
        raise ModelError("the last axis holds the parts of complex numbers; the transform must run along another axis")
    parts, wanted = x.shape[-1], (2 if inverse else 1) if onesided else None
    if parts not in (1, 2) or (wanted is not None and parts != wanted):
        raise ModelError(f"the last axis has {parts} entries, not {wanted or 'one or two'}: the parts of a number")
    implied = 2 * (x.shape[axis] - 1) if inverse and onesided else x.shape[axis]
    points = int(scalar(metadata.get("dft_length", implied)))
    if points < 1:
        raise ModelError(f"a transform has at least one point, not {points}")
    checked((*x.shape[:axis], points, *x.shape[axis + x.ndim + 1 : -1], 2))
    return {"dft_length": points, "axis": axis, "inverse": inverse, "onesided": onesided}


def dft_vjp(ct: Var, y: Var, x: Var, *, dft_length: int, axis: int, inverse: int, onesided: int) -> tuple[Var]:
    """The transform of ct the other way; entries of half a spectrum that stand for a pair (not 0, N / 2) count twice."""
    back = _dft(ct, dft_length, axis, inverse=1 - inverse, onesided=inverse * onesided)
    back = back / float(dft_length) if inverse else back * float(dft_length)
    if inverse and onesided:
        paired = np.ones((back.shape[axis], *(1,) * (-axis - 1)), ct.dtype)
        paired[1 : (dft_length + 1) // 2] = 2
        back = back * paired
    beyond = [n - m for n, m in zip(x.shape, back.shape, strict=True)]
    return (sym.pad(back, (*(0 for _ in x.shape), *beyond)),)


def _dft(x: Var, points: int, axis: int, **attrs: int) -> Var:
    return x.tape.apply("DFT", x, np.asarray(points), np.asarray(axis), **attrs)


def angles_off(unit: float, y: Array, points: int) -> float:
    """The error of a transform that computes angles up to pi times its number of points, as those by chirps do.

    onnxruntime takes them where that number is no power of two.
    """
    return 2 * np.pi * points * unit * float(np.max(np.abs(y), initial=0.0)) if points & (points - 1) else 0.0


def dft_off(unit: float, y: Array, x: Array, points: Any = None, axis: Any = None, **attrs: Any) -> float:
    """The error of onnxruntime's DFT."""
    given = {name: value for name, value in (("dft_length", points), ("axis", axis)) if value is not None}
    return angles_off(unit, y, bind_dft({**attrs, **given}, x)["dft_length"])


def stft_off(
    unit: float, y: Array, signal: Array, step: Array, window: Any = None, length: Any = None, **attrs: Any
) -> float:
    """The error of onnxruntime's STFT."""
    return angles_off(unit, y, _frame_length(signal, window, length))


def stft(
    signal: Var, window: Var | None = None, *, frame_step: int, frame_length: int | None = None, onesided: int = 1
) -> Var:
    """Transforms of frames of the signal `(N, length, parts)`, each times a window: `(N, frames, points, 2)`.

    For a complex signal `onesided` keeps the first half of the spectrum too, as ONNX's own implementations do.
    """
    signal = sym.unsqueeze(signal, (-1,)) if signal.ndim == 2 else signal
    if signal.ndim != 3 or signal.shape[2] not in (1, 2):
        raise ValueError(f"the signal is (N, length, parts), not {list(signal.shape)}")
    places = _frames(signal.shape[1], int(scalar(frame_step)), _frame_length(signal, window, frame_length))
    frames = signal.tape.apply("Gather", signal, places, axis=1)
    frames = frames if window is None else frames * sym.unsqueeze(window, (-1,))
    points, real = places.shape[1], signal.shape[2] == 1
    y = _dft(frames, points, -2, onesided=int(bool(onesided) and real))
    return sym.slice(y, (0,), (points // 2 + 1,), (-2,)) if onesided and not real else y


def _frame_length(signal: Var | Array, window: Var | Array | None, given: Any) -> int:
    if window is not None and window.ndim != 1:
        raise ValueError(f"the window is a vector, not {list(window.shape)}")
    implied = signal.shape[1] if window is None else window.shape[0]
    length = implied if given is None else int(scalar(given))
    if window is not None and length != implied:
        raise ValueError(f"frame_length is {length} for a window of {implied}")
    return length


def _frames(length: int, step: int, points: int) -> Array:
    """Positions of the entries of each frame in the signal, `(frames, points)`."""
    if step < 1 or not 1 <= points <= length:
        raise ValueError(f"frames of {points}, {step} apart, do not fit a signal of {length}")
    count = (length - points) // step + 1
    checked((count, points))
    return step * np.arange(count)[:, None] + np.arange(points)


def window(*weights: float) -> Kernel:
    """The kernel of a window that is a sum of cosines with alternating signs."""

    def kernel(*, size: int, periodic: int = 1, output_datatype: Any = FLOAT) -> Array:
        """A window of `size` entries; a periodic one begins again where it ends, another is symmetric."""
        angles = np.arange(size) * (2 * np.pi / np.float64(size if periodic else size - 1))
        return sum((-1) ** k * w * np.cos(k * angles) for k, w in enumerate(weights)).astype(output_datatype)

    return kernel


def mel_weight_matrix(
    lower: Array, upper: Array, *, num_mel_bins: int, dft_length: int, sample_rate: int,
    output_datatype: Any = FLOAT,
) -> Array:  # fmt: skip
    """Triangular filters over the frequencies of a spectrum, `(dft_length // 2 + 1, num_mel_bins)`, that peak at 1."""
    points = dft_length // 2 + 1
    edges = mel_edges(lower, upper, num_mel_bins=num_mel_bins, dft_length=dft_length, sample_rate=sample_rate)
    if num_mel_bins and not 0 <= edges[0] <= edges[-1] < points:
        raise ValueError(f"frequencies between {lower.item()} and {upper.item()} reach beyond the spectrum")
    left, center, right = edges[:-2], edges[1:-1], edges[2:]
    at = np.arange(points)[:, None]
    rising = np.where((left <= at) & (at < center), (at - left) / np.maximum(center - left, 1), 0.0)
    falling = np.where((center < at) & (at < right), (right - at) / np.maximum(right - center, 1), 0.0)
    return np.where(at == center, 1.0, rising + falling).astype(output_datatype)


def bind_mel(metadata: dict[str, Any], lower: Array, upper: Array) -> dict[str, Any]:
    """Metadata with counts as numbers; an error if the matrix does not fit into memory."""
    counts = {name: int(scalar(metadata[name])) for name in ("num_mel_bins", "dft_length", "sample_rate")}
    if min(counts.values()) < 0 or not counts["sample_rate"] or lower.size != 1 or upper.size != 1:
        raise ModelError(f"{counts} and frequencies {list(lower.shape)}, {list(upper.shape)} define no filters")
    checked((counts["dft_length"] // 2 + 1, counts["num_mel_bins"] + 2))
    return {**metadata, **counts}


def mel_edges(lower: Array, upper: Array, *, num_mel_bins: int, dft_length: int, sample_rate: int, **_: Any) -> Array:
    """Positions in the spectrum where triangles begin, peak and end: equidistant in mel, rounded down."""
    ends = [np.log1p(edge.real.reshape(()).astype(np.float64) / 700) for edge in (lower, upper)]
    places = np.arange(num_mel_bins + 2) / (num_mel_bins + 2)
    hertz = 700 * np.expm1(ends[0] + places * (ends[1] - ends[0]))
    return np.floor((dft_length + 1) * hertz / sample_rate).astype(np.int64)


def _window(name: str, *weights: float) -> Op:
    def bind(metadata: dict[str, Any]) -> dict[str, Any]:
        return {**metadata, "size": checked((scalar(metadata["size"]),))[0]}

    return Op(name, window(*weights), zero, static={"size": 0}, bind=bind, integers={0: (8, 8)})


SPECTRAL: list[Op] = [
    Op("DFT", dft, dft_vjp, on(0), static={"dft_length": 1, "axis": 2}, bind=bind_dft, linear="each", normwise=True,
       sparsity=along("axis", -1), integers={1: (5, 8), 2: (-2, -2)}, elsewhere="rough", elsewhere_off=dft_off,
       outline=of_line(-1)),
    composite("STFT", stft, static={"frame_step": 1, "frame_length": 3}, integers={1: (1, 3), 3: (4, 4)},
              elsewhere="rough", elsewhere_off=stft_off),
    _window("HannWindow", 0.5, 0.5),
    _window("HammingWindow", 25 / 46, 21 / 46),
    _window("BlackmanWindow", 0.42, 0.5, 0.08),
    Op("MelWeightMatrix", mel_weight_matrix, zero, branch=mel_edges, bind=bind_mel, ordered=True,
       static={"num_mel_bins": 0, "dft_length": 1, "sample_rate": 2},
       valid={3: Interval(20.0, 300.0), 4: Interval(3000.0, 4000.0)},
       integers={0: (4, 6), 1: (32, 64), 2: (8000, 8000)}, elsewhere="rough"),
    _own("Complex", complex_, lambda ct, y, re, im: (sym.real(ct), -sym.imag(ct)), linear="each"),
    _own("Real", np.real, lambda ct, y, x: (ct,), linear="each"),
    _own("Imag", np.imag, lambda ct, y, x: (sym.cast(ct, x.dtype) * -1j if x.dtype.kind == "c" else None,), linear="each"),
    _own("Conj", np.conj, lambda ct, y, x: (sym.conj(ct),), linear="each"),
    _own("Angle", np.angle, angle_vjp, branch=lambda x: (x.real < 0) & (x.imag < 0), analytic=False),
    _own("FFT", transform(np.fft.fft), transform_vjp("FFT"), trailing, linear="each", normwise=True,
         sparsity=along("axis")),
    _own("IFFT", transform(np.fft.ifft), transform_vjp("IFFT"), trailing, linear="each", normwise=True,
         sparsity=along("axis")),
]  # fmt: skip
