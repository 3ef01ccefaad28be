import math

import pytest

from harness.cli import main
from harness.commands import simulate
from harness.simulator import Averaging, ParameterServer
from harness.simulator.collectives import EXCHANGES, schedule
from harness.simulator.foresight import estimate_bytes
from harness.simulator.protocols.averaging import count_messages


def test_what_a_simulation_keeps_is_workers_messages_and_contributions(cluster):
    machine, ring = cluster(100, copy_s=1.0), Averaging(1)
    assert estimate_bytes(machine, ring, 100, None) == 60_000.0
    assert estimate_bytes(machine, ring, 100, 7) == 60_000.0 + 500.0 * 7 * 100
    assert estimate_bytes(machine, ParameterServer(), 10, 7) == 6_000.0 + 500.0 * 7
    table = estimate_bytes(machine, Averaging(1, collective="two-level"), 100, None)
    assert table == 60_000.0 + 64.0 * 2 * 99 * 100


@pytest.mark.parametrize("collective", EXCHANGES)
@pytest.mark.parametrize("workers", [2, 8, 12, 13])
def test_messages_are_not_underrated(collective, workers):
    near = math.gcd(workers, 4)
    assert count_messages(collective, workers, near) >= len(
        schedule(collective, workers, 4).messages
    )


def test_ten_thousand_workers_whose_messages_need_a_table_are_refused_with_the_figure(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(simulate, "available_bytes", lambda: 8e9)
    path = tmp_path / "half.toml"
    path.write_text(
        'name = "half"\nworkers = [{count = 10000, device = "A100"}]\n'
        'link = {bandwidth_bytes_per_s = 1e9, duplex = "half"}\n'
        "workload = {minibatch_frames = 9, flops_per_frame = 1e9, parameter_bytes = 1e6}\n"
    )
    options = ["--protocol", "averaging", "--collective", "two-level", "--workers", "10000"]
    assert main(["simulate", str(path), *options]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: 10000 workers: needs about 12.8 GB of memory; allowed: what")
    assert told.count("\n") == 1
