from argparse import Namespace
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from harness.algorithms.async_sgd import AsyncDescent, AsyncSgd, AveragedSgd
from harness.algorithms.averaging import ModelAveraging
from harness.algorithms.descent import AdamW
from harness.algorithms.diloco import EagerDiLoCo, StreamingDiLoCo
from harness.algorithms.schedules import Constant
from harness.algorithms.stale import FedBuff, Ringmaster
from harness.base.errors import UserError
from harness.base.settings import build
from harness.commands.overrides import find_methods
from harness.experiment.experiment import Stage
from harness.experiment.run_file import load_run
from harness.natural_gradient import NaturalGradient, Preconditioner
from harness.processes.rank_main import check_protocol
from harness.simulator.cluster import Fault
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.protocols.backup_workers import BackupWorkers
from harness.simulator.protocols.contract import Handing
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.speech.frames import corpus_of
from harness.tasks.order import Partition
from tests.run_files import ASYNCHRONOUS, written

EXAMPLES = Path(__file__).parents[3] / "reproductions" / "runs"
CLUSTERS = Path(__file__).parents[3] / "reproductions" / "clusters"
RUN = f"""
cluster = "{CLUSTERS / "k20m-server.toml"}"
workers = 2
[task]
is = "frames"
corpus = "parametric"
hidden = [8]
[algorithm]
is = "AsyncSgd"
[schedule]
is = "Constant"
rate = 0.01
[[stages]]
minibatch = 16
timed_minibatch = 256
"""


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda p: p.stem)
def test_every_documented_run_can_be_read(path: Path) -> None:
    config = load_run(path)
    if config.kind != "rollouts":  # problems make their own data
        assert config.task.fingerprint == corpus_of(config.task).fingerprint


def test_a_run_file_says_what_is_run_and_what_it_leaves_out_follows(tmp_path: Path) -> None:
    config = load_run(written(tmp_path, RUN), seed=7)
    corpus = corpus_of(config.task)
    assert config.algorithm == AsyncSgd()
    assert config.schedule == Constant(0.01)
    assert config.stages == (Stage(16, 256),)
    assert config.task.timed_layers == (corpus.dim * (2 * corpus.context + 1), 8, corpus.n_targets)
    assert config.seed == 7
    assert config.task.initial is None


def test_what_is_one_of_several_classes_may_be_nested(tmp_path: Path) -> None:
    text = RUN.replace(
        'is = "AsyncSgd"', 'is = "AveragedSgd"\ndescent = { scaling = "memory_of_one" }'
    )
    config = load_run(written(tmp_path, text))
    assert config.algorithm == AveragedSgd(AsyncSgd("memory_of_one"))


def test_local_steps_are_by_any_optimizer_and_natural_gradient_where_none_is_named(tmp_path):
    averaging = (
        RUN.replace("AsyncSgd", "ModelAveraging") + "[protocol]\nevery = 2\n[algorithm.descent]\n"
    )
    named = load_run(written(tmp_path, averaging + 'is = "AdamW"\nbeta2 = 0.95\n'))
    assert named.algorithm == ModelAveraging(AdamW(beta2=0.95))
    natural = load_run(written(tmp_path, averaging + "inputs = { rank = 3, period = 4 }\n"))
    assert natural.algorithm == ModelAveraging(NaturalGradient(Preconditioner(3, 4)))
    with pytest.raises(UserError, match=r"algorithm.descent.is: unknown 'AdanW'.*AdamW"):
        load_run(written(tmp_path, averaging + 'is = "AdanW"\n'))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"AsyncSgd"', '"AsyncSDG"', "algorithm.is: unknown 'AsyncSDG' (did you mean 'Async"),
        ('is = "Constant"', "", "schedule.is: missing; allowed: one of Constant"),
        ("rate = 0.01", "rte = 0.01", "unknown 'rte' (did you mean 'rate'?)"),
        ("rate = 0.01", "rate = -1", "schedule.rate: -1.0 is not allowed; allowed: a number ab"),
        ("workers = 2", "workers = 0", "workers: 0 is not allowed; allowed: a whole number"),
        ("workers = 2", "workers = 2\nfingerprint = 'x'", "fingerprint: not allowed"),
        ("workers = 2", "workers = 2\nseed = 'x'", "seed: 'x' is not allowed"),
        ("workers = 2", "workers = 2\nimports = ['x']", "import: in [task], or by another name"),
        ("hidden = [8]", "hidden = [8]\nimport = ['x']", "import: in [task], or by another name"),
        ("hidden = [8]", "", "task.hidden: missing; needed: a list"),
        ("hidden = [8]", "hiden = [8]", "key: unknown 'hiden' (did you mean 'hidden'?)"),
        (
            "workers = 2",
            "workers = 2\nhidden = [8]",
            "hidden: above [task] and in it; allowed: once",
        ),
        ('is = "frames"', "", "task: missing; needed: a table with is = one of "),
        ('is = "frames"', 'is = "frame"', "task.is: unknown 'frame' (did you mean 'frames'?)"),
        ("hidden = [8]", "hidden = [0]", "task.hidden[0]: 0 is not allowed"),
        ("hidden = [8]", "hidden = 8", "task.hidden: 8 is not allowed"),
        ("minibatch = 16", "minibatch = 1.5", "stages[0].minibatch: 1.5 is not allowed"),
        ('"parametric"', '"paramtric"', "(did you mean 'parametric'?)"),
        ('"parametric"', "3", "task.corpus: 3 is not allowed; allowed: a string"),
        ("k20m-server.toml", "k21m.toml", "k21m.toml: cannot read the file"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    assert old in RUN
    with pytest.raises(UserError) as caught:
        load_run(written(tmp_path, RUN.replace(old, new, 1)))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("bounded-staleness", r"protocol\.bound: \d+ is simulated only; allowed here: without it"),
        ("backup-workers", "protocol: BackupWorkers: simulated only; allowed here: averaging or"),
        ("averaging-with-deaths", "cluster.faults: real processes have no simulated faults"),
    ],
)
def test_real_processes_refuse_what_they_would_silently_not_have(file, line):
    path = EXAMPLES / f"{file}.toml"
    with pytest.raises(UserError, match=line):
        check_protocol(load_run(path), path)


