"""Exact sampling of rollouts, their greedy answers, and the scores of both.

Token t of a rollout is the inverse of the distribution function at a number that depends on (seed,
rollout, attempt, t) alone, so it follows from that, the weights and the tokens before. Which
rollouts are sampled together is without effect. A transformer on a processor computes one token
after another (`compiled_sampling`). Any other module computes always the same number of rows and
places, in which a row computes as it would at any other place; a new rollout takes over the row of
one that has ended. On one kind of processor with one thread, the tokens and
the logarithms of their probabilities are equal to the bit.

Shape letters: N rollouts, W rows of a step, C context, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from harness.base.errors import UserError, describe_raised
from harness.rollouts.compiled_sampling import decode_all
from harness.rollouts.policy import Transformer
from harness.rollouts.problems import END, Problem, Problems, check_reward
from harness.simulator.costs import purpose_key, uniforms
from harness.simulator.events import kernel

ROWS = 64
"""Rollouts that are computed in one step."""


MOST_LOG_PROB = 1e-3
"""Logarithm of a probability up to which it counts as rounded from 0."""


class Completion(NamedTuple):
    """New tokens of a rollout, and the logarithms of the probabilities that they were drawn with.

    Attributes:
        tokens: int64 ``[n]``, at least one; the last one is `END` unless the context was full.
        log_probs: float32 ``[n]``, in nats.
    """

    tokens: np.ndarray
    log_probs: np.ndarray


Sampler = Callable[[nn.Module, Sequence[np.ndarray], np.ndarray], Sequence[Any]]
"""Function ``sampler(policy, prefixes, draws)`` to a pair (tokens, log_probs) of each rollout.

