"""GatherPacked of com.microsoft: rows of a table in a format of ggml, blocks of numbers in few bits and their scales.

Nothing flows through them.  Formats have ggml's numbers; bits are counted from the lowest.
"""

from __future__ import annotations

import zlib
from base64 import b85decode
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np

from gradcheck_cli.errors import UnsupportedError
from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.op import Op, zero
from gradcheck_cli.ops.onnxruntime.fused import DOMAIN

Decoder: TypeAlias = Callable[[Array, Any], Array]  # blocks `(n, bytes)` and a dtype to numbers `(n, entries)`

_CURVE = np.asarray([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])  # of four bits
# Words of eight numbers out of three, three times, and words of four numbers out of eight: as numbers in base 3 and 8,
# lowest digit first, in ascending order, each less the one before it: all low bytes, then all high ones.
_DIGITS = (np.asarray([8, 25, 43]), np.asarray([4, 12, 20, 28, 36, 44, 52, 62]))
_SIZES = (256, 512, 1024, 256)
_WORDS = (
    "c-rk%!EWP542>C@nvBPj>0~Ucj#gH*ir^ZC>biyz1TGL1X;1{scCjdmpr@Sn&_h3=$DWIROTVSxQ;uvYvXQhOuqI%Mp5c&>j~wa<Dj`7sBxH@0"
    "079K81vVc6Nx!T3sr*|zkP+C#dRyh~!zj9vcWfuD;&Y^|kaM}<P35L(rf-34Ji^;@1{4|r3o(cHyrw6ydy3Tj_vI!q3FIKw#sVV|37L?}O(@qN"
    "co7#<lvgPSCCDinm3QwUx-X`Z()Ics*(jM@B{}{K<sbh5xj0tp=6j!o&C@J&w)pUP&-lx5a=mc!@$cDRS(w~EiTM$<1e-TiPXzhAxml`^+KnoG"
    "0O9ryL6t>gAw>+N5#ng;hBF|~5qMh2S(>5Tb3xT+<H9P?tXrGcO9+bCtzD^b&S#8rA(pq(8fitNe~?LC7V!}St5~MWtU0<2oxWC)DiC(D*XUZ2"
    "k?Tbqebw;6XpC=#nG_+F-b9E@I*#<NMNsUifn~CQsxPD!G^a@#3S~qVOZYAFj)ZdXQ71<KU~%@iT-;<LYZDMw*sP?2Q#Vy}g0{vbr7L3M-hfa%"
    "WhA5zsZHeKd*^UObW_0Wmr1csbB|e+C1s4>#WtV(=^XPnCt5)Xg?Xj^4K0YUU*8QA<U8WITwc+LOvav%cKg%^8<YKpBe``{^WQ{l!$6_8?I<>e"
    "Ofax2GxZ!Cck{vB&@VK*@p!1}0Mm~A3dr3BZi8AG)wzj!Git23Wd7c_vtk#5Z~i8us_q*%LU}k5m^S14!8H0?V2Taq5rd}dP{pcg?EOmk{Mwa-"
    "hLg7c?I>)(zsec?-^~rFW^uc(+Phl&JN$CvZENx$OdE(_+J4rm!Lw@q3t5c}Gj&aSY?9o;WHjSS1-6`6VYK;{37$AL`e`P%^+2kdkgDd{!OiG="
    "by+EEkm4nbJU;z!+7z%55QWPS{B*4RQ9JF*L=>zpaF4?&iqvF2-6drBtMwPrw^KoJnE9_%g1(W+W}3{$rCF3N=2?ch<NMzQ>_BkxIeY9vfX5K@"
    "_zMW#00N%n?2|gsdwb@(J;gbnnXiXT;6NL1%|GaMA_xNb(*F-Ko|Y$l)5EtDv}fu;r<D;NpNs+6b#RUy0Rg-0cls{C8D8kf$@A}^H;jG6LBH!="
    "^xz!2{ed~P-<+QD_u_nP2a|#8X;Ap!PCJG^OU9SI3q5!^2E7;#1)1TP3-`qvjxB~i&h)~7ev>AbIo(}cel^iNi#yiL<n+87_VwVxjKSU>ebUl7"
    "I><o|a*%@@<WrP?0eK5r+y"
)


class PackedFormat(NamedTuple):
    """The number of entries and of bytes of a block, and the function that decodes blocks."""

    entries: int
    bytes: int
    decoded: Decoder


