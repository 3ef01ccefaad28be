"""Run files of anybody's module: trained, predicted, killed, on real processes and replayed."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from harness import cli
from harness.algorithms.compression import Compressed, Int8
from harness.base.errors import UserError
from harness.base.seeds import identity
from harness.experiment.contract import Progress
from harness.experiment.display import Display
from harness.experiment.run import run as execute
from harness.experiment.run_file import load_folds, load_run
from harness.fidelity.predict import time_passes
from harness.fidelity.replay import config_of, load_finished_run, replay_run
from harness.store import Store
from harness.store.files import add_digest
from harness.store.schema import MODEL
from tests.silence import silent

CODE = """
import torch
from torch import nn

def make_model():
    layers = nn.Linear(6, 8), nn.Dropout({dropout}), nn.Tanh(), nn.Linear(8, 3)
    return nn.Sequential(*layers).{kind}()

def data():
    drawn = torch.Generator().manual_seed(1)
    x = torch.randn({examples}, 6, generator=drawn)
    return x, x[:, :3].argmax(1)

def spoilt():
    x, y = data()
    x[5, 2] = torch.nan
    return x, y

pairs = [(torch.zeros(6), 0), (torch.ones(6), 1)]
number = 3
loss = nn.functional.cross_entropy

def fails():
    raise RuntimeError("no disk")

def quits():
    raise SystemExit(5)

def each_wrong(outputs, targets):
    return (outputs.argmax(1) != targets).double()

def halves(targets, workers, random):
    return [range(54), range(54, 108)]

def share_wrong(outputs, targets):
    return (outputs.argmax(1) != targets).double().mean()
"""
CLUSTER = """
name = "two"
[[workers]]
count = 2
device = "slow"
[devices.slow]
launch_s = {launch_s}
[workload]
minibatch_frames = 8
flops_per_frame = 1000.0
parameter_bytes = 100.0
"""
TASK = """
cluster = "cluster.toml"
workers = 2
passes = 2
evaluations = 3
[task]
is = "module"
model = "{module}:make_model"
loss = "{module}:loss"
data = "{module}:data"
minibatch = 8
"""
ASYNCHRONOUS = """
[algorithm]
is = "AsyncSgd"
[schedule]
is = "Constant"
rate = 0.1
"""
ROUNDS = """
[protocol]
every = 2
[algorithm]
is = "ModelAveraging"
descent = { is = "Momentum" }
[schedule]
is = "Constant"
rate = 0.05
"""
Written = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Written]:
    """Writes a module, a cluster and a run file; the module's name is the test's own."""
    module = f"own_{abs(hash(request.node.nodeid))}"

    def written(
        training: str = ASYNCHRONOUS, top: str = "", task: str = "", kind: str = "float",
        dropout: float = 0.0, examples: int | str = 120, launch_s: float = 0.001,
    ) -> Path:  # fmt: skip
        code = CODE.format(dropout=dropout, kind=kind, examples=examples)
        (tmp_path / f"{module}.py").write_text(code, encoding="utf-8")
        cluster = CLUSTER.format(launch_s=launch_s)
        (tmp_path / "cluster.toml").write_text(cluster, encoding="utf-8")
        text = top + TASK.format(module=module) + task.format(module=module) + training
        (tmp_path / "run.toml").write_text(text, encoding="utf-8")
        return tmp_path / "run.toml"

    yield written
    sys.modules.pop(module, None)


def test_training_and_prediction_simulate_the_same_seconds(write: Written, tmp_path: Path) -> None:
    for name, training in (("a", ASYNCHRONOUS), ("r", ROUNDS)):
        config = load_folds(write(training))
        run = execute(config, Store(tmp_path / name), silent)
        predicted = time_passes(config, config.task.open(config).pieces)
        assert run.status == "done"
        assert predicted.ends_s[-1] == run.summary["virtual_s"] > 0.0
        assert predicted.timeline.sha256() == run.summary["timeline_sha256"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("choices", "ranks"),
    [
        ({"training": ASYNCHRONOUS, "dropout": 0.2}, 3),
        ({"training": ASYNCHRONOUS, "kind": "double"}, 3),
        ({"training": ROUNDS, "dropout": 0.2}, 3),
        ({"training": ROUNDS, "task": 'partition = "by_label"\n'}, 3),
    ],
    ids=["asynchronous, dropout", "float64", "rounds with momentum, dropout", "rounds, own data"],
)
def test_real_processes_are_recorded_and_replay_to_the_same_bits(
    write: Written, launch: Callable[..., Any], tmp_path: Path, choices: dict[str, Any], ranks: int
) -> None:
    running = launch(write(**choices), ranks)
    codes, told = running.ended()
    assert codes == [0] * ranks, told
    found = replay_run(running.folder(), silent, tmp_path / "run.toml")
    assert found.replayed_sha256 == found.recorded_sha256
    assert found.folds > 5


def test_a_run_is_replayed_with_the_code_of_the_run_file_that_is_named_and_no_other(
    write: Written, tmp_path: Path
) -> None:
    run = execute(load_run(file := write()), Store(tmp_path / "store"), silent)
    assert replay_run(run.dir, silent, file).largest_difference == 0.0
    write(examples=1210)  # of another length too: bytecode of the same second and size is kept
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]
    with pytest.raises(UserError, match="are not those of the run file"):
        replay_run(run.dir, silent, file)


EVIL = (
    "import pathlib\npathlib.Path({proof!r}).touch()\nmake_model = data = loss = lambda *_: None\n"
)


@pytest.mark.parametrize("command", ["replay", "compare"])
def test_nothing_that_a_stored_run_names_is_imported(
    write: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Neither by a file beside it, nor by its configuration; nor is code from its folder."""
    file = write(top="seed = 3\n", examples=1200)  # `compare` wants some folds
    run = execute(load_run(file), Store(tmp_path / "store"), silent)
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]
    (module,) = tmp_path.glob("own_*.py")
    proof, code = tmp_path / "proof", module.stem
    task = {key: f"{code}:{name}" for key, name in (("model", "make_model"), ("loss", "loss"))}
    kept = {"folder": str(run.dir), "import": [code, "evil"], "task": task}
    (run.dir / "task.json").write_text(json.dumps(kept))
    for name in (code, "evil", "torch", "harness"):
        (run.dir / f"{name}.py").write_text(EVIL.format(proof=str(proof)))
    changes = {"algorithm": {"is": "evil:make_model"}, "import": ["evil"], "task": task}
    record = json.loads((run.dir / "run.json").read_text())
    config = {**run.config, **changes}
    record |= {"config": config, "hash": identity(config)}
    forged = tmp_path / "store" / identity(config)
    shutil.copytree(run.dir, forged)
    del record["sha256"]
    (forged / "run.json").write_text(json.dumps(add_digest(record)))
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    for folder in (run.dir, forged):
        monkeypatch.chdir(folder)
        assert cli.main([command, str(folder)]) == 2
        assert capsys.readouterr().err.splitlines()[-1].startswith("error: ")
        assert (cli.main([command, str(folder), str(file)]) == 0) == (folder == run.dir)
        assert not proof.exists()