``prefixes`` are N int64 arrays: prompt and kept tokens. ``draws [N, C]`` are numbers in (0, 1); the
token at place t of rollout n is to be drawn with ``draws[n, t]``. It samples at the temperature of
the run.
"""


@kernel
def _fill(key: Any, rollouts: Any, attempts: Any, out: Any) -> None:
    for row in range(out.shape[0]):
        for place in range(0, out.shape[1], 2):
            a, b = uniforms(key, rollouts[row], place, attempts[row])
            out[row, place] = a
            if place + 1 < out.shape[1]:
                out[row, place + 1] = b


def draw_uniforms(
    seed: int, rollouts: np.ndarray, attempts: np.ndarray, context: int
) -> np.ndarray:
    """Numbers in (0, 1) that rollouts are sampled with, float64 ``[N, C]``.

    Args:
        seed: seed of the run.
        rollouts: numbers of the rollouts ``[N]``.
        attempts: how often each was begun before, ``[N]``.
        context: C.
    """
    out = np.empty((len(rollouts), context))
    key = purpose_key(seed, "rollout")
    _fill(key, np.asarray(rollouts, np.int64), np.asarray(attempts, np.int64), out)
    return out


def sample(
    policy: nn.Module, prefixes: Sequence[np.ndarray], draws: np.ndarray, temperature: float = 1.0
) -> list[Completion]:
    """Continue rollouts to their end, from the distribution ``softmax(logits / temperature)``.

    Args:
        policy: a causal module.
        prefixes: N prompts, each with the tokens that are kept: int64, fewer than C.
        draws: from `draw_uniforms`, ``[N, C]``; 0 at all places gives the most probable token
            at a temperature of 0.
        temperature: 0 takes the most probable token.
    """
    if not len(prefixes):
        return []
    count, context = draws.shape
    begins = np.array([*map(len, prefixes), context + 1])
    tokens = np.zeros((count + 1, context), np.int64)
    for row, prefix in enumerate(prefixes):
        tokens[row, : len(prefix)] = prefix
    if isinstance(policy, Transformer) and rows_of(policy) == 1:
        log_probs, ends = decode_all(policy, tokens[:-1], begins[:-1], draws, temperature)
    else:
        log_probs, ends = _decode_together(policy, tokens, begins, draws, temperature)
    places = [slice(*pair) for pair in zip(begins.tolist(), ends.tolist(), strict=False)]
    rows = zip(tokens, log_probs, places, strict=False)
    return [Completion(tokens[at].copy(), logs[at].copy()) for tokens, logs, at in rows][:count]


def rows_of(policy: nn.Module) -> int:
    """Rollouts that are sampled in the time of one: a transformer on a processor has no rows."""
    on_processor = next(policy.parameters()).device.type == "cpu"
    return 1 if isinstance(policy, Transformer) and on_processor else ROWS


def _decode_together(
    policy: nn.Module, tokens: np.ndarray, begins: np.ndarray, draws: np.ndarray, temperature: float
) -> tuple[np.ndarray, np.ndarray]:
    """`decode_all` for any module, which computes all tokens of `ROWS` rollouts for each next one.

    The last row of the arguments is a filler that never ends.
    """
    count, context = draws.shape
    ends, log_probs = np.zeros(count + 1, np.int64), np.zeros((count + 1, context), np.float32)
    numbers = np.concatenate([draws, np.zeros((1, context))])
    which, places = np.minimum(np.arange(ROWS), count), np.zeros(ROWS, np.int64)
    next_row, active, device = min(ROWS, count), count, next(policy.parameters()).device
    every = torch.arange(ROWS, device=device)
    so_far = torch.zeros((ROWS, context), dtype=torch.int64, device=device)
    while active:
        at = torch.as_tensor(places, device=device)
        so_far[every, at] = torch.as_tensor(tokens[which, places], device=device)
        with torch.inference_mode():
            logits = policy(so_far)[every, at].double().cpu().numpy()
        places += 1
        is_drawn = places >= begins[which]
        rows, ahead = which[is_drawn], places[is_drawn]
        sampled = _choose(logits[is_drawn], numbers[rows, ahead], temperature)
        tokens[rows, ahead], log_probs[rows, ahead] = sampled
        ended = np.flatnonzero(is_drawn)[(sampled[0] == END) | (ahead == context - 1)]
        ends[which[ended]] = places[ended] + 1
        for row in ended.tolist():  # a new rollout takes over the row
            which[row], places[row] = next_row, 0
            next_row = min(next_row + 1, count)
        active -= len(ended)
        places[which == count] = 0
    return log_probs, ends


def sample_greedily(
    policy: nn.Module, prefixes: Sequence[np.ndarray], context: int
) -> list[np.ndarray]:
    """The most probable token after token, int64 ``[n]`` for each prefix."""
    draws = np.zeros((len(prefixes), context))
    return [completion.tokens for completion in sample(policy, prefixes, draws, temperature=0.0)]


def check_sampled(
    policy: nn.Module,
    answers: Sequence[Any],
    prefixes: Sequence[np.ndarray],
    vocabulary: int,
    context: int,
) -> list[Completion]:
    """The answers of a user's sampler as arrays.

    Args:
        policy: the module that was sampled from.
        answers: a pair (tokens, log_probs) for each prefix.
        prefixes: prompts, with kept tokens.
        vocabulary: V.
        context: C.

    Raises:
        UserError: an answer is missing, empty, or not what `Completion` says.
    """
    try:
        pairs = [(np.asarray(tokens), np.asarray(logs)) for tokens, logs in answers]
    except (TypeError, ValueError, RuntimeError) as error:
        form = "a pair (tokens, log_probs) for each rollout"
        raise UserError(f"sampler: {describe_raised(error)}; allowed: {form}") from error
    if len(pairs) != len(prefixes):
        form = f"{len(pairs)} answers for {len(prefixes)} rollouts; allowed: one for each"
        raise UserError(f"sampler: {form}")
    for (tokens, logs), prefix in zip(pairs, prefixes, strict=True):
        room = context - len(prefix)
        if tokens.ndim != 1 or not 1 <= len(tokens) <= room:
            size = f"{len(tokens)} tokens" if tokens.ndim == 1 else f"tokens {tokens.shape}"
            raise UserError(f"sampler: {size} of a rollout; allowed: from 1 to {room}")
        if tokens.dtype.kind not in "iu" or tokens.min() < 0 or tokens.max() >= vocabulary:
            form = f"whole numbers from 0 to {vocabulary - 1}"
            raise UserError(f"sampler: tokens {tokens.tolist()[:5]}; allowed: {form}")
        if (tokens[:-1] == END).any():
            form = f"token {END} at the end alone"
            raise UserError(f"sampler: tokens {tokens.tolist()[:5]}; allowed: {form}")
        if logs.shape != tokens.shape or logs.dtype.kind not in "fiu":
            form = f"one number for each of the {len(tokens)} tokens"
            raise UserError(f"sampler: log_probs of shape {logs.shape}; allowed: {form}")
        wrong = ~(np.isfinite(logs) & (logs <= MOST_LOG_PROB))
        # of a policy that has diverged, no probability is known
        if wrong.any() and _is_finite(policy, np.concatenate([prefix, tokens])):
            form = "finite numbers up to 0"
            raise UserError(f"sampler: log_probs {logs[wrong].tolist()[:5]}; allowed: {form}")
    return [Completion(tokens.astype(np.int64), logs.astype(np.float32)) for tokens, logs in pairs]


def _is_finite(policy: nn.Module, tokens: np.ndarray) -> bool:
    """Whether all logits along a rollout are finite."""
    device = next(policy.parameters()).device
    with torch.no_grad():
        return bool(policy(torch.as_tensor(tokens, device=device)[None]).isfinite().all())


def _choose(
    logits: np.ndarray, draws: np.ndarray, temperature: float
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of rows of ``logits [n, V]``, with the logarithms of their probabilities."""
    if temperature == 0.0:
        return logits.argmax(1), np.zeros(len(logits))
    scores = logits / temperature
    scores -= scores.max(1, keepdims=True)
    sums = np.exp(scores).cumsum(1)
    total = sums[:, -1]
    # Logits that are not finite give token 0 without a probability, so that a rollout ends.
    tokens = (sums <= (draws * total)[:, None]).sum(1).clip(max=logits.shape[1] - 1)
    return tokens, np.take_along_axis(scores, tokens[:, None], 1)[:, 0] - np.log(total)


