"""Benchmarks: processor time of one computation over another's within one run, against a bound.

``tox -e bench`` measures (``--benchmark-enable``); at night each runs once, untimed. A bound
holds on any processor: it is about twice the largest ratio that was measured.
``--plant ROOM`` slows one function of a room: a benchmark of that room must fail then.
"""

import functools
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch

Work = Callable[[], object]

SLOWNESS = 6.0
"""Time of a planted function, as a multiple of its own."""

ROOMS = {
    "acoustics": ("harness.acoustics.sums", "occupancies"),
    "algorithms": ("harness.algorithms.async_sgd", "AveragedSgd.fold"),
    "collectives": ("harness.simulator.collectives", "AllReduce.ends_s"),
    "data_synth": ("data_synth.continuous", "Maker.chunk"),
    "modules": ("harness.modules.network", "ModuleNetwork.gradient"),
    "natural_gradient": ("harness.natural_gradient.estimate", "precondition"),
    "networks": ("harness.networks.feedforward", "Dnn.gradient"),
    "reports": ("reports", "build"),
    "rollouts": ("harness.rollouts.protocol", "Rollouts.advance"),
    "simulator": ("harness.simulator.simulation", "Simulation.advance"),
    "speech": ("harness.speech.frames", "FramesOnDevice.gather"),
}
"""Module and function that ``--plant`` slows, by room."""

ratios: list[tuple[str, float, float]] = []


def processor_s(work: Work) -> float:
    """Processor time of a call, which other programs disturb less than the clock."""
    start = time.process_time()
    work()
    return time.process_time() - start


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--plant", choices=sorted(ROOMS), help="slow a function of this room")


def pytest_configure(config: pytest.Config) -> None:
    if room := config.getoption("--plant"):
        owner, name = find_planted(room)
        setattr(owner, name, slow(getattr(owner, name)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.nightly)


def find_planted(room: str) -> tuple[Any, str]:
    """The object that has the function to slow, and the function's name."""
    module, path = ROOMS[room]
    *owners, name = path.split(".")
    return functools.reduce(getattr, owners, import_module(module)), name


def slow(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function with the same result, `SLOWNESS` times as slow."""

    @functools.wraps(function)
    def slowed(*arguments: Any, **options: Any) -> Any:
        start = time.process_time()
        result = function(*arguments, **options)
        end = time.process_time()
        while time.process_time() < end + (SLOWNESS - 1.0) * (end - start):
            pass
        return result

    return slowed


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def note(benchmark, request):
    """``note(ratio, at_most)`` stores a measured ratio, and fails above the bound."""

    def check(ratio: float, at_most: float) -> None:
        benchmark.pedantic(lambda: None)  # pytest-benchmark stores what a benchmark has run
        benchmark.extra_info["ratio"] = ratio
        if benchmark.enabled:
            ratios.append((request.node.name, ratio, at_most))
            assert ratio <= at_most

    return check


@pytest.fixture
def compare(benchmark, note):
    """``compare(work, other, at_most=…)``: the median ratio of their times, taken in turns."""

    def run(work: Work, other: Work, at_most: float, rounds: int = 7) -> None:
        work()
        other()
        rounds = rounds if benchmark.enabled else 1
        pairs = [(processor_s(work), processor_s(other)) for _ in range(rounds)]
        note(median(one / max(two, 1e-9) for one, two in pairs), at_most)

    return run


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if ratios:
        terminalreporter.section("processor time over that of the peer")
        for name, ratio, bound in ratios:
            mark = "" if ratio <= bound else "  TOO SLOW"
            terminalreporter.write_line(f"{name:90} {ratio:8.4f}  at most {bound:g}{mark}")
