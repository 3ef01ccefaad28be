"""A user's own policy, sampler and problems, known by their code and their state."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from harness.base.errors import RAISED, UserError, describe_raised, name_error
from harness.base.seeds import stream, stream_key
from harness.experiment.digests import digest_of_code, digest_of_part
from harness.experiment.experiment import HasIdentity
from harness.rollouts.losses import Decoupled, Loss, Naive, Reinforce, SecondMoment
from harness.rollouts.policy import Weights
from harness.rollouts.problems import HELD_OUT, Addition, Problem, Problems, Reaching, Sorting
from harness.rollouts.sampling import Completion, Sampler
from harness.rollouts.sources import PolicySource

Reward = Callable[[list[int], list[int]], float]
"""Function ``reward(prompt, answer)`` of tokens; the answer has its end, token 0, if it has one."""


class OwnPolicy(PolicySource, HasIdentity):
    """A user's module, and the sampler in place of ours.

    The module computes as for evaluation: without dropout, with the averages of BatchNorm as given.

    Args:
        model: a causal module from tokens ``[B, T]`` to logits ``[B, T, V]``, from whose
            parameters every run starts; or a function that makes one.
        sampler: see `Sampler`; None for `harness.rollouts.sampling.sample`.

    Raises:
        UserError: one of them is something else.
    """

    def __init__(
        self, model: nn.Module | Callable[[], nn.Module], sampler: Sampler | None = None
    ) -> None:
        for name, part in {"policy": model, "sampler": sampler or model}.items():
            if not callable(part):
                form = "a module or a function" if name == "policy" else "a function"
                raise UserError(f"{name}: a {type(part).__name__}; allowed: {form}")
        self.model, self.sampler = model, sampler

    def make(self, vocabulary: int, context: int, seed: int) -> nn.Module:
        """See `PolicySource`; a function is called with random generators of the seed."""
        del vocabulary, context
        if isinstance(self.model, nn.Module):
            return copy.deepcopy(self.model).eval()
        with torch.random.fork_rng():  # pyright: ignore[reportUnknownMemberType]
            torch.manual_seed(stream_key(seed, "policy") >> 65)  # pyright: ignore[reportUnknownMemberType]
            try:
                policy: Any = self.model()
            except RAISED as error:
                raise UserError(f"policy: raised {describe_raised(error)}") from error
        if not isinstance(policy, nn.Module):
            text = f"gives a {type(policy).__name__}; allowed: a torch.nn.Module, or what makes one"
            raise UserError(f"policy: {text}")
        return policy.eval()

    def rows(self, policy: nn.Module) -> int:
        """See `PolicySource`; of a user's sampler nothing is known."""
        return super().rows(policy) if self.sampler is None else 1

    def sample(
        self,
        policy: nn.Module,
        prefixes: Sequence[np.ndarray],
        draws: np.ndarray,
        temperature: float,
    ) -> Sequence[Completion]:
        """See `PolicySource`.

        Raises:
            UserError: the sampler raises an error.
        """
        if self.sampler is None:
            return super().sample(policy, prefixes, draws, temperature)
        try:
            with torch.no_grad():
                return list(self.sampler(policy, prefixes, draws))
        except RAISED as error:
            raise UserError(f"sampler: raised {describe_raised(error)}") from error

    def count_tokens(self, prompt: Sequence[int]) -> int:
        """V: the size of the logits of a prompt.

        Raises:
            UserError: the module cannot compute them, or is not causal.
        """
        policy = self.make(0, 0, 0)
        Weights(policy)
        logits = _compute_logits(policy, prompt)
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        if not isinstance(shape, tuple) or len(shape) != 3 or shape[:2] != (1, len(prompt)):
            form = f"a tensor (1, {len(prompt)}, tokens of the vocabulary)"
            raise UserError(f"policy: gives {shape} for a prompt of {len(prompt)}; allowed: {form}")
        longer = _compute_logits(policy, [*prompt, (prompt[-1] + 1) % shape[2]])
        if not torch.allclose(longer[:, :-1], logits, rtol=1e-3, atol=1e-3, equal_nan=True):
            form = "a causal module, whose logits depend on the tokens up to their own"
            raise UserError(f"policy: one more token changes earlier logits; allowed: {form}")
        return shape[2]

    def to_identity(self) -> dict[str, Any]:
        """Digests of code and initial parameters."""
        parts = {"policy": digest_of_part(self.model, "policy")}
        if self.sampler is not None:
            parts["sampler"] = digest_of_code(self.sampler, "sampler")
        return {"is": "OwnPolicy", **parts}


