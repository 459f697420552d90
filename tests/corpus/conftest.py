"""The whole corpus takes long: it is collected where `-m` asks for slow tests, and a part of it otherwise."""

from __future__ import annotations

import pytest

from tests.conftest import whole

USUAL, SLOW = 0, 1  # seeds: of the part, and of the whole


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `seed` draws other numbers where all is wanted; `python -m tests.corpus` takes more seeds."""
    if "seed" in metafunc.fixturenames:
        drawn = pytest.param(SLOW, marks=pytest.mark.slow) if whole(metafunc.config) else USUAL
        metafunc.parametrize("seed", [drawn], ids="seed{}".format)
