"""Training by rollouts: the synchronous loop, exact versions, resuming, and bad input."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from harness.algorithms.descent import AdamW
from harness.base.errors import UserError
from harness.experiment import loop
from harness.experiment.run import run as execute
from harness.rollouts import sampling
from harness.rollouts.executor import RolloutExecutor
from harness.rollouts.learning import Learner, Rollout
from harness.rollouts.losses import Decoupled, Naive, Reinforce
from harness.rollouts.own import OwnPolicy
from harness.rollouts.policy import Weights
from harness.rollouts.problems import Sorting
from harness.rollouts.records import TRAINED
from harness.rollouts.rollout_config import WarmStart
from harness.rollouts.sources import SmallTransformer
from harness.rollouts.training import ROLLOUTS, RolloutTraining
from harness.store import Store
from harness.store.schema import MODEL, TIMELINE
from tests.harness.rollouts.ones import CONTEXT, VOCABULARY, Ones, configure, ignore, protocol
from tests.killed import Killed


def train(config, folder):
    return execute(config, Store(folder), ignore)


def model_of(run):
    return torch.as_tensor(load_file(run.path(MODEL))["model"])


def draw_numbers(rollout, seed=1, attempt=0):
    return sampling.draw_uniforms(seed, np.array([rollout]), np.array([attempt]), CONTEXT)


def surrogate(kind, log_probs, behaviour, advantages):
    """The loss of fresh rollouts, written out."""
    if kind == "none":
        return -(log_probs * advantages).mean()
    around = behaviour if kind == "naive" else log_probs.detach()
    ratio = (log_probs - around).exp()
    least = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    weight = 1.0 if kind == "naive" else (log_probs.detach() - behaviour).exp()
    return -(weight * least).mean()


def score(policy, rows):
    """Logarithms of the probabilities of answers, all in one padded batch, row by row."""
    lengths = [len(prompt) + len(tokens) for prompt, tokens in rows]
    padded = torch.zeros((len(rows), max(lengths)), dtype=torch.int64)
    for row, (prompt, tokens) in enumerate(rows):
        padded[row, : lengths[row]] = torch.as_tensor(np.concatenate([prompt, tokens]))
    table = policy(padded[:, :-1])
    begins = [len(prompt) - 1 for prompt, _ in rows]
    logits = torch.cat([table[k, begins[k] : lengths[k] - 1] for k in range(len(rows))])
    answered = torch.as_tensor(np.concatenate([tokens for _, tokens in rows]))
    return logits.log_softmax(1)[torch.arange(len(answered)), answered]


def train_plainly(kind, updates, groups=4, size=4, rate=0.01):
    """A synchronous loop: sample, reward, one gradient, Adam; no simulator and no executor."""
    problems, optimizer = Ones(), AdamW()
    policy = SmallTransformer(12, 1, 2).make(VOCABULARY, CONTEXT, 0)
    model = Weights(policy).vector  # the parameters are views of it
    state = optimizer.start(model[None])
    for update in range(updates):
        batch = []
        for group in range(update * groups, (update + 1) * groups):
            problem = problems.train(group, 1)
            prompt = np.array(problem.prompt)
            numbers = [draw_numbers(group * size + member) for member in range(size)]
            answers = [sampling.sample(policy, [prompt], each)[0] for each in numbers]
            rewards = [problems.reward(problem, each.tokens.tolist()) for each in answers]
            rewards = torch.tensor(rewards).double()
            centred = rewards - rewards.mean()
            advantages = centred / (centred.square().mean().sqrt() + 1e-4)
            if rewards.min() < rewards.max():
                batch += zip([prompt] * size, answers, advantages.float().tolist(), strict=True)
        batch.sort(key=lambda row: len(row[0]) + len(row[1].tokens))
        log_probs = score(policy, [(prompt, answer.tokens) for prompt, answer, _ in batch])
        behaviour = torch.as_tensor(np.concatenate([answer.log_probs for _, answer, _ in batch]))
        of_tokens = [a for _, answer, a in batch for _ in answer.tokens]
        loss = surrogate(kind, log_probs, behaviour, torch.tensor(of_tokens))
        slopes = torch.autograd.grad(loss, list(policy.parameters()))
        direction = torch.cat([each.flatten() for each in slopes])[None]
        optimizer.direct_(direction, model[None], state, None)
        model.sub_(direction[0], alpha=rate)
    return model


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize("loss", [Reinforce(), Naive(), Decoupled()], ids=lambda loss: loss.name)
def test_staleness_0_is_a_plain_synchronous_loop_to_the_bit(loss, tmp_path):
    plain = protocol(publish="drain", eta=0)
    run = train(configure(protocol=plain, loss=loss, updates=50), tmp_path)
    expected = train_plainly(loss.name, 50)
    assert torch.equal(model_of(run), expected)
    assert run.summary["staleness_most"] == 0


STALE = [
    protocol(eta=4), protocol(eta=2, publish="in-flight"),
    protocol(rule="discard", eta=1, publish="in-flight", room=6, environment_s=0.3),
    protocol(rule="window", eta=1, room=6), protocol(rule="one-step", steps=2),
    protocol(rule="backpressure", eta=0.5, interval=2),
]  # fmt: skip


def label(stale):
    return f"{stale.rule} {stale.publish}"


def keeping(timelines):
    """`RolloutTraining.summarise`, which also appends the timeline to a list."""
    summarise = RolloutTraining.summarise

    def summarise_and_keep(training, status, timeline):
        timelines.append(timeline)
        return summarise(training, status, timeline)

    return summarise_and_keep


def retrain(timeline, config):
    """Models by version, and rewards by rollout, of a walk over the recorded timeline alone.

    Every stretch of tokens is sampled with the version on record, one rollout at a time; every fold
    is trained on with the rollouts on record.
    """
    problems, size = config.task.problems, config.protocol.group
    learner = Learner(Weights(config.task.policy.make(VOCABULARY, CONTEXT, 0)), config)
    server = learner.start(learner.weights.vector.clone())
    rows, stretches = timeline.own["rollouts"], timeline.own["tokens"]
    prompts = dict(zip(rows.rollout.tolist(), rows.prompt.tolist(), strict=True))
    attempts = dict(zip(rows.rollout.tolist(), rows.attempt.tolist(), strict=True))
    answers = {}
    trained = rows.where(rows.fate == TRAINED)
    for version in range(len(timeline.folds)):
        policy = learner.weights.load(server.model)
        for k in np.flatnonzero(stretches.version == version).tolist():
            rollout, first = int(stretches.rollout[k]), int(stretches.first[k])
            if rollout not in prompts:  # in flight at the end
                continue
            prompt = np.array(problems.train(prompts[rollout], config.seed).prompt)
            kept = [each[:first] for each in answers.get(rollout, ([], []))]
            numbers = draw_numbers(rollout, config.seed, attempts[rollout])
            prefix = np.concatenate([prompt, np.array(kept[0], np.int64)])
            (found,) = sampling.sample(policy, [prefix], numbers)
            answers[rollout] = [np.concatenate(pair) for pair in zip(kept, found, strict=True)]
        batch = np.flatnonzero(trained.trained_version == version).tolist()
        rollouts = []
        for k in batch:
            problem = problems.train(int(trained.prompt[k]), config.seed)
            tokens, log_probs = answers[int(trained.rollout[k])]
            assert len(tokens) == trained.tokens[k]
            reward = problems.reward(problem, tokens.tolist())
            logs = log_probs.astype(np.float32)
            rollouts.append(Rollout(np.array(problem.prompt), tokens.astype(int), logs, reward))
        learner.step(server, [rollouts[k : k + size] for k in range(0, len(batch), size)])
    return server.model


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize("stale", STALE, ids=label)
def test_each_token_is_sampled_with_exactly_the_version_on_record(stale, tmp_path, monkeypatch):
    config = configure(protocol=stale, loss=Decoupled(truncate=5.0), workers=2)
    timelines = []
    monkeypatch.setattr(RolloutTraining, "summarise", keeping(timelines))
    run = train(config, tmp_path)
    (timeline,) = timelines
    assert torch.equal(model_of(run), retrain(timeline, config))
    assert run.summary["staleness_most"] >= 1
    rows = timeline.own["rollouts"]
    recorded = load_file(run.path(ROLLOUTS))
    for name in ("rollout", "prompt", "tokens", "fate"):
        assert np.array_equal(recorded[name], getattr(rows, name))
    assert np.isfinite(recorded["reward"][recorded["fate"] == TRAINED]).all()
    is_thrown = bool((rows.fate != TRAINED).any())
    assert is_thrown == (stale.rule in ("discard", "window"))
    assert (run.summary["thrown_away"] > 0.0) == is_thrown


@pytest.mark.parametrize("stale", STALE[1:3], ids=label)
def test_a_second_run_and_a_run_that_was_killed_give_the_same_bytes(stale, tmp_path, monkeypatch):
    config = configure(protocol=stale, updates=9, evaluations=3)
    whole = train(config, tmp_path / "whole")
    again = train(config, tmp_path / "again")
    monkeypatch.setattr(loop, "CHECKPOINT_EVERY_S", 0.0)
    monkeypatch.setattr(loop, "CHECKPOINT_SHARE", 1e9)

    advance, done = RolloutExecutor.advance, []

    def advance_or_die(executor):
        done.append(executor.server.version)
        if len(done) % 4 == 0:
            raise Killed
        return advance(executor)

    monkeypatch.setattr(RolloutExecutor, "advance", advance_or_die)
    for _ in range(2):
        with pytest.raises(Killed):
            train(config, tmp_path / "killed")
    killed = train(config, tmp_path / "killed")
    assert done == [0, 1, 2, 3, 3, 4, 5, 6, 6, 7, 8]
    for run in (again, killed):
        for name in (MODEL, TIMELINE, ROLLOUTS, "metrics.parquet"):
            assert run.path(name).read_bytes() == whole.path(name).read_bytes(), name
        assert run.summary == whole.summary


def test_a_policy_learns_to_answer(tmp_path):
    runs = [train(configure(updates=150, seed=seed), tmp_path) for seed in range(3)]
    assert all(run.summary["score_before"] < 0.3 for run in runs)
    # How far one of them learns follows from rounding: 0.45 to 0.8 by the kind of processor.
    assert np.mean([run.summary["score"] for run in runs]) > 0.4


def test_a_policy_that_is_not_finite_has_diverged(tmp_path):
    policy = SmallTransformer(12, 1, 2).make(VOCABULARY, CONTEXT, 0)
    with torch.no_grad():
        policy.out.bias.fill_(torch.nan)
    run = train(configure(policy=OwnPolicy(policy)), tmp_path)
    assert run.status == "diverged"
    assert run.summary["folds"] == 1
    assert run.note.startswith("in Decoupled at fold 1 ")


def test_groups_of_equal_rewards_are_left_out_or_counted(tmp_path):
    class Same(Ones):
        def reward(self, problem, answer):
            return 1.0

    config = configure(problems=Same(), updates=2, protocol=protocol(publish="drain", eta=0))
    run = train(config, tmp_path)
    start = config.task.policy.make(VOCABULARY, CONTEXT, 0)
    assert torch.equal(model_of(run), Weights(start).vector)
    assert run.summary["uneven"] == 0.0
    assert "loss" not in run.summary
    counted = train(config.vary(even=True), tmp_path)
    assert counted.summary["gradient_norm"] == 0.0


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), "good", None])
def test_a_reward_that_is_no_finite_number_is_refused(reward, tmp_path):
    class Bad(Ones):
        def reward(self, problem, answer):
            return reward

    with pytest.raises(UserError, match=r"^reward: .* is not allowed; allowed: a finite number$"):
        train(configure(problems=Bad()), tmp_path)


def test_a_group_of_one_is_refused():
    with pytest.raises(UserError, match=r"protocol.group: 1 is not allowed; allowed: at least 2"):
        configure(protocol=protocol(group=1))


def test_a_start_without_solutions_or_without_success_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"start.steps: the problems have no solutions; allowed: 0"):
        train(configure(start=WarmStart(steps=10)), tmp_path)
    start = WarmStart(steps=2, every=1, measured=8, minibatch=4, least=0.9, most=1.0)
    with pytest.raises(UserError, match=r"start: after 2 steps .* allowed: from 90.0% to 100.0%"):
        train(configure(problems=Sorting(most=2, least=2), start=start), tmp_path)


def test_a_start_is_trained_once_and_begins_where_it_ended(tmp_path):
    start = WarmStart(steps=400, every=40, measured=64, least=0.1, most=0.9, rate=0.01)
    config = configure(problems=Sorting(most=2, least=2), start=start, updates=1, evaluations=1)
    first = train(config, tmp_path)
    second = train(replace(config, seed=2), tmp_path)
    names = [run.config["is"] for run in Store(tmp_path).runs()]
    assert sorted(names) == ["Policy", "Policy", "StartConfig"]
    assert first.summary["score_before"] == second.summary["score_before"] > 0.0
