"""Cases with the function of torch that does the same, a module for each family; `PAIRS` holds them all."""

from __future__ import annotations

import importlib
import pkgutil

from tests.ops.torch_pairs.pair import Pair

PAIRS: list[Pair] = [
    pair
    for module in pkgutil.iter_modules(__path__)
    if module.name != "pair"
    for pair in importlib.import_module(f"{__name__}.{module.name}").PAIRS
]
