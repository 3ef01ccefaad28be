"""Problems other than speech: characters of a book, and handwritten digits.

Both sets of data lie beside this file (``data/README.md``). A run makes one pass over its training
data, in the order of its seed, since workers synchronise at the end of every pass: several epochs
are several copies of the data in one pass.
"""

from __future__ import annotations

import gzip
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from harness.modules.parts import Arrays, ModuleParts

DATA = Path(__file__).parent / "data"
BOOK, DIGITS = "opticks.txt", "digits.csv.gz"
LENGTH = 32
"""Length of an example of text, in characters."""
HELD_OUT_TEXT, HELD_OUT_DIGITS = 0.05, 500
"""Development data: of the book the last part, of the digits the last rows."""
WIDTH, HEADS, HIDDEN = 32, 2, 64


class Characters(nn.Module):
    """One block of a decoder-only transformer: attention and an MLP, each after a LayerNorm.

    Args:
        letters: number of different characters.
    """

    def __init__(self, letters: int) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.before = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.attended, self.mixed = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, letters)
        self.register_buffer("places", torch.arange(LENGTH), persistent=False)
        nn.init.normal_(self.letter.weight, std=0.1)
        nn.init.normal_(self.place.weight, std=0.1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``[B, letters, T]`` of what follows each character of ``x [B, T]``."""
        h = self.letter(x) + self.place(self.places)
        parts = (
            self.attended(self.before[0](h)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        )
        mixed = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        h = h + self.mixed(mixed.transpose(1, 2).flatten(2))
        h = h + self.narrow(nn.functional.gelu(self.wide(self.before[1](h))))
        return self.out(self.before[2](h)).transpose(1, 2)


def perceptron() -> nn.Module:
    """64 inputs, one hidden level, ten digits."""
    return nn.Sequential(nn.Linear(64, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 10))


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean negative log-probability (nats) of ``targets [B, ...]`` by ``outputs [B, K, ...]``."""
    return nn.functional.cross_entropy(outputs, targets)


class ProblemByName(ModuleParts):
    """A problem with bundled data; between processes it is sent by name."""

    def __init__(self, name: str, folds: int, minibatch: int, *parts: Any) -> None:
        super().__init__(*parts)
        self._named = (name, folds, minibatch)

    def __reduce__(self) -> tuple[Any, ...]:
        return problem, self._named


@cache
def problem(name: str, folds: int, minibatch: int) -> ModuleParts:
    """A problem by name, with training data for ``folds`` minibatches.

    Args:
        name: ``"text"`` or ``"digits"``.
        folds: minibatches of the pass over the training data.
        minibatch: examples in each.
    """
    train, dev = {"text": text, "digits": digits}[name]()
    # Several epochs as one pass: workers would synchronise between passes.
    rows = np.arange(folds * minibatch) % len(train)
    model = perceptron if name == "digits" else partial(Characters, len(alphabet()))
    return ProblemByName(
        name, folds, minibatch, model, cross_entropy, train.take(rows), dev, None, {}
    )


@cache
def alphabet() -> str:
    """The characters of the book, in order."""
    return "".join(sorted(set(_book())))


@cache
def _book() -> str:
    return (DATA / BOOK).read_text(encoding="ascii")


@cache
def text() -> tuple[Arrays, Arrays]:
    """Training and development examples: characters ``[N, T]`` and those that follow them.

    Training examples begin at every half length of the book, so that each character is in two.
    """
    number = {letter: k for k, letter in enumerate(alphabet())}
    letters = torch.tensor([number[letter] for letter in _book()])
    cut = round((1 - HELD_OUT_TEXT) * len(letters))
    return _windows(letters[:cut], LENGTH // 2), _windows(letters[cut:], LENGTH)


def _windows(letters: Tensor, step: int) -> Arrays:
    cut = letters.unfold(0, LENGTH + 1, step)
    return Arrays(cut[:, :-1].contiguous(), cut[:, 1:].contiguous())


@cache
def digits() -> tuple[Arrays, Arrays]:
    """Training and development examples: brightness ``[N, 64]`` from 0 to 1, and the digits."""
    with gzip.open(DATA / DIGITS, "rt", encoding="ascii") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.int64)
    x = torch.as_tensor(table[:, :64] / 16.0, dtype=torch.float32)
    every = Arrays(x, torch.as_tensor(table[:, 64]))
    rows = np.arange(len(every))
    return every.take(rows[:-HELD_OUT_DIGITS]), every.take(rows[-HELD_OUT_DIGITS:])