def test_what_is_charged_follows_the_file(write: Written) -> None:
    def work(task: str) -> Any:
        return load_run(write(task=task)).workload()

    counted = work("")
    assert counted.minibatch_frames == 8
    assert counted.parameter_bytes == 4 * (6 * 8 + 8 + 8 * 3 + 3)
    assert work('charge_for = "cluster"\n').flops_per_frame == 1000.0
    timed = load_run(write(task="step_seconds = 0.5\n"))
    assert {each.launch_s for each in timed.cluster.devices.values()} == {0.5}


def test_a_run_has_as_much_to_do_as_it_has_passes_and_parameters(write: Written) -> None:
    assert load_run(write()).effort == 2 * (6 * 8 + 8 + 8 * 3 + 3)


def test_a_metric_of_ones_own_judges(write: Written, tmp_path: Path) -> None:
    config = load_run(write(task='metric = "{module}:share_wrong"\n'))
    assert config.judged == "dev_share_wrong"
    seen: list[Progress] = []
    run = execute(config, Store(tmp_path / "store"), seen.append)
    last = run.summary["dev_share_wrong/iterate"]
    assert seen[-1].measured == f"share wrong {last:.6g}"
    (shown := Display({run.hash: "mine"}, {run.hash: 1.0})).hear(seen[-1])
    (line,) = shown._lines()
    assert line == f"mine 2.0/2 passes, share wrong {last:.6g}"


