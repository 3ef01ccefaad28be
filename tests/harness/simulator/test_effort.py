import math
from dataclasses import replace

import pytest

from harness.cli import main
from harness.commands import simulate
from harness.simulator import Averaging, Level, Link, Network, ParameterServer
from harness.simulator.collectives import EXCHANGES, schedule
from harness.simulator.foresight import effort_of
from harness.simulator.protocols.averaging import count_messages


def test_a_ring_has_no_table_of_messages_and_what_meets_on_links_takes_longer(cluster):
    ring, separate = Averaging(1), cluster(100, copy_s=1.0)
    half = replace(separate, link=Link(0.0, 1.0, duplex="half"))
    fair = replace(half, network=Network((Level(1, 1.0, 0.0, "half"),)))
    found = [effort_of(machine, ring, 100, None) for machine in (separate, half, fair)]
    assert [effort.size for effort in found] == [60_000.0] * 3
    assert found[0].seconds < found[1].seconds < found[2].seconds
    assert effort_of(half, ring, 1, None).seconds < found[0].seconds / 100
    table = effort_of(separate, Averaging(1, collective="two-level"), 100, None)
    assert table.size == 60_000.0 + 64.0 * 2 * 99 * 100
    assert effort_of(separate, ring, 100, 7).size == 60_000.0 + 500.0 * 7 * 100
    assert effort_of(half, ParameterServer(), 100, 10**6).seconds == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("collective", EXCHANGES)
@pytest.mark.parametrize("workers", [2, 8, 12, 13])
def test_messages_are_not_underrated(collective, workers):
    near = math.gcd(workers, 4)
    assert count_messages(collective, workers, near) >= len(
        schedule(collective, workers, 4).messages
    )


def test_ten_million_workers_are_foretold_with_what_precedes_their_first_fold(cluster):
    effort = effort_of(cluster(4), ParameterServer(), 10**7, None)
    assert effort.first_s == 20.0
    assert effort.seconds == 20.0 + 5e7 * 1e-6
    assert effort.size == 4.5e9


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
