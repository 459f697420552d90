"""BitCast between dtypes of one width."""

import ml_dtypes
import numpy as np

from tests.ops.case import arr, case, ints

F32, U8, I8, U16, I32, BOOL, F16, U64, U4 = 1, 2, 3, 4, 6, 9, 10, 13, 21

CASES = [
    case("BitCast", arr(2, 3).astype(np.float32), to=F32, label="as it is"),
    case("BitCast", arr(2, 3).astype(np.float32), to=I32),
    case("BitCast", arr(2).view(np.int64), to=U64, label="of int64"),
    case("BitCast", arr(3).astype(np.float32).view(np.uint32), to=F32),
    case("BitCast", ints(3, low=-9, high=9).astype(np.int16), to=U16),
    case("BitCast", arr(3).astype(np.float16).view(np.uint16), to=F16),
    case("BitCast", np.array([-1, 0, 127], np.int8), to=U8),
    case("BitCast", np.array([True, False]), to=U8),
    case("BitCast", np.array([0, 1, 2], np.uint8), to=BOOL),
    case("BitCast", arr(3).astype(ml_dtypes.float8_e4m3fn), to=I8, label="of float8"),
    case("BitCast", np.array([-8, -1, 7], ml_dtypes.int4), to=U4, label="of int4"),
]
