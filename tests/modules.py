"""Small modules as a user might write them, and data for them."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """A transformer's block: causal attention, then two layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.asked, self.said = nn.Linear(width, 3 * width), nn.Linear(width, width)
        wide = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        self.inner = nn.Sequential(*wide)

    def forward(self, x: Tensor) -> Tensor:
        size, length, width = x.shape
        parts = self.asked(self.before(x)).view(size, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.said(seen.transpose(1, 2).reshape(size, length, width))
        return x + self.inner(self.between(x))


class Transformer(nn.Module):
    """Next symbols of a row of symbols."""

    def __init__(self, symbols: int = 20, width: int = 16, length: int = 12) -> None:
        super().__init__()
        self.symbols = nn.Embedding(symbols, width)
        self.register_buffer("places", torch.arange(length))
        self.place = nn.Embedding(length, width)
        self.blocks = nn.Sequential(Block(width, 2), Block(width, 2))
        self.out = nn.Linear(width, symbols)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.blocks(self.symbols(x) + self.place(self.places[: x.shape[1]])))


def mlp(inputs: int = 6, hidden: int = 12, classes: int = 3) -> nn.Module:
    """A perceptron with LayerNorm."""
    return nn.Sequential(
        *(nn.Linear(inputs, hidden), nn.LayerNorm(hidden), nn.ReLU()),
        *(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, classes)),
    )


def cnn() -> nn.Module:
    """Two convolutions and a linear layer, of images 8 x 8."""
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 3)),
    )


def symbols_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of a batch of rows."""
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def points(count: int = 240, inputs: int = 6, classes: int = 3) -> tuple[Tensor, Tensor]:
    """Points and the class that a fixed linear map gives them."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, inputs, generator=generator)
    return x, (x @ torch.randn(inputs, classes, generator=generator)).argmax(1)


def images(count: int = 240) -> tuple[Tensor, Tensor]:
    """Noise, and which third of it is brightest."""
    x = torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    return x, torch.stack([x[..., a : a + 2].sum((1, 2, 3)) for a in (0, 3, 6)], 1).argmax(1)


def rows(count: int = 240, length: int = 12) -> tuple[Tensor, Tensor]:
    """Rows of symbols, and the symbol after each."""
    drawn = torch.randint(20, (count, length + 1), generator=torch.Generator().manual_seed(3))
    drawn[:, 1::2] = (drawn[:, :-1:2] + 1) % 20
    return drawn[:, :-1], drawn[:, 1:]


KINDS = {
    "perceptron": (mlp, functional.cross_entropy, points),
    "convolutions": (cnn, functional.cross_entropy, images),
    "transformer": (Transformer, symbols_loss, rows),
}
"""What makes a module, its loss, and what makes its data."""
