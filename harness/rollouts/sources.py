"""Where policies are from: sizes of a transformer, and a user's own module with its sampler."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from harness.base.seeds import stream_key
from harness.base.settings import Spec, setting
from harness.rollouts.policy import Transformer
from harness.rollouts.sampling import Completion, Sampler, rows_of, sample


class PolicySource(ABC):
    """Where the untrained policy of a run is from, and its sampler.

    Attributes:
        sampler: a user's sampler, with answers that are checked; None for ours.
    """

    sampler: Sampler | None = None

    @abstractmethod
    def make(self, vocabulary: int, context: int, seed: int) -> nn.Module:
        """An untrained policy, the same for the same seed."""

    def rows(self, policy: nn.Module) -> int:
        """Rollouts that are sampled in the time of one."""
        return rows_of(policy)

    def sample(
        self,
        policy: nn.Module,
        prefixes: Sequence[np.ndarray],
        draws: np.ndarray,
        temperature: float,
    ) -> Sequence[Completion]:
        """Continue rollouts to their end; see `harness.rollouts.sampling.sample`."""
        return sample(policy, prefixes, draws, temperature)


@dataclass(frozen=True)
class SmallTransformer(Spec, PolicySource):
    """Size of a `Transformer`.

    With the default, 0.1 million parameters; 0.8 with ``width`` 128 and ``layers`` 4, 3.2 with
    ``width`` 256 and ``layers`` 4.

    Attributes:
        width: D, numbers for each token.
        layers: L.
        heads: H, which divide the width.
    """

    name = "transformer"

    width: int = setting(64, at_least=4, at_most=4096)
    layers: int = setting(2, at_least=1, at_most=100)
    heads: int = setting(4, at_least=1, at_most=256)

    def trouble(self) -> tuple[str, str] | None:
        """See `Spec`."""
        if self.width % self.heads:
            return "heads", f"{self.heads} does not divide width {self.width}; allowed: a divisor"
        return None

    def make(self, vocabulary: int, context: int, seed: int) -> Transformer:
        """A transformer with the initial parameters of a seed.

        Weights are normal with deviation 0.02, those that add to the residual stream with that
        divided by the root of twice the layers (Radford et al. 2019, section 2.3).
        """
        policy = Transformer(vocabulary, context, self.width, self.layers, self.heads)
        random = torch.Generator().manual_seed(stream_key(seed, "policy") % 2**63)
        with torch.no_grad():
            for name, weight in policy.named_parameters():
                if weight.ndim == 2:
                    adds = name.endswith(("join.weight", "down.weight"))
                    weight.normal_(0.0, 0.02 / (2 * self.layers) ** (adds / 2), generator=random)
                elif name.endswith("bias"):
                    weight.zero_()
        return policy