def test_real_processes_refuse_the_faults_of_an_asynchronous_run_as_well():
    config = load_run(EXAMPLES / "async-averaged.toml")
    failing = load_run(EXAMPLES / "averaging-with-deaths.toml").cluster
    check_protocol(config, Path("run.toml"))
    with pytest.raises(UserError, match=r"run\.toml: cluster\.faults: .*; allowed here: none"):
        check_protocol(replace(config, cluster=failing), Path("run.toml"))


def test_a_fold_that_takes_more_minibatches_than_there_are_is_refused_in_one_line():
    asked = load_run(EXAMPLES / "bounded-staleness.toml")
    config = replace(asked, protocol=ParameterServer(push_every=100_000))
    with pytest.raises(UserError, match="a fold takes 100000 minibatches of 32 frames"):
        config.order(0, config.task.open(config).pieces)


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"algorithm": EagerDiLoCo(8)}, r"protocol\.overlap: false .*; allowed: true"),
        (
            {"algorithm": EagerDiLoCo(4), "protocol": Averaging(10, overlap=True)},
            r"algorithm\.workers: 4 is not allowed; allowed: 8",
        ),
        (
            {"algorithm": Ringmaster(), "protocol": None, "shards": 2},
            "shards: 2 is not allowed with Ringmaster; allowed: 1",
        ),
        ({"algorithm": FedBuff()}, "protocol: of another kind than FedBuff"),
    ],
)
def test_what_an_algorithm_cannot_have_is_refused_in_one_line(changed, line):
    config = load_run(EXAMPLES / "model-averaging.toml")
    with pytest.raises(UserError, match=line):
        replace(config, **changed)


def test_an_algorithm_that_may_be_in_rounds_says_so_and_its_usual_protocol_follows(tmp_path):
    springs = RUN.replace("AsyncSgd", "Easgd") + "[protocol]\n"
    alone = load_run(written(tmp_path, springs + "push_every = 5\n"))
    assert alone.protocol == ParameterServer(push_every=5)
    springs = springs.replace('"Easgd"\n', '"Easgd"\nrounds = true\n')
    together = load_run(written(tmp_path, springs + "every = 5\n"))
    assert (together.protocol, together.rounds) == (Averaging(5), True)
    entries = RUN.replace("AsyncSgd", "Compressed") + "[protocol]\nevery = 1\n"  # no sum on the way
    assert load_run(written(tmp_path, entries)).protocol == Averaging(1, collective="gather")


def test_a_fragment_is_what_a_cluster_is_charged_for():
    config = load_run(EXAMPLES / "model-averaging.toml")
    streaming = replace(config, algorithm=StreamingDiLoCo(fragments=4))
    sizes = [each.workload(0).parameter_bytes for each in (config, streaming)]
    assert sizes[1] == sizes[0] / 4


def test_a_server_that_fails_is_refused_where_there_is_none():
    config = load_run(EXAMPLES / "model-averaging.toml")
    fails = Fault("server", mean_s=5.0, down_s=1.0, checkpoint_s=1.0)
    with pytest.raises(UserError, match=r"cluster\.faults: 'server' is not supported with rounds"):
        replace(config, cluster=replace(config.cluster, faults=(fails,)))


