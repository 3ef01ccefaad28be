"""Verifiable problems that make their own data: addition, reaching a number, sorting.

A problem is a prompt, and a rollout's reward is 1 if its answer is right and else 0. Answers are
written step by step, so that the difficulty of a problem determines the length of its answer; only
the result counts, and a policy may find shorter ways to it. Problems are drawn by number, and a
prompt belongs either to training or to the held-out part, by a digest of its text.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple, cast
from zlib import crc32

import numpy as np

from harness.base.errors import UserError
from harness.base.seeds import stream
from harness.base.settings import Spec, check_order, setting

END = 0
"""The token that ends an answer."""

SYMBOLS = "$0123456789+-*=,>|"
"""The characters of prompts and answers; a token is an index into them, and ``$`` is `END`."""

_TOKENS = {symbol: token for token, symbol in enumerate(SYMBOLS)}

HELD_OUT = 5
"""One prompt in so many is held out."""


def encode(text: str) -> tuple[int, ...]:
    """The tokens of a text."""
    return tuple(_TOKENS[symbol] for symbol in text)


def decode(tokens: Sequence[int]) -> str:
    """The text of tokens."""
    return "".join(SYMBOLS[token] for token in tokens)


class Problem(NamedTuple):
    """A prompt with its difficulty.

    Attributes:
        prompt: its tokens.
        difficulty: its class, by which scores are reported.
        solution: tokens of a right answer with its `END`, for the supervised start; empty if none
            is known.
    """

    prompt: tuple[int, ...]
    difficulty: int = 0
    solution: tuple[int, ...] = ()


class Problems(ABC):
    """A source of problems, which rewards answers.

    Attributes:
        vocabulary: number of tokens; `END` is one of them.
    """

    vocabulary: int

    @property
    @abstractmethod
    def context(self) -> int:
        """Largest number of tokens of prompt and answer together."""

    @abstractmethod
    def train(self, number: int, seed: int) -> Problem:
        """The problem of a number, the same for the same seed."""

    @abstractmethod
    def held_out(self, count: int) -> Sequence[Problem]:
        """``count`` problems that no training has seen, at most; every run has the same."""

    @abstractmethod
    def reward(self, problem: Problem, answer: Sequence[int]) -> float:
        """The reward of an answer: its tokens after the prompt, with `END` if it has one."""


def check_reward(value: object) -> float:
    """The value of a reward as a number.

    Raises:
        UserError: it is no finite number.
    """
    try:
        number = float(cast(Any, value))
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"reward: {value!r} of an answer is not allowed; allowed: a finite number")
    return number


class Verified(Problems):
    """Base of problems in `SYMBOLS` that are drawn at random and verified by a program.

    Training and held-out problems are of one law; no prompt is in both.
    """

    vocabulary = len(SYMBOLS)

    @abstractmethod
    def draw(self, random: np.random.Generator) -> tuple[str, int]:
        """Draw a prompt, and its difficulty."""

    @abstractmethod
    def solve(self, prompt: str) -> str:
        """A right answer of a prompt, step by step, without `END`."""

    @abstractmethod
    def is_right(self, prompt: str, answer: str) -> bool:
        """Whether an answer, without its `END`, is right."""

    def train(self, number: int, seed: int) -> Problem:
        """See `Problems`."""
        return next(self._problems(stream(seed, "problem", number), held_out=False))

    def held_out(self, count: int) -> list[Problem]:
        """See `Problems`."""
        return list(islice(self._problems(stream(0, "held-out problems"), held_out=True), count))

    def reward(self, problem: Problem, answer: Sequence[int]) -> float:
        """See `Problems`; an answer without `END` is wrong."""
        if not answer or answer[-1] != END:
            return 0.0
        return float(self.is_right(decode(problem.prompt), decode(answer[:-1])))

    def _problems(self, random: np.random.Generator, held_out: bool) -> Iterator[Problem]:
        while True:
            prompt, difficulty = self.draw(random)
            if (crc32(prompt.encode()) % HELD_OUT == 0) == held_out:
                yield Problem(encode(prompt), difficulty, (*encode(self.solve(prompt)), END))


@dataclass(frozen=True)
class Addition(Spec, Verified):
    """Column addition of two numbers, digits from the right; the difficulty is their digits.

    The prompt ``75+68=`` is 57 + 86. The answer writes each column's digits, its sum and the carry
    ``>`` or ``|``, and then the digits of the result: ``763>584>=341`` is 143.

    Attributes:
        digits: largest number of digits.
        tail: the probability of d digits is proportional to ``d ** -tail``.
        least: smallest number of digits; of one digit there are so few prompts that a policy
            remembers them.
    """

    name = "addition"

    digits: int = setting(6, at_least=1, at_most=30)
    tail: float = setting(1.0, at_least=0.0, at_most=10.0)
    least: int = setting(2, at_least=1, at_most=30)

    def trouble(self) -> tuple[str, str] | None:
        """See `Spec`."""
        return check_order(self, "least", "digits")

    @property
    def context(self) -> int:
        """See `Problems`: prompt, columns, result, end, and room for one column too many."""
        return 2 * self.digits + 2 + 4 * self.digits + self.digits + 3 + 4

    def draw(self, random: np.random.Generator) -> tuple[str, int]:
        """See `Verified`."""
        digits = _draw_count(random, self.least, self.digits, self.tail)
        rows = random.integers(0, 10, (2, digits))
        a, b = ("".join(map(str, row)) for row in rows.tolist())
        return f"{a}+{b}=", digits

    def solve(self, prompt: str) -> str:
        """See `Verified`."""
        addend, augend = prompt[:-1].split("+")
        columns, digits, carry = "", "", 0
        for a, b in zip(addend, augend, strict=True):
            carry, digit = divmod(int(a) + int(b) + carry, 10)
            columns += f"{a}{b}{digit}{'>' if carry else '|'}"
            digits += str(digit)
        return f"{columns}={digits}{carry or ''}"

    def is_right(self, prompt: str, answer: str) -> bool:
        """See `Verified`: the digits after the last ``=`` are the sum."""
        a, b = (int(digits[::-1]) for digits in prompt[:-1].split("+"))
        _, equals, result = answer.rpartition("=")
        return bool(equals) and result.isdigit() and int(result[::-1]) == a + b


def _draw_count(random: np.random.Generator, least: int, most: int, tail: float) -> int:
    """A count n with a probability proportional to ``n ** -tail``."""
    counts = np.arange(least, most + 1)
    chances = counts**-tail
    return int(random.choice(counts, p=chances / chances.sum()))


NUMBER = r"(0|-?[1-9]\d*)"
STEP = re.compile(rf"{NUMBER}([-+*]){NUMBER}={NUMBER}", re.ASCII)
"""A step to a number, such as ``3*4=12``."""


@dataclass(frozen=True)
class Reaching(Spec, Verified):
    """Reaching a number from others by ``+``, ``-`` and ``*``, each used at most once.

    The prompt ``3,4,5=17`` asks for 17. The answer has a step after the other, each with its
    result, which the next one begins with: ``3*4=12,12+5=17``. The difficulty is the number of
    given numbers; the probability of each count is equal.

    Attributes:
        least: smallest count of given numbers.
        most: largest count of given numbers.
        largest: largest given number.
    """

    name = "reaching"

    least: int = setting(3, at_least=2, at_most=4)
    most: int = setting(4, at_least=2, at_most=4)
    largest: int = setting(9, at_least=2, at_most=20)

    def trouble(self) -> tuple[str, str] | None:
        """See `Spec`."""
        return check_order(self, "least", "most")

    @property
    def context(self) -> int:
        """See `Problems`."""
        wide = len(str(self.largest))
        result = len(str(self.largest**self.most))
        step = 2 * result + wide + 3
        return self.most * (wide + 1) + 4 + (self.most - 1) * step + 1

    def draw(self, random: np.random.Generator) -> tuple[str, int]:
        """See `Verified`: the number is reached from all that are given, and is from 1 to 999."""
        count = int(random.integers(self.least, self.most + 1))
        while True:
            numbers = tuple(random.integers(1, self.largest + 1, count).tolist())
            target = numbers[0]
            for number in numbers[1:]:
                target = _calculate(target, "+-*"[int(random.integers(3))], number)
            if 1 <= target <= 999:
                order = random.permutation(count).tolist()
                return f"{','.join(str(numbers[k]) for k in order)}={target}", count

    def solve(self, prompt: str) -> str:
        """See `Verified`: the first way with the fewest steps."""
        numbers, target = _parse_prompt(prompt)
        return _reach(numbers, target)

    def is_right(self, prompt: str, answer: str) -> bool:
        """See `Verified`: every step is right, and the last one gives the number."""
        numbers, target = _parse_prompt(prompt)
        unused, reached = list(numbers), None
        for step in answer.split(","):
            term = STEP.fullmatch(step)
            if term is None:
                return False
            a, b, result = (int(term[k]) for k in (1, 3, 4))
            if reached is None and a in unused:
                unused.remove(a)
            elif a != reached:
                return False
            if b not in unused or _calculate(a, term[2], b) != result:
                return False
            unused.remove(b)
            reached = result
        return reached == target


def _parse_prompt(prompt: str) -> tuple[tuple[int, ...], int]:
    numbers, target = prompt.split("=")
    return tuple(int(word) for word in numbers.split(",")), int(target)


def _calculate(a: int, sign: str, b: int) -> int:
    return a + b if sign == "+" else a - b if sign == "-" else a * b


@lru_cache(4096)
def _reach(numbers: tuple[int, ...], target: int) -> str:
    """The steps of the first way to a number, fewest steps first; given by breadth."""
    # of each way the number that it has reached, its steps as text, and the unused numbers
    ways = [(start, "", _remove_one(numbers, start)) for start in dict.fromkeys(numbers)]
    while ways:
        further: list[tuple[int, str, tuple[int, ...]]] = []
        for number, steps, unused in ways:
            for second in dict.fromkeys(unused):
                for sign in "+-*":
                    result = _calculate(number, sign, second)
                    path = f"{steps}{',' if steps else ''}{number}{sign}{second}={result}"
                    if result == target:
                        return path
                    further.append((result, path, _remove_one(unused, second)))
        ways = further
    raise ValueError(f"{target} cannot be reached from {numbers}")


def _remove_one(numbers: tuple[int, ...], number: int) -> tuple[int, ...]:
    at = numbers.index(number)
    return numbers[:at] + numbers[at + 1 :]


@dataclass(frozen=True)
class Sorting(Spec, Verified):
    """Sorting digits: the prompt ``3,1,2=``, the answer ``1,2,3``; the difficulty is their count.

    Attributes:
        most: largest number of digits to sort.
        tail: the probability of n digits is proportional to ``n ** -tail``.
        least: smallest number of digits to sort.
    """

    name = "sorting"

    most: int = setting(8, at_least=2, at_most=100)
    tail: float = setting(1.0, at_least=0.0, at_most=10.0)
    least: int = setting(3, at_least=2, at_most=100)

    def trouble(self) -> tuple[str, str] | None:
        """See `Spec`."""
        return check_order(self, "least", "most")

    @property
    def context(self) -> int:
        """See `Problems`."""
        return 4 * self.most + 4

    def draw(self, random: np.random.Generator) -> tuple[str, int]:
        """See `Verified`."""
        count = _draw_count(random, self.least, self.most, self.tail)
        return ",".join(map(str, random.integers(0, 10, count).tolist())) + "=", count

    def solve(self, prompt: str) -> str:
        """See `Verified`."""
        return ",".join(sorted(prompt[:-1].split(",")))

    def is_right(self, prompt: str, answer: str) -> bool:
        """See `Verified`."""
        return answer == self.solve(prompt)