def _compute_logits(policy: nn.Module, tokens: Sequence[int]) -> Any:
    """The result for one sequence of tokens.

    Raises:
        UserError: the module raises an error.
    """
    with torch.no_grad():
        try:
            return policy(torch.tensor([list(tokens)]))
        except RAISED as error:
            raise UserError(f"policy: raised {describe_raised(error)}") from error


class OwnProblems(Problems, HasIdentity):
    """A user's prompts, and the function that rewards answers.

    Args:
        prompts: prompts of training, each a sequence of tokens; handed out over and over.
        reward: see `Reward`.
        held_out: prompts of the evaluation; None for a fifth of the prompts, drawn at random.
        vocabulary: number of tokens.
        context: largest number of tokens of prompt and answer.

    Raises:
        UserError: no prompts, or one that is no sequence of tokens, or too long.
    """

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        reward: Reward,
        held_out: Sequence[Sequence[int]] | None,
        vocabulary: int,
        context: int,
    ) -> None:
        if not callable(reward):
            raise UserError(f"reward: a {type(reward).__name__}; allowed: a function")
        self.vocabulary, self._context, self._reward = vocabulary, context, reward
        every = self._read("problems", prompts)
        if held_out is None and len(every) < HELD_OUT:
            form = f"at least {HELD_OUT}, or test with prompts to hold out"
            raise UserError(f"problems: {len(every)} prompts; allowed: {form}")
        order = stream(0, "held-out prompts").permutation(len(every)).tolist()
        apart = set(order[: len(every) // HELD_OUT]) if held_out is None else set[int]()
        self._train = [prompt for k, prompt in enumerate(every) if k not in apart]
        self._held_out = [every[k] for k in sorted(apart)]
        if held_out is not None:
            self._held_out = self._read("test", held_out)

    def _read(self, name: str, prompts: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
        tuples = read_prompts(name, prompts)
        for prompt in tuples:
            if max(prompt) >= self.vocabulary or len(prompt) >= self._context:
                form = f"fewer than {self._context} tokens, each below {self.vocabulary}"
                raise UserError(f"{name}: prompt {list(prompt)[:8]}; allowed: {form}")
        return tuples

    @property
    def context(self) -> int:
        """See `Problems`."""
        return self._context

    def train(self, number: int, seed: int) -> Problem:
        """See `Problems`; a pass over the prompts has them in an order of its own."""
        passed, place = divmod(number, len(self._train))
        order = stream(seed, "prompts", passed).permutation(len(self._train))
        return Problem(self._train[int(order[place])])

    def held_out(self, count: int) -> list[Problem]:
        """See `Problems`."""
        return [Problem(prompt) for prompt in self._held_out[:count]]

    def reward(self, problem: Problem, answer: Sequence[int]) -> float:
        """See `Problems`.

        Raises:
            UserError: the function raises an error.
        """
        try:
            return self._reward(list(problem.prompt), list(answer))
        except RAISED as error:
            raise UserError(f"reward: raised {describe_raised(error)}") from error

    def to_identity(self) -> dict[str, Any]:
        """Digests of prompts and reward, and the sizes."""
        prompts = digest_of_code([self._train, self._held_out], "problems")
        sizes = {"vocabulary": self.vocabulary, "context": self._context}
        reward = digest_of_code(self._reward, "reward")
        return {"is": "OwnProblems", "prompts": prompts, "reward": reward, **sizes}


def read_prompts(name: str, prompts: object) -> list[tuple[int, ...]]:
    """Prompts as tuples of tokens.

    Raises:
        UserError: there are none, or one is no sequence of whole numbers from 0.
    """
    form = "a list of prompts, each a list of at least one whole number from 0"
    try:
        tuples = [tuple(map(operator.index, prompt)) for prompt in cast(Any, prompts)]
    except (TypeError, ValueError) as error:
        raise UserError(f"{name}: {describe_raised(error)}; allowed: {form}") from error
    if not tuples or not all(prompt and min(prompt) >= 0 for prompt in tuples):
        raise UserError(f"{name}: {len(tuples)} prompts, or an empty one; allowed: {form}")
    return tuples


CONTEXT = 64
"""Largest number of tokens of a user's prompt and answer, unless another one is given."""

NAMED: dict[str, type[Any]] = {
    kind.name: kind
    for kind in (Addition, Reaching, Sorting, Reinforce, Naive, Decoupled, SecondMoment)
}
"""Our problems and losses by name."""


def policy_of(asked: object, sampler: object = None) -> PolicySource:
    """The policy that a user asks for: the size of a transformer, a module, or what makes one.

    Raises:
        UserError: it is something else, or a sampler for a policy of ours.
    """
    if not isinstance(asked, PolicySource):
        return OwnPolicy(cast(Any, asked), cast(Any, sampler))
    if sampler is not None:
        raise UserError("sampler: for a policy of your own; allowed: without it")
    return asked


def problems_of(
    asked: object, policy: PolicySource, reward: object, test: object, context: int | None
) -> Problems:
    """The problems that a user asks for: ours, by name too, or prompts with their reward.

    Args:
        asked: the problems or prompts.
        policy: the policy; its logits have the size of the vocabulary.
        reward: see `Reward`; None for problems of ours.
        test: prompts of the evaluation, or None.
        context: largest number of tokens of a user's prompt and answer; None for `CONTEXT`.

    Raises:
        UserError: a mistake in one of them, or parts that do not go together.
    """
    source = NAMED[asked]() if isinstance(asked, str) and asked in NAMED else asked
    if isinstance(source, Problems):
        for name, part in {"reward": reward, "test": test, "context": context}.items():
            if part is not None:
                raise UserError(f"{name}: for prompts of your own; allowed: without it")
        if isinstance(policy, OwnPolicy):
            count, needed = policy.count_tokens(source.held_out(1)[0].prompt), source.vocabulary
            if count != needed:
                raise UserError(f"policy: logits of {count} tokens; allowed: {needed}")
        return source
    if isinstance(source, str):
        raise name_error(
            "problems", source, [n for n, k in NAMED.items() if issubclass(k, Problems)]
        )
    if reward is None:
        raise UserError("reward: missing; needed: a function of prompt and answer")
    if not isinstance(policy, OwnPolicy):
        raise UserError("policy: a module of your own is needed for prompts of your own")
    prompts = read_prompts("problems", source)
    vocabulary = policy.count_tokens(prompts[0])
    most = CONTEXT if context is None else context
    if type(most) is not int or most < 2:
        form = "a whole number at least 2"
        raise UserError(f"context: {most!r} is not allowed; allowed: {form}")
    return OwnProblems(prompts, cast(Any, reward), cast(Any, test), vocabulary, most)


def loss_of(asked: object) -> Loss:
    """The loss that a user asks for, by name too.

    Raises:
        UserError: it is none.
    """
    losses = {name: kind for name, kind in NAMED.items() if issubclass(kind, Loss)}
    if isinstance(asked, str):
        if asked not in losses:
            raise name_error("loss", asked, losses)
        return losses[asked]()
    if not isinstance(asked, Loss):
        raise UserError(f"loss: {asked!r} is not allowed; allowed: {', '.join(losses)}, or a Loss")
    return asked


NO_START = (
    "start: not with prompts of your own, whose right answers are not known; allowed: a policy that"
    " is trained already"
)