@pytest.mark.parametrize("asked", ["by_label", "dirichlet:0.5", "{module}:halves"])
def test_a_run_file_gives_workers_different_data(
    asked: str, write: Written, launch: Callable[..., Any], tmp_path: Path
) -> None:
    config = load_run(write(task=f'partition = "{asked}"\n'))
    run = execute(config, Store(tmp_path / "store"), silent)
    assert run.summary["largest_share"] >= 54.0 >= run.summary["smallest_share"]
    assert config_of(load_finished_run(run.dir), config).to_dict() == run.config
    codes, told = launch(tmp_path / "run.toml", 3).ended()
    assert 2 in codes
    assert "task.partition: simulated only without rounds" in "".join(told)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (':make_model"', ':nothing"', "model: '{module}:nothing': {module} has no 'nothing'"),
        (':make_model"', '"', "model: '{module}' is not allowed; allowed: a name as"),
        ('"{module}:data"', '"nowhere_at_all:data"', "data: 'nowhere_at_all' cannot be imported"),
        (':data"', ':fails"', "data: {module}:fails raised RuntimeError: no disk"),
        (':data"', ':number"', "data: int has no items by number"),
        (':loss"', ':number"', "loss: a int; allowed: a function, or 'model'"),
        ("minibatch = 8", "minibatch = 0", "task.minibatch: 0 is not allowed"),
        (':make_model"', ':fails"', "task.model: {module}:fails raised RuntimeError: no disk"),
        (':make_model"', ':quits"', "task.model: {module}:quits raised SystemExit: 5"),
        (':make_model"', ':share_wrong"', "share_wrong raised TypeError: share_wrong() missing 2"),
        (':make_model"', ':data"', "task.model: gives a tuple; allowed: a torch.nn.Module"),
        (':loss"', ':quits"', "task.loss: fails on a minibatch of 8 examples: TypeError"),
        (':loss"', ':each_wrong"', "task.loss: shape [8]; allowed: one number"),
        (
            "minibatch = 8",
            'minibatch = 8\nmetric = "{module}:each_wrong"',
            "task.metric: each_wrong: shape [108]; allowed: one number for a set",
        ),
        (
            "loss =",
            "los =",
            "key: unknown 'los' (did you mean 'loss'?); allowed: accumulate, algorithm, ",
        ),
        ("loss =", "# loss =", "run.toml: task.loss: missing; needed: a name"),
        (
            "passes = 2",
            "pases = 2",
            "key: unknown 'pases' (did you mean 'passes'?); allowed: ",
        ),
        ("minibatch = 8", 'charge_for = "clustr"', "task.charge_for: 'clustr'; allowed: a torch"),
        ("[algorithm]", "[protocol]\nevery = 2\nis = 'averaging'\n[algorithm]", "run.toml: prot"),
        (
            "[algorithm]",
            "[protocol]\nis = 'sequence'\n[algorithm]",
            "protocol: 'sequence' hands out no examples to train on; allowed: parameter_server",
        ),
        ("passes = 2", "work = 8", "work: not allowed; it follows from the rest"),
    ],
)
def test_mistakes_are_one_line(
    write: Written, old: str, new: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write()
    text = path.read_text(encoding="utf-8")
    module = text.partition('model = "')[2].partition(":")[0]
    old, new, line = (each.replace("{module}", module) for each in (old, new, line))
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    assert cli.main(["train", str(path), "--out", str(path.parent / "store")]) == 2
    said = capsys.readouterr().err
    assert line in said
    assert len(said.splitlines()) == 1


def test_mistakes_that_a_run_meets_name_its_file_too(write: Written) -> None:
    path = write(examples=8)
    config = load_folds(path)
    with pytest.raises(UserError, match=r"run.toml: task.minibatch: a fold takes a minibatch of 8"):
        config.order(0, config.task.open(config).pieces)


def test_a_module_that_ends_the_program_is_refused_in_one_line(
    write: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write()
    module = next(path.parent.glob("own_*.py"))
    module.write_text("raise SystemExit(5)", encoding="utf-8")
    assert cli.main(["train", str(path)]) == 2
    assert capsys.readouterr().err.endswith(f"{module.stem!r} cannot be imported (SystemExit: 5)\n")


def test_the_model_that_a_run_file_trains_is_that_of_a_program(
    write: Written, tmp_path: Path
) -> None:
    import lagbench

    path = write()
    run = execute(load_run(path), Store(tmp_path / "store"), silent)
    module: Any = next(m for name, m in sys.modules.items() if name.startswith("own_"))
    settings: Any = {"minibatch": 8, "passes": 2, "evaluations": 3, "seeds": 1}
    settings |= {"step_seconds": "count", "store": tmp_path / "program"}
    lagbench.train(
        *(module.make_model, module.loss, module.data()),
        cluster=tmp_path / "cluster.toml", algorithm="async", workers=2, rate=0.1, **settings,
    )  # fmt: skip
    (other,) = [r for r in Store(tmp_path / "program").runs() if MODEL in r.digests]
    assert other.hash == run.hash
    assert (load_file(other.path(MODEL))["model"] == load_file(run.path(MODEL))["model"]).all()


def test_another_algorithm_is_charged_for_what_it_sends(write: Written, tmp_path: Path) -> None:
    config = load_folds(write(ROUNDS))
    half = Compressed(coder=Int8())
    there = config.vary(algorithm=half)
    whole = config.workload().parameter_bytes
    assert there.workload().parameter_bytes == whole * half.sent < whole
    assert there.vary(algorithm=config.algorithm).to_dict() == config.to_dict()
    run = execute(there, Store(tmp_path / "store"), silent)
    assert run.config["work"]["parameter_bytes"] == whole * half.sent
    assert config_of(run, config).workload() == there.workload()


def test_runs_of_a_module_are_submitted_like_others(write: Written, tmp_path: Path) -> None:
    path, store = write(), tmp_path / "submitted"
    words = ["--seeds", "2", "--submit", "concurrent.futures:ThreadPoolExecutor"]
    assert cli.main(["train", str(path), *words, "--out", str(store)]) == 0
    here = execute(load_run(path), Store(tmp_path / "here"), silent)
    runs = Store(store).runs()
    assert [run.status for run in runs] == ["done", "done"]
    assert Store(store).load(here.hash).path(MODEL).read_bytes() == here.path(MODEL).read_bytes()
