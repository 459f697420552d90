"""The whole corpus takes long: it is collected where `-m` asks for slow tests, and a part of it otherwise."""

from __future__ import annotations

import pytest

SEEDS = range(5)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `seed` runs with each of five seeds where all is wanted, else with the first alone."""
    if "seed" in metafunc.fixturenames:
        every = [pytest.param(seed, marks=pytest.mark.slow) for seed in SEEDS]
        metafunc.parametrize("seed", every if whole(metafunc.config) else SEEDS[:1], ids="seed{}".format)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What is marked as slow here is left out unless it is asked for."""
    if not whole(config):
        left_out = [item for item in items if item.path.parent.name == "corpus" and item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def whole(config: pytest.Config) -> bool:
    """`-m slow`, or an expression with it, was given."""
    asked: str = config.option.markexpr
    return "slow" in asked and "not slow" not in asked