class Score(NamedTuple):
    """Mean reward of greedy answers.

    Attributes:
        mean: over all problems.
        by_difficulty: over those of each difficulty.
        tokens: mean number of tokens.
    """

    mean: float
    by_difficulty: dict[int, float]
    tokens: float


def score_greedily(policy: nn.Module, problems: Problems, held_out: Sequence[Problem]) -> Score:
    """Score the most probable answers of held-out problems; equal prompts are answered once."""
    unique = {problem.prompt: problem for problem in held_out}
    prefixes = [np.array(prompt, np.int64) for prompt in unique]
    answers = sample_greedily(policy, prefixes, problems.context)
    pairs = zip(unique, answers, strict=True)
    replies = {prompt: answer.tolist() for prompt, answer in pairs}
    scores = {
        problem.prompt: check_reward(problems.reward(problem, replies[problem.prompt]))
        for problem in unique.values()
    }
    rewards = np.array([scores[problem.prompt] for problem in held_out])
    classes = np.array([problem.difficulty for problem in held_out])
    by_class = {k: float(rewards[classes == k].mean()) for k in np.unique(classes).tolist()}
    tokens = float(np.mean([len(replies[problem.prompt]) for problem in held_out]))
    return Score(float(rewards.mean()), by_class, tokens)


def score_samples(
    policy: nn.Module, problems: Problems, questions: Sequence[Problem], seed: int
) -> float:
    """Mean reward of one sampled answer for each problem."""
    prefixes = [np.array(item.prompt, np.int64) for item in questions]
    numbers = np.arange(len(questions))
    draws = draw_uniforms(seed, numbers, np.zeros_like(numbers), problems.context)
    completions = sample(policy, prefixes, draws)
    pairs = zip(questions, completions, strict=True)
    return float(np.mean([problems.reward(item, reply.tokens.tolist()) for item, reply in pairs]))
