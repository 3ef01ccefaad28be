from __future__ import annotations

import json
import sys
import tarfile
from importlib import import_module

import pytest
import torch

from harness.base.errors import UserError
from harness.bench import device
from harness.bench.device import (
    ARCHIVE,
    PLAN,
    MeasurementPlan,
    Reproduction,
    Scale,
    measure,
    shares,
)
from harness.bench.steps import RATE, Setting, median_ratio, pair
from harness.cli import main
from reproductions.command import PAPERS

TINY = Scale((22, 8, 5), 4, 1000, 64, 1 << 16, 0.01, "smoke")
"""Two features a frame."""
EVERY_PART = device.PARTS


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setitem(device.SCALES, "small", TINY)
    monkeypatch.setattr(device, "REPLICAS", 3)
    monkeypatch.setattr(device, "MADE_UTTERANCES", {"cpu": 4})
    monkeypatch.setattr(device, "PARTS", {"ceilings": device.measure_ceilings})


def asked(out, minutes=10.0, presets=()):
    return MeasurementPlan(
        "cpu", "small", tuple(map(Reproduction.from_text, presets)), minutes, out
    )


def nobody(line):
    del line


def test_every_part_tells_figures_of_this_device(tmp_path, monkeypatch):
    monkeypatch.setattr(device, "PARTS", EVERY_PART)
    found = measure(asked(tmp_path), nobody)
    assert not found["unfinished"]
    parts = found["parts"]
    assert parts["pass"]["part"] == parts["pass"]["frames"] / 180e6
    assert parts["pass"]["whole_pass_extrapolated_s"] == pytest.approx(
        parts["pass"]["seconds"] / parts["pass"]["part"]
    )
    assert (parts["pass"]["precision"], parts["pass"]["in_blocks"]) == ("float32", False)
    assert set(parts["steps"]) == {"float32", "bf16", "measured"}
    assert set(parts["replicas"]["bf16"]) == {"1", "4", "50"}
    assert parts["speech"]["same_in_pieces"]
    assert {"float32", "float32, 50 replicas", "bf16, 4 replicas"} < set(found["shares"])
    assert parts["graphs"]["unmeasured"] == "CUDA graphs need a GPU"
    assert parts["blocks"]["fold_in_blocks_s"] > 0.0
    assert all(share > 0.0 for share in found["shares"].values())


def test_finished_parts_are_kept_and_a_further_command_does_the_others(tmp_path, monkeypatch):
    began = []
    monkeypatch.setattr(
        device,
        "PARTS",
        {name: lambda scale, on, name=name: began.append(name) or {} for name in "ab"},
    )
    monkeypatch.setattr(device, "LEAST_S", {"b": 60.0})
    whole = MeasurementPlan("cpu", "paper", (), 0.5, tmp_path)
    assert measure(whole, nobody)["unfinished"] == ["b"]
    assert measure(MeasurementPlan("cpu", "paper", (), 2.0, tmp_path), nobody)["unfinished"] == []
    assert began == ["a", "b"]


def test_the_archive_holds_the_figures_and_says_where_they_are_from(tmp_path):
    measure(asked(tmp_path), nobody)
    found = packed(tmp_path)
    assert found == json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert {"git", "machine", "written"} <= found["provenance"].keys()


def test_a_folder_of_another_scale_is_refused(tmp_path):
    measure(asked(tmp_path), nobody)
    with pytest.raises(UserError, match=r"holds figures of scale 'small', not 'paper'"):
        measure(MeasurementPlan("cpu", "paper", (), 1.0, tmp_path), nobody)


def packed(out):
    with tarfile.open(out / ARCHIVE) as archive:
        return json.load(archive.extractfile("lagbench-device/results.json"))


def test_a_part_that_fails_is_told_and_the_others_are_measured(tmp_path, monkeypatch):
    tried = []

    def failing(scale, on):
        tried.append(on)
        raise RuntimeError("CUDA error: no more memory\nand what else torch says")

    monkeypatch.setattr(device, "PARTS", {"a": failing, "b": lambda scale, on: {"x": 1}})
    found = measure(asked(tmp_path), nobody)
    assert found["failed"] == {"a": "RuntimeError: CUDA error: no more memory"}
    assert found["unfinished"] == ["a"]
    assert found["parts"]["b"]["x"] == 1
    assert packed(tmp_path) == found
    measure(asked(tmp_path), nobody)
    assert len(tried) == 2


def test_what_is_interrupted_has_its_archive(tmp_path, monkeypatch):
    def interrupted(scale, on):
        assert packed(tmp_path)["parts"].keys() == {"a"}  # already, should we be killed now
        raise KeyboardInterrupt

    monkeypatch.setattr(device, "PARTS", {"a": lambda scale, on: {}, "b": interrupted})
    with pytest.raises(KeyboardInterrupt):
        measure(asked(tmp_path), nobody)
    assert packed(tmp_path)["unfinished"] == ["b"]