def gather_packed(
    data: Array, indices: Array, *, K: int, output_dtype: Any = ml_dtypes.bfloat16, packed_type: int
) -> Array:
    """Rows of K numbers out of a table of packed rows; the first one where an index is out of range."""
    found = _FORMATS.get(packed_type)
    if found is None:
        raise UnsupportedError(f"packed_type is {packed_type}; known are {', '.join(map(str, _FORMATS))}", code="GC502")
    if not is_inexact(output_dtype):
        raise ValueError(f"output_dtype is {output_dtype}; rows are given as floating-point numbers")
    size = K // found.entries * found.bytes
    if K < 1 or K % found.entries or data.ndim != 2 or data.shape[1] != size or not len(data):
        raise ValueError(f"rows of {K} numbers, a multiple of {found.entries}, are [n, {size}], not {list(data.shape)}")
    places = np.where((indices >= 0) & (indices < len(data)), indices, 0)
    blocks = np.ascontiguousarray(data[places.ravel()]).reshape(-1, found.bytes)
    numbers = found.decoded(blocks, np.result_type(output_dtype, np.float32))
    return numbers.reshape(*indices.shape, K).astype(output_dtype)


def _whole(stored: Any) -> Decoder:
    """The decoder of numbers that are not packed."""
    return lambda b, dtype: b.view(stored).astype(dtype)


def _q5_0(b: Array, dtype: Any) -> Array:
    codes = _halves(b[:, 6:]) | _bits(b[:, 2:6], 1).reshape(-1, 32) << 4
    return _scale(b, dtype) * (codes.astype(dtype) - 16)


