import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cli import main
from harness.commands.timing import is_lockstep
from harness.simulator import Cluster, Device, Fault, WorkerGroup, Workload
from harness.simulator.cluster import Jitter, Server, Stragglers
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.simulator.simulation import LEAST_STEP_S, describe_doubts

PAGE = Path(__file__).parents[3] / "docs" / "clusters.md"


def test_workers_of_which_nothing_varies_are_in_lock_step(cluster):
    assert is_lockstep(cluster(4))
    assert is_lockstep(cluster(4, jitter=Jitter("gamma")))
    assert is_lockstep(cluster(4, jitter=Jitter("empirical", values=(2.0, 2.0))))
    assert is_lockstep(cluster(4, stragglers=Stragglers(0.5)))


@pytest.mark.parametrize(
    "more",
    [
        {"jitter": Jitter("gamma", 0.1)}, {"jitter": Jitter("empirical", values=(2.0, 3.0))},
        {"stragglers": Stragglers(0.1, 3.0)}, {"heterogeneity_cv": 0.1},
        {"faults": (Fault("late", at_s=(1.0,)),)},
    ],
    ids=str,
)  # fmt: skip
def test_whatever_varies_takes_them_apart(cluster, more):
    assert not is_lockstep(cluster(4, **more))
    assert not is_lockstep(replace(cluster(4), server=Server(0.1, 0.0, Jitter("gamma", 0.5))))


def test_lock_step_is_named_with_what_a_little_jitter_gives(tmp_path, capsys):
    """The page's first cluster, without its jitter."""
    example = PAGE.read_text(encoding="utf-8").split("```toml\n")[1].split("```")[0]
    path, out = tmp_path / "c.toml", tmp_path / "out.json"
    for text, locked in ((example, False), (example.replace("cv = 0.05", "cv = 0.0"), True)):
        path.write_text(text)
        options = ["--workers", "8", "--folds", "20000", "--json", str(out)]
        assert main(["simulate", str(path), *options]) == 0
        (row,) = json.loads(out.read_text())
        assert ("lock_step" in row) == locked
        assert ("in lock step" in capsys.readouterr().err) == locked
    assert row["speedup"] == pytest.approx(1.12, abs=0.01)
    assert row["lock_step"]["jittered_per_s"] > 1.6 * row["throughput_per_s"]

    alone = re.sub(r'sharing = "\w+"', 'sharing = "none"', text)  # then only staleness differs
    path.write_text(re.sub(r"\n\[server\]\n(.+\n)+", "\n", alone))
    assert main(["simulate", str(path), *options]) == 0
    (row,) = json.loads(out.read_text())
    assert row["lock_step"]["jittered_per_s"] == pytest.approx(row["throughput_per_s"], rel=0.01)
    assert row["lock_step"]["jittered_staleness"]["mean"] > 1.9 * row["staleness"]["mean"]

    device, count = re.search(r'device = "(.*)"', text)[1], re.search(r"count = (\d+)", text)[1]
    path.write_text(f'{text}\n[[workers]]\ncount = 1\ndevice = "{device}"\nspeed = 0.5\n')
    options[1] = f"{count},{int(count) + 1}"
    assert main(["simulate", str(path), *options]) == 0
    assert ["lock_step" in row for row in json.loads(out.read_text())] == [True, True]
    assert "9 workers (and 1 other row): in lock step" in capsys.readouterr().err


def test_a_minibatch_that_is_quicker_than_its_launch_is_warned_of(capsys):
    arguments = ["simulate", "reproductions/runs/clusters/unequal.toml", "--folds", "50"]
    assert main([*arguments, "--network", "10-10"]) == 0
    assert "devices.card: a step takes" in capsys.readouterr().err
    assert main([*arguments, "--network", "429-2048x7-10217"]) == 0
    assert "devices.card" not in capsys.readouterr().err


def test_a_device_without_costs_or_with_a_launch_is_not_too_quick():
    job = Workload(minibatch_frames=1, flops_per_frame=1.0, parameter_bytes=0.0)
    quick, slow = 2.0 / LEAST_STEP_S, 0.5 / LEAST_STEP_S
    devices = Device(quick), Device(slow), Device(quick, launch_s=LEAST_STEP_S / 5), Device()
    machines = [Cluster("one", {"card": card}, (WorkerGroup(1, "card"),)) for card in devices]
    lines = [describe_doubts(machine, ParameterServer(), job, 1) for machine in machines]
    assert [len(doubts) for doubts in lines] == [1, 0, 0, 0]