def test_reproductions_follow_each_other_in_the_order_of_their_value(tmp_path, monkeypatch):
    commands = []
    monkeypatch.setattr(device, "PARTS", {})
    monkeypatch.setattr(
        device, "run_with_limit", lambda command, limit_s: commands.append(command) or 0
    )
    plan = ("paper1/paper:fig1,staleness", "paper1/paper:table2", "paper2/gpu")
    measure(asked(tmp_path, presets=plan), nobody)
    told = [[c[3], c[c.index("--only") + 1] if "--only" in c else ""] for c in commands]
    assert told == [["paper1", "fig1,staleness"], ["paper1", "table2"], ["paper2", ""]]
    assert commands[0][-1] == commands[1][-1] != commands[2][-1]  # their runs are shared


def test_a_reproduction_that_is_not_done_keeps_the_next_from_beginning(tmp_path, monkeypatch):
    codes = iter([130, 0, 0])
    monkeypatch.setattr(device, "PARTS", {})
    monkeypatch.setattr(device, "run_with_limit", lambda command, limit_s: next(codes))
    plan = ("paper1/paper:fig1", "paper2/gpu")
    first = measure(asked(tmp_path, presets=plan), nobody)
    assert first["unfinished"] == ["paper1-paper-fig1", "paper2-gpu"]
    assert measure(asked(tmp_path, presets=plan), nobody)["unfinished"] == []


def test_a_gpu_reproduces_paper_1_at_its_own_scale_first():
    assert str(PLAN[0]).startswith("paper1/paper:")
    for preset in PLAN:
        assert Reproduction.from_text(str(preset)) == preset
        paper = import_module(PAPERS[preset.paper]).PAPER
        paper.select_makers(preset.exhibits, preset.scale)


@pytest.mark.parametrize(("code", "left"), [(130, ["paper1-smoke"]), (0, []), (3, [])])
def test_a_reproduction_goes_on_for_the_rest_of_the_time_until_it_ends(
    tmp_path, monkeypatch, code, left
):
    commands = []

    def within(command, limit_s):
        commands.append(command)
        return code

    monkeypatch.setattr(device, "run_with_limit", within)
    first = measure(asked(tmp_path, presets=["paper1/smoke"]), nobody)
    measure(asked(tmp_path, presets=["paper1/smoke"]), nobody)
    assert first["unfinished"] == left
    assert len(commands) == (2 if left else 1)
    command = commands[0]
    assert 0.0 < float(command[command.index("--budget") + 1]) < 10.0
    assert command[command.index("--scale") + 1] == "smoke"


def test_a_reproduction_that_is_refused_is_the_users_mistake(tmp_path, monkeypatch):
    monkeypatch.setattr(device, "run_with_limit", lambda command, limit_s: 2)
    with pytest.raises(UserError, match="--preset paper9/gpu: refused"):
        measure(asked(tmp_path, presets=["paper9/gpu"]), nobody)


def test_what_takes_longer_than_it_may_is_interrupted_as_a_user_would():
    told = "import signal, time; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    told += "try: time.sleep(60)\nexcept KeyboardInterrupt: print('stopped')"
    assert device.run_with_limit([sys.executable, "-c", "raise SystemExit(3)"], 60.0) == 3
    assert device.run_with_limit([sys.executable, "-c", told], 1.0) == 130


def test_the_bare_step_does_what_a_fold_does():
    setting = Setting((22, 8, 5), 4, 1000, "cpu")
    ours, bare = pair(setting)
    x, targets = ours.minibatch_of([(0, 0)])
    model, out = ours.replay.server.model.clone(), torch.empty(1, len(ours.replay.server.model))
    ours.replay.network.gradient(model[None], x, targets, out)
    bare.run(1)
    after = torch.cat([each.detach().flatten() for each in bare.net.parameters()])
    torch.testing.assert_close(after, model - RATE * out[0])


def test_a_ratio_is_the_median_of_the_rounds():
    assert median_ratio([2.0, 3.0, 100.0], [1.0, 1.0, 1.0]) == 3.0


def test_a_share_is_of_the_ceiling_in_the_same_precision():
    parts = {
        "ceilings": {"float32_flops_per_s": 10.0, "bf16_flops_per_s": 100.0},
        "steps": {
            "float32": {"flops_per_s": 5.0},
            "bf16": {"flops_per_s": 20.0},
            "measured": "now",
        },
    }
    assert shares(parts) == {"float32": 0.5, "bf16": 0.2}
    assert shares({"ceilings": {}}) == {}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--minutes", "0"], "--minutes 0.0"),
        (["--scale", "papr"], "did you mean 'paper'"),
        (["--preset", "paper1"], "--preset 'paper1'"),
    ],
)
def test_a_mistaken_option_is_answered_in_one_line(options, said, capsys, tmp_path):
    assert main(["device", "--device", "cpu", "--out", str(tmp_path / "out"), *options]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1