def test_a_protocol_without_a_kind_is_what_the_algorithm_trains_in(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(RUN.replace("[algorithm]", "[protocol]\ndepth = 2\n[algorithm]"))
    assert load_run(path).protocol == ParameterServer(depth=2)


@dataclass(frozen=True)
class Newcomer(AsyncSgd):
    """An algorithm that the harness does not know, whose folds take one contribution."""


def test_so_it_is_of_an_algorithm_of_somebody_elses(tmp_path):
    path = tmp_path / "run.toml"
    text = RUN.replace('is = "AsyncSgd"', 'is = "Newcomer"')
    path.write_text(text.replace("[algorithm]", "[protocol]\ndepth = 2\n[algorithm]"))
    config = load_run(path)
    assert config.algorithm == Newcomer()
    assert config.protocol == ParameterServer(depth=2)


@dataclass(frozen=True)
class Outsider(BackupWorkers):
    """A protocol that the harness does not know: its rounds hand out parts of the data."""

    def handing(self, workers: int) -> Handing:
        return super().handing(workers)._replace(own=1)


def test_a_protocol_of_somebody_elses_is_named_and_laid_out_as_it_says(tmp_path):
    rounds = RUN.replace('is = "AsyncSgd"', 'is = "GradientAveraging"')
    ours = rounds.replace("[algorithm]", '[protocol]\nis = "Outsider"\n[algorithm]')
    asked = load_run(written(tmp_path, ours))
    assert asked.protocol == Outsider()
    assert isinstance(asked.lay_out(0, asked.task.open(asked).pieces), Partition)


def test_a_protocol_that_hands_out_no_minibatches_is_refused(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(RUN.replace("[algorithm]", '[protocol]\nis = "Sequence"\n[algorithm]'))
    told = r"run.toml: protocol: 'sequence' hands out no frames to train on; allowed: parameter_"
    with pytest.raises(UserError, match=told):
        load_run(path)
    path.write_text(RUN.replace("[algorithm]", '[protocol]\nis = "averagng"\n[algorithm]'))
    told = r"run.toml: protocol: unknown 'averagng' \(did you mean 'averaging'\?\); allowed: "
    with pytest.raises(UserError, match=told + r".*averaging, backup_workers"):
        load_run(path)


def test_what_derives_from_a_kind_at_any_depth_can_be_named():
    class Base:
        pass

    @dataclass(frozen=True)
    class Child(Base):
        rate: float = 0.1

    @dataclass(frozen=True)
    class Grandchild(Child):
        pass

    @dataclass(frozen=True)
    class Holder:
        kind: Base

    Holder.__annotations__["kind"] = Base
    found = build(Holder, {"kind": {"is": "Grandchild", "rate": 0.5}}, "a file")
    assert found.kind == Grandchild(0.5)


def test_a_key_has_one_meaning_in_and_above_the_task_and_under_other_names(tmp_path, caplog):
    parts = ['algorithm = { is = "AveragedSgd" }', 'schedule = { is = "Halving", rate = 0.01 }']
    short = ASYNCHRONOUS.replace(parts[0], 'algorithm = "averaged"').replace(parts[1], "lr = 0.01")
    with caplog.at_level("INFO", "lagbench"):
        config = load_run(written(tmp_path, short.replace("evaluations", "evaluation")))
        load_run(written(tmp_path, short.replace("lr = ", "rate = ")))
    assert (config.algorithm, config.schedule) == (AveragedSgd(), Constant(0.01))
    assert config.evaluations == 4
    lines = [line.rpartition(": ")[2] for line in caplog.messages if " is called " in line]
    assert lines == ["evaluation is called evaluations here", "lr is called rate here"]


def test_an_optimizer_by_name_is_that_of_an_algorithm_by_name(tmp_path):
    table = 'algorithm = { is = "AveragedSgd" }'
    both = ASYNCHRONOUS.replace(table, 'algorithm = "async"\noptimizer = "adamw"')
    assert load_run(written(tmp_path, both)).algorithm == AsyncDescent(AdamW())
    for text, told in (
        (ASYNCHRONOUS.replace(table, f'{table}\noptimizer = "adamw"'), "optimizer: 'adamw' alone"),
        (both.replace('"adamw"', '"adamx"'), "optimizer: unknown 'adamx'"),
    ):
        with pytest.raises(UserError, match=told):
            load_run(written(tmp_path, text))


def test_data_parallel_training_averages_every_gradient_unless_the_file_says_otherwise(tmp_path):
    run = f"{RUN}[protocol]\n"
    gradients = run.replace('is = "AsyncSgd"', 'is = "GradientAveraging"')
    topk = 'is = "Compressed"\naveraging = { is = "GradientAveraging" }\ncoder = { is = "TopK" }'
    for text, protocol in (
        (gradients, Averaging(1)),
        (f"{gradients}every = 4\n", Averaging(4)),
        (run.replace('is = "AsyncSgd"', topk), Averaging(1, collective="gather")),
        (run.replace('is = "AsyncSgd"', 'is = "ModelAveraging"'), Averaging(10)),
    ):
        assert load_run(written(tmp_path, text)).protocol == protocol


def test_a_named_algorithm_does_not_take_over_the_collective_of_the_file_s_coder(tmp_path):
    topk = 'is = "Compressed"\naveraging = { is = "GradientAveraging" }\ncoder = { is = "TopK" }'
    text = RUN.replace('is = "AsyncSgd"', topk)
    for collective, expected in (("gather", "ring"), ("two-level", "two-level")):
        table = f'[protocol]\nis = "Averaging"\nevery = 1\ncollective = "{collective}"\n'
        path = written(tmp_path, f"{text}{table}overlap = true\n")
        (method,) = find_methods(Namespace(file=path, changes=[]), ["sync"], load_run(path))
        assert method.protocol == Averaging(1, overlap=True, collective=expected)
