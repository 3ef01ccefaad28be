"""A user's policy, sampler, prompts and reward: by a call and by a run file, right and wrong."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch import nn

import lagbench
from harness.base.errors import UserError
from harness.cli import main
from harness.experiment.run_file import load_run
from harness.judge.statistics import mean_ci
from harness.rollouts.own import OwnPolicy
from harness.rollouts.protocol import Rollouts
from harness.rollouts.rollout_config import WarmStart
from harness.rollouts.sampling import sample
from harness.rollouts.task import configure
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.store import Run
from lagbench.rollout_result import RolloutResult
from tests.harness.rollouts.ones import PROTOCOL
from tests.harness.rollouts.ones import configure as configure_ours
from tests.processes import run

PROMPTS = [[1 + k % 4] * (1 + k % 3) for k in range(24)]

MODULE = """
from torch import nn

def make():
    return nn.Sequential(nn.Embedding(5, 8), nn.Linear(8, 5))

prompts = [[1 + k % 4] * (1 + k % 3) for k in range(24)]

def sampler(policy, prefixes, draws):
    from harness.rollouts.sampling import sample
    return sample(policy, prefixes, draws)

def empty(policy, prefixes, draws):
    return [([], []) for _ in prefixes]

def reward(prompt, answer):
    return answer.count(prompt[0]) / len(answer)

def endless(prompt, answer):
    return float("inf")
