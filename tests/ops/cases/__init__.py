"""Every way an operator can be used, a module for each family; `CASES` holds them all."""

from __future__ import annotations

import importlib
import pkgutil

from tests.ops.case import Case

CASES: list[Case] = [
    case
    for module in pkgutil.iter_modules(__path__)
    for case in importlib.import_module(f"{__name__}.{module.name}").CASES
]
