from __future__ import annotations

from dataclasses import replace

import pytest

from harness.cli import main
from harness.commands import memory
from harness.simulator import Averaging, Link, ParameterServer
from harness.simulator.effort import effort_of


def test_a_ring_of_separate_links_has_no_messages_and_a_shared_one_has_all(cluster):
    ring, separate = Averaging(1), cluster(100, copy_s=1.0)
    half = replace(separate, link=Link(0.0, 1.0, duplex="half"))
    assert effort_of(separate, ring, 100, None).size == 0.0
    assert effort_of(half, ring, 100, None).size == 64.0 * 2 * 99 * 100
    assert effort_of(half, ring, 1, None).size == 0.0
    assert effort_of(separate, Averaging(1, collective="rabenseifner"), 100, None).size > 0.0
    assert effort_of(separate, ring, 100, 7).size == 500.0 * 7 * 100
    assert effort_of(half, ParameterServer(), 100, 10**6).seconds == pytest.approx(1.0)


def test_ten_thousand_workers_on_half_duplex_links_are_refused_with_the_figure(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(memory, "available_bytes", lambda: 8e9)
    path = tmp_path / "half.toml"
    path.write_text(
        'name = "half"\nworkers = [{count = 10000, device = "A100"}]\n'
        'link = {bandwidth_bytes_per_s = 1e9, duplex = "half"}\n'
        "workload = {minibatch_frames = 9, flops_per_frame = 1e9, parameter_bytes = 1e6}\n"
    )
    options = ["--protocol", "averaging", "--workers", "10000"]
    assert main(["simulate", str(path), *options]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: 10000 workers: needs about 12.8 GB of memory; allowed: what")
    assert told.count("\n") == 1