"""

RUN = """
cluster = "h100-node"
evaluations = 1
[task]
is = "rollouts"
updates = {updates}
policy = "answers:make"
problems = "answers:prompts"
sampler = "answers:{sampler}"
reward = "answers:{reward}"
context = 8
[protocol]
slots = 8
group = 4
batch = 4
eta = {eta}
[schedule]
is = "Constant"
rate = 0.02
"""

BUNDLED = """
cluster = "h100-node"
evaluations = 1
protocol = { slots = 8, group = 2, batch = 1, tokens = 9.0 }
[task]
is = "rollouts"
updates = 1
held_out = 2
policy = { is = "SmallTransformer", width = 4, layers = 1, heads = 1 }
start = { steps = 0 }
"""


def make_policy():
    return nn.Sequential(nn.Embedding(5, 8), nn.Linear(8, 5))


class Averaging(nn.Embedding):
    """Every place sees the mean of all tokens."""

    def __init__(self):
        super().__init__(5, 5)

    def forward(self, tokens):
        found = super().forward(tokens)
        return found + found.mean(1, keepdim=True)


def test_a_policy_computes_without_dropout_whoever_made_it():
    for model in (nn.Dropout(), nn.Dropout):
        assert not OwnPolicy(model).make(0, 0, 0).training


def reward(prompt, answer):
    return answer.count(prompt[0]) / len(answer)


def given(tmp_path, **changes):
    usual = {"cluster": "h100-node", "protocol": PROTOCOL, "context": 8, "rate": 0.02}
    return {**usual, "store": tmp_path / "store", "seeds": 1, "evaluations": 1} | changes


def test_a_call_trains_a_policy_of_a_user_and_tells_what_became_of_it(tmp_path):
    result = lagbench.rollouts(make_policy, PROMPTS, reward, **given(tmp_path, updates=100))
    before, after = (result.interval(name).estimate for name in ("score_before", "score"))
    assert after > max(0.5, before)
    lines = str(result).splitlines()
    assert lines[0].startswith("1 seed, ")
    assert "held-out prompts" in lines[2]
    assert [line[:24].strip() for line in lines[-7:-5]] == [
        "staleness of tokens",
        "largest staleness",
    ]
    policy = result.model()
    (found,) = sample(policy, [np.array([2, 2])], np.full((1, 8), 0.5))
    assert 2 in found.tokens
    with pytest.raises(UserError, match=r"seed: 9; allowed: 0"):
        result.model(9)
    with pytest.raises(UserError, match=r"'speed' is no figure; allowed: answer_tokens, "):
        result.interval("speed")


def result_of(folder, rewards, **figures):
    """A result of runs with these figures, one value a seed, and these rewards."""
    record = {"reward": np.array(rewards), "fate": np.array([0, 1, 1])}
    save_file({**record, "difficulty": np.array([2, 2, 3])}, folder / "rollouts.safetensors")
    seeds = [dict(zip(figures, row, strict=True)) for row in zip(*figures.values(), strict=True)]
    name = "rollouts.safetensors"
    runs = [Run("", {}, "done", summary, "", folder, {name: ""}) for summary in seeds]
    for stored in runs:
        vars(stored)["_whole"] = {name}
    return RolloutResult(runs, configure_ours(held_out=20))


def test_an_interval_of_a_share_stays_between_0_and_1_and_reaches_half_a_problem(tmp_path):
    apart = {
        "score": [0.9, 1.0, 1.0],
        "thrown_away": [0.0, 0.01, 0.3],
        "virtual_s": [0.0, 0.1, 0.9],
    }
    ours = result_of(tmp_path, [0.0, 1.0, np.nan], **apart)
    for name, most in {"score": 1.0, "thrown_away": 1.0, "virtual_s": np.inf}.items():
        found = ours.interval(name)
        assert 0.0 <= found.low < found.estimate < found.high <= most, name
    assert mean_ci(apart["score"]).high > 1.0
    same = result_of(tmp_path, [0.0, 1.0, 1.0], score=[0.0, 0.0]).interval("score")
    assert (same.low, same.high) == (0.0, 0.5 / 20)
    lost = result_of(tmp_path, [0.0, 1.0, 1.0], score=[0.5, np.nan]).interval("score")
    assert not np.isfinite(lost.high - lost.low)
    own = result_of(tmp_path, [0.0, 1.0, 2.0], **apart).interval("score")
    assert (own.low, own.high) == (mean_ci(apart["score"]).low, mean_ci(apart["score"]).high)


def test_what_was_thrown_away_is_shown_by_difficulty(tmp_path):
    figures = {"score": [0.0, 0.0], "score_before": [0.0, 0.0], "thrown_away": [0.6, 0.7]}
    lines = str(result_of(tmp_path, [0.0, 0.0, 1.0], **figures)).splitlines()
    assert [" ".join(line.split()) for line in lines[-2:]] == [
        "difficulty 2 0.5 [0.5, 0.5]",
        "difficulty 3 1 [1, 1]",
    ]


def sample_slowly(policy, prefixes, draws):
    return [(each.tokens.tolist(), each.log_probs) for each in sample(policy, prefixes, draws)]


def test_a_sampler_that_does_what_ours_does_trains_the_same(tmp_path):
    torch.manual_seed(0)
    policy = make_policy()
    ours, own = (
        lagbench.rollouts(policy, PROMPTS, reward, **given(tmp_path, updates=5), **each).runs[0]
        for each in ({}, {"sampler": sample_slowly})
    )
    assert ours.hash != own.hash
    assert ours.summary == own.summary


def write(folder, **changes):
    (folder / "answers.py").write_text(MODULE)
    values = {"updates": 2, "sampler": "sampler", "reward": "reward", "eta": 1, **changes}
    path = folder / "run.toml"
    path.write_text(RUN.format(**values))
    return path


def train_by_command(path, capsys):
    code = main(["train", str(path), "--out", str(path.parent / "store")])
    return code, capsys.readouterr()


def test_a_run_file_names_a_policy_of_a_user(tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    code, told = train_by_command(write(tmp_path), capsys)
    assert code == 0, told.err
    assert "score_before" in told.out


def test_the_law_of_lengths_has_no_effect_on_training_and_no_prediction(tmp_path, capsys):
    path = write(tmp_path, updates=1)
    path.write_text(BUNDLED)
    assert main(["predict", str(path)]) == 2
    assert "task.is: not allowed: 'rollouts'; allowed: a task that" in capsys.readouterr().err
    code, told = train_by_command(path, capsys)
    assert code == 0
    assert "no effect: protocol.tokens\n" in told.err


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"sampler": "empty"}, "sampler: 0 tokens of a rollout; allowed: from 1 to "),
        ({"reward": "endless"}, "reward: inf of an answer is not allowed; allowed: a finite"),
        ({"reward": "absent"}, "task.reward: 'answers:absent': answers has no 'absent'; allowed: "),
        ({"eta": -1.0}, "protocol.eta: -1.0 is not allowed; allowed: a number at least 0"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(changes, line, tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    code, told = train_by_command(write(tmp_path, **changes), capsys)
    assert code == 2
    assert line in told.err.splitlines()[-1], told.err


@pytest.mark.parametrize("seeds", [[-1], [1, 1], 0, "two"])
def test_seeds_are_whole_and_each_once(seeds):
    cluster = configure_ours().cluster
    asked = {"problems": PROMPTS, "reward": reward, "context": 8, "cluster": cluster}
    with pytest.raises(UserError, match=r"^seeds: .*; allowed: how many, from 1; or which, from 0"):
        lagbench.rollouts(make_policy(), seeds=seeds, **asked)


def answer_by(tokens, logs):
    return lambda policy, prefixes, draws: [(tokens, logs)] * len(prefixes)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"problems": []}, "problems: 0 prompts, or an empty one; allowed: a list of prompts"),
        ({"problems": [[1]] * 3}, "problems: 3 prompts; allowed: at least 5, or test with"),
        ({"problems": [[1], "x"]}, "problems: TypeError: .*; allowed: a list of prompts"),
        ({"problems": [[9]] * 5}, r"policy: raised IndexError"),
        ({"problems": [[1] * 8] * 5}, r"problems: prompt \[1, 1, .*; allowed: fewer than 8 tokens"),
        ({"problems": "adition"}, "problems: unknown 'adition'.*addition"),
        (
            {
                "problems": "addition",
                "reward": None,
                "context": None,
                "policy": nn.Embedding(20, 20),
            },
            "policy: logits of 20 tokens; allowed: 18",
        ),
        ({"problems": "addition", "reward": None}, "context: for prompts of your own; allowed: w"),
        ({"context": 1}, "context: 1 is not allowed; allowed: a whole number at least 2"),
        ({"policy": Averaging()}, "policy: one more token changes earlier logits; allowed: a caus"),
        ({"problems": "addition"}, "reward: for prompts of your own; allowed: without it"),
        ({"reward": None}, "reward: missing; needed: a function of prompt and answer"),
        ({"policy": nn.Linear(2, 2).double()}, "policy: it has float64 parameters"),
        ({"policy": 3}, "policy: a int; allowed: a module or a function"),
        ({"policy": lambda: 3}, "policy: gives a int; allowed: a torch.nn.Module"),
        ({"sampler": 3}, "sampler: a int; allowed: a function"),
        ({"protocol": "rollouts"}, "protocol: a str; allowed: a harness.rollouts.protocol"),
        ({"loss": "ppo"}, "loss: unknown 'ppo'; allowed: decoupled, m2po, naive, none"),
        ({"speed": 3}, "rollouts: unknown 'speed'; allowed: "),
        ({"rate": -1.0}, "rollouts: rate: -1.0 is not allowed; allowed: a number above 0"),
    ],
)
def test_a_mistake_in_a_call_is_named(changes, line):
    usual = {"policy": make_policy(), "sampler": None, "problems": PROMPTS, "reward": reward}
    usual |= {"test": None, "context": 8, "protocol": PROTOCOL}
    settings = {name: each for name, each in changes.items() if name not in usual}
    usual |= {name: each for name, each in changes.items() if name in usual}
    cluster = configure_ours().cluster
    with pytest.raises(UserError, match=line):
        configure(**usual, cluster=cluster, settings=settings)


@pytest.mark.parametrize(
    ("sampler", "line"),
    [
        (answer_by([], []), "sampler: 0 tokens of a rollout; allowed: from 1 to"),
        (answer_by([1] * 9, [0.0] * 9), "sampler: 9 tokens of a rollout; allowed: from 1 to"),
        (answer_by([7, 0], [0.0, 0.0]), r"sampler: tokens \[7, 0\]; allowed: whole numbers"),
        (answer_by([1, 0], [0.0]), r"sampler: log_probs of shape \(1,\); allowed: one"),
        (answer_by([1, 0], [0.0, np.nan]), r"sampler: log_probs \[nan\]; allowed: finite"),
        (answer_by([1, 0], [0, 1]), r"sampler: log_probs \[1\]; allowed: finite numbers up to 0"),
        (answer_by([0, 1], [0.0, 0.0]), r"sampler: tokens \[0, 1\]; allowed: token 0 at the end"),
        (lambda policy, prefixes, draws: [], "sampler: 0 answers for .* rollouts; allowed: one"),
        (lambda policy, prefixes, draws: 1 / 0, "sampler: raised ZeroDivisionError"),
        (lambda policy, prefixes, draws: 3, "sampler: raised TypeError"),
    ],
)
def test_a_sampler_that_cannot_be_used_is_named(sampler, line, tmp_path):
    with pytest.raises(UserError, match=line):
        lagbench.rollouts(make_policy(), PROMPTS, reward, **given(tmp_path), sampler=sampler)


def test_a_reward_that_raises_is_named(tmp_path):
    with pytest.raises(UserError, match="reward: raised ZeroDivisionError"):
        lagbench.rollouts(make_policy(), PROMPTS, lambda p, a: 1 / 0, **given(tmp_path))


def test_real_processes_are_refused_in_one_line(tmp_path):
    words = ["train", write(tmp_path), "--processes", "2", "--out", tmp_path / "s"]
    done = run(["-m", "harness", *words])
    assert done.returncode == 2
    assert "task.is: not allowed: 'rollouts'; allowed: a task that trains by folds" in done.stderr


def test_prompts_without_answers_have_no_supervised_start(tmp_path, monkeypatch, capsys):
    told = "start: not with prompts of your own"
    with pytest.raises(UserError, match=told):
        lagbench.rollouts(make_policy, PROMPTS, reward, **given(tmp_path, start=WarmStart()))
    monkeypatch.syspath_prepend(tmp_path)
    path = write(tmp_path)
    path.write_text(path.read_text().replace("[protocol]", "start = { steps = 3 }\n[protocol]"))
    assert main(["train", str(path), "--out", str(tmp_path / "s")]) == 2
    assert told in capsys.readouterr().err


def test_a_class_of_the_same_name_does_not_replace_the_protocol_of_a_task(tmp_path, monkeypatch):
    @dataclass(frozen=True)
    class Namesake(ParameterServer):
        pass

    Namesake.__name__ = "Rollouts"
    monkeypatch.syspath_prepend(tmp_path)
    assert type(load_run(write(tmp_path)).protocol) is Rollouts
    Namesake.__name__ = "Namesake"  # for the tests after it
