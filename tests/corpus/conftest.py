"""The whole corpus takes long: it is collected where `-m` asks for slow tests, and a part of it otherwise."""

from __future__ import annotations

import pytest

from tests.conftest import whole

SEEDS = range(2)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `seed` runs with each of two seeds where all is wanted, else with the first alone."""
    if "seed" in metafunc.fixturenames:
        every = [pytest.param(seed, marks=pytest.mark.slow) for seed in SEEDS]
        metafunc.parametrize("seed", every if whole(metafunc.config) else SEEDS[:1], ids="seed{}".format)