def _q5_k(b: Array, dtype: Any) -> Array:
    """Eight parts, each with a scale and a shift of six bits, of which the last four have their high bits elsewhere."""
    first, second, rest = (b[:, i : i + 4] for i in (4, 8, 12))
    scales = np.concatenate([first & 63, rest & 15 | first >> 6 << 4], 1)
    shifts = np.concatenate([second & 63, rest >> 4 | second >> 6 << 4], 1)
    high = np.swapaxes(_bits(b[:, 16:48], 1), 1, 2)
    codes = _halves(b[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32) | high << 4
    times, less = _scale(b, dtype) * scales, _scale(b, dtype, 2) * shifts
    return (times[..., None] * codes - less[..., None]).reshape(-1, 256)


def _q6_k(b: Array, dtype: Any) -> Array:
    low = np.moveaxis(_bits(b[:, :128].reshape(-1, 2, 2, 32), 4), -1, 2).reshape(-1, 2, 4, 32)
    high = np.swapaxes(_bits(b[:, 128:192].reshape(-1, 2, 32), 2), 2, 3)
    codes = (low | high << 4).reshape(-1, 16, 16).astype(dtype) - 32
    times = _scale(b, dtype, 208) * b[:, 192:208].view(np.int8)
    return (times[..., None] * codes).reshape(-1, 256)


def _iq4_xs(b: Array, dtype: Any) -> Array:
    scales = _bits(b[:, 4:8], 4).reshape(-1, 8) | _bits(b[:, 2:4], 2).reshape(-1, 8) << 4
    times = _scale(b, dtype) * (scales.astype(dtype) - 32)
    return (times[..., None] * _CURVE[_halves(b[:, 8:].reshape(-1, 8, 16))]).reshape(-1, 256)


def _iq2_xxs(b: Array, dtype: Any) -> Array:
    parts = b[:, 2:].reshape(-1, 8, 8)
    signs, scales = _signs_beside_scale(parts[..., 4:])
    return _spelled(0, parts[..., :4].reshape(-1, 32), signs, _scale(b, dtype) * (scales + dtype.type(0.5)) / 4)


def _iq2_xs(b: Array, dtype: Any) -> Array:
    codes = np.ascontiguousarray(b[:, 2:66]).view("<u2")
    scales = _bits(b[:, 66:], 4).reshape(-1, 16)
    return _spelled(1, codes & 511, _even(codes >> 9), _scale(b, dtype) * (scales + dtype.type(0.5)) / 4)


def _iq2_s(b: Array, dtype: Any) -> Array:
    places = b[:, 2:34] | _bits(b[:, 66:74], 2).reshape(-1, 32).astype(np.uint16) << 8
    scales = _bits(b[:, 74:], 4).reshape(-1, 16)
    return _spelled(2, places, b[:, 34:66], _scale(b, dtype) * (scales + dtype.type(0.5)) / 4)


def _iq3_xxs(b: Array, dtype: Any) -> Array:
    signs, scales = _signs_beside_scale(b[:, 66:].reshape(-1, 8, 4))
    return _spelled(3, b[:, 2:66], signs, _scale(b, dtype) * (scales + dtype.type(0.5)) / 2)


def _spelled(book: int, places: Array, signs: Array, times: Array) -> Array:
    """Words of a book, with a sign for each number and scales that each hold for an equal share of the numbers."""
    numbers = _books()[book][places].reshape(-1, 32, 8) * (1 - 2 * _bits(signs, 1).astype(np.int8))
    return (times[..., None] * numbers.reshape(*times.shape, -1)).reshape(-1, 256)


def _signs_beside_scale(x: Array) -> tuple[Array, Array]:
    """Four groups of seven sign bits in a word of 32 bits, and the scale in the four bits above."""
    words = np.ascontiguousarray(x).view("<u4")
    return _even(words >> np.asarray([0, 7, 14, 21], np.uint32) & 127).reshape(-1, 32), words[..., 0] >> 28


def _even(x: Array) -> Array:
    """Seven bits, and an eighth that makes the number of ones even."""
    seven = x.astype(np.uint8)
    return seven | (np.bitwise_count(seven) & 1) << 7


def _halves(b: Array) -> Array:
    """Numbers of four bits: the low ones of all bytes along the last axis, then the high ones."""
    return np.concatenate([b & 15, b >> 4], -1)


def _bits(b: Array, width: int) -> Array:
    """The numbers of `width` bits in each byte, along a new last axis."""
    return b[..., None] >> np.arange(0, 8, width, dtype=np.uint8) & np.uint8(2**width - 1)


def _scale(b: Array, dtype: Any, at: int = 0) -> Array:
    """The float16 number at byte `at` of each block, `(n, 1)`."""
    return np.ascontiguousarray(b[:, at : at + 2]).view("<f2").astype(dtype)


@cache
def _books() -> tuple[Array, ...]:
    """The words of each book, `(words, numbers)`."""
    low, high = np.frombuffer(zlib.decompress(b85decode(_WORDS)), np.uint8).reshape(2, -1)
    steps = np.split(low + 256 * high.astype(np.int64), np.cumsum(_SIZES)[:-1])
    digits = (*(_DIGITS[0],) * 3, _DIGITS[1])
    powers = [len(d) ** np.arange(8 if len(d) == 3 else 4) for d in digits]
    return tuple(d[np.cumsum(s)[:, None] // p % len(d)] for s, p, d in zip(steps, powers, digits, strict=True))


_FORMATS = {
    0: PackedFormat(1, 4, _whole("<f4")),
    1: PackedFormat(1, 2, _whole("<f2")),
    2: PackedFormat(32, 18, lambda b, dtype: _scale(b, dtype) * (_halves(b[:, 2:]).astype(dtype) - 8)),  # Q4_0
    6: PackedFormat(32, 22, _q5_0),
    8: PackedFormat(32, 34, lambda b, dtype: _scale(b, dtype) * b[:, 2:].view(np.int8).astype(dtype)),  # Q8_0
    13: PackedFormat(256, 176, _q5_k),
    14: PackedFormat(256, 210, _q6_k),
    16: PackedFormat(256, 66, _iq2_xxs),
    17: PackedFormat(256, 74, _iq2_xs),
    18: PackedFormat(256, 98, _iq3_xxs),
    20: PackedFormat(32, 18, lambda b, dtype: _scale(b, dtype) * _CURVE[_halves(b[:, 2:])]),  # IQ4_NL
    22: PackedFormat(256, 82, _iq2_s),
    23: PackedFormat(256, 136, _iq4_xs),
    30: PackedFormat(1, 2, _whole(ml_dtypes.bfloat16)),
    42: PackedFormat(64, 18, lambda b, to: _scale(b, to) * (_bits(b[:, 2:], 2).reshape(-1, 64).astype(to) - 1)),  # Q2_0
}
PACKED_FORMATS: list[Op] = [Op("GatherPacked", gather_packed, zero, domain=DOMAIN)]
