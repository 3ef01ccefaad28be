"""Exact sampling of rollouts, and their greedy answers.

Token t of a rollout is the inverse of the distribution function at a number that depends on (seed,
rollout, attempt, t) alone, so it follows from that, the weights and the tokens before. Which
rollouts are sampled together is without effect. A transformer on a processor computes one token
after another (`compiled_sampling`). Any other module computes steps of always the same number of
rows and length of cache, in which a row computes as it would at any other place; a new rollout
takes over the row of one that has ended. On one kind of processor with one thread, the tokens and
the logarithms of their probabilities are equal to the bit.

Shape letters: N rollouts, W rows of a step, C context, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from harness.base.errors import UserError, describe_raised
from harness.rollouts.compiled_sampling import decode_all
from harness.rollouts.policy import Decoding, Transformer
from harness.rollouts.problems import END
from harness.simulator.events import kernel
from harness.simulator.laws import purpose_key, uniforms

__all__ = [
    "ROWS",
    "Completion",
    "Sampler",
    "check_sampled",
    "draw_uniforms",
    "rows_of",
    "sample",
    "sample_greedily",
]

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
            first, second = uniforms(key, rollouts[row], place, attempts[row])
            out[row, place] = first
            if place + 1 < out.shape[1]:
                out[row, place + 1] = second


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
        policy: a causal module; a `Decoding` one is faster.
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
    places = [slice(*each) for each in zip(begins.tolist(), ends.tolist(), strict=False)]
    rows = zip(tokens, log_probs, places, strict=False)
    return [Completion(tokens[at].copy(), logs[at].copy()) for tokens, logs, at in rows][:count]


def rows_of(policy: nn.Module) -> int:
    """Rollouts that are sampled in the time of one: a transformer on a processor has no rows."""
    on_processor = next(policy.parameters()).device.type == "cpu"
    return 1 if isinstance(policy, Transformer) and on_processor else ROWS


def _decode_together(
    policy: nn.Module, tokens: np.ndarray, begins: np.ndarray, draws: np.ndarray, temperature: float
) -> tuple[np.ndarray, np.ndarray]:
    """`decode_all` for any module, `ROWS` at a time; the last row is a filler that never ends."""
    run = _Run(policy, tokens, begins, draws, temperature)
    with torch.inference_mode():
        while run.active:
            run.step()
    return run.log_probs, run.ends


def sample_greedily(
    policy: nn.Module, prefixes: Sequence[np.ndarray], context: int
) -> list[np.ndarray]:
    """The most probable token after token, int64 ``[n]`` for each prefix."""
    draws = np.zeros((len(prefixes), context))
    return [each.tokens for each in sample(policy, prefixes, draws, temperature=0.0)]


def check_sampled(
    policy: nn.Module,
    found: Sequence[Any],
    prefixes: Sequence[np.ndarray],
    vocabulary: int,
    context: int,
) -> list[Completion]:
    """The answers of a user's sampler as arrays.

    Args:
        policy: the module that was sampled from.
        found: a pair (tokens, log_probs) for each prefix.
        prefixes: prompts, with kept tokens.
        vocabulary: V.
        context: C.

    Raises:
        UserError: an answer is missing, empty, or not what `Completion` says.
    """
    try:
        pairs = [(np.asarray(tokens), np.asarray(logs)) for tokens, logs in found]
    except (TypeError, ValueError, RuntimeError) as error:
        told = "a pair (tokens, log_probs) for each rollout"
        raise UserError(f"sampler: {describe_raised(error)}; allowed: {told}") from error
    if len(pairs) != len(prefixes):
        told = f"{len(pairs)} answers for {len(prefixes)} rollouts; allowed: one for each"
        raise UserError(f"sampler: {told}")
    for (tokens, logs), prefix in zip(pairs, prefixes, strict=True):
        room = context - len(prefix)
        if tokens.ndim != 1 or not 1 <= len(tokens) <= room:
            shown = f"{len(tokens)} tokens" if tokens.ndim == 1 else f"tokens {tokens.shape}"
            raise UserError(f"sampler: {shown} of a rollout; allowed: from 1 to {room}")
        if tokens.dtype.kind not in "iu" or tokens.min() < 0 or tokens.max() >= vocabulary:
            told = f"whole numbers from 0 to {vocabulary - 1}"
            raise UserError(f"sampler: tokens {tokens.tolist()[:5]}; allowed: {told}")
        if (tokens[:-1] == END).any():
            told = f"token {END} at the end alone"
            raise UserError(f"sampler: tokens {tokens.tolist()[:5]}; allowed: {told}")
        if logs.shape != tokens.shape or logs.dtype.kind not in "fiu":
            told = f"one number for each of the {len(tokens)} tokens"
            raise UserError(f"sampler: log_probs of shape {logs.shape}; allowed: {told}")
        wrong = ~(np.isfinite(logs) & (logs <= MOST_LOG_PROB))
        # of a policy that has diverged, no probability is known
        if wrong.any() and _is_finite(policy, np.concatenate([prefix, tokens])):
            told = "finite numbers up to 0"
            raise UserError(f"sampler: log_probs {logs[wrong].tolist()[:5]}; allowed: {told}")
    return [Completion(tokens.astype(np.int64), logs.astype(np.float32)) for tokens, logs in pairs]


def _is_finite(policy: nn.Module, tokens: np.ndarray) -> bool:
    """Whether all logits along a rollout are finite."""
    device = next(policy.parameters()).device
    with torch.no_grad():
        return bool(policy(torch.as_tensor(tokens, device=device)[None]).isfinite().all())


class _Run:
    """Rollouts in the rows of a step; the one after the last is a filler of idle rows."""

    def __init__(
        self,
        policy: nn.Module,
        tokens: np.ndarray,
        begins: np.ndarray,
        draws: np.ndarray,
        temperature: float,
    ) -> None:
        self.count, self.context = count, context = draws.shape
        self.tokens, self.begins = tokens, begins
        self.ends = np.zeros(count + 1, np.int64)
        self.log_probs = np.zeros((count + 1, context), np.float32)
        self.draws = np.concatenate([draws, np.zeros((1, context))])
        self.temperature = temperature
        self.which, self.places = np.minimum(np.arange(ROWS), count), np.zeros(ROWS, np.int64)
        self.begun, self.active = min(ROWS, count), count
        self.device = next(policy.parameters()).device
        self.decoder = policy if isinstance(policy, Decoding) else _Recomputing(policy, context)
        self.cache: Any = self.decoder.new_cache(ROWS)

    def step(self) -> None:
        """Compute one more token of each row, and replace rollouts that have ended."""
        which, places = self.which, self.places
        given = torch.as_tensor(self.tokens[which, places], device=self.device)
        at = torch.as_tensor(places, device=self.device)
        logits = self.decoder.step(given, at, self.cache).double().cpu().numpy()
        places += 1
        drawn = places >= self.begins[which]
        rows, there = which[drawn], places[drawn]
        tokens, log_probs = _choose(logits[drawn], self.draws[rows, there], self.temperature)
        self.tokens[rows, there], self.log_probs[rows, there] = tokens, log_probs
        ended = np.flatnonzero(drawn)[(tokens == END) | (there == self.context - 1)]
        self.ends[which[ended]] = places[ended] + 1
        for row in ended.tolist():
            which[row], places[row] = self.begun, 0
            self.begun = min(self.begun + 1, self.count)
        self.active -= len(ended)
        places[which == self.count] = 0


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


class _Recomputing:
    """Steps of a module without a cache: it computes all tokens of its rows again.

    Args:
        policy: the module.
        context: C.
    """

    def __init__(self, policy: nn.Module, context: int) -> None:
        self.policy, self.context = policy, context

    def new_cache(self, rows: int) -> Tensor:
        """The tokens so far ``[W, C]``."""
        device = next(self.policy.parameters()).device
        return torch.zeros((rows, self.context), dtype=torch.int64, device=device)

    def step(self, tokens: Tensor, places: Tensor, cache: Tensor) -> Tensor:
        """See `Decoding`."""
        every = torch.arange(len(cache), device=cache.device)
        cache[every, places] = tokens
        return self.policy(cache)[every, places]
