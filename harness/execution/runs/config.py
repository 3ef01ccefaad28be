"""Training on the frames of a corpus: what such a run computes, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from data_synth.corpus import Corpus
from harness.acoustics.initial import WideRandom
from harness.acoustics.rbm import Recipe
from harness.base.settings import setting
from harness.execution.data.made import Blocks
from harness.execution.runs.training import Pieces, Stage, TrainingConfig, plain
from harness.networks.feedforward import Activation, Dnn, Layout, Precision, check
from harness.simulator import Workload

__all__ = ["ALIGNMENT_FORMAT", "FORMAT", "ForcedAlignment", "RunConfig", "Stage", "plain"]

FORMAT = 4
"""Grows when the same configuration would no longer give the same bytes."""
ALIGNMENT_FORMAT = 1
"""The same of an alignment."""


@dataclass(frozen=True, kw_only=True)
class RunConfig(TrainingConfig[Corpus]):
    """One training on the frames of a corpus, on a simulated cluster.

    Args:
        corpus: which, by name, or the folder of one (docs/corpora.md).
        scale: how much of it.
        corpus_seed: what it is made with, if it is made.
        fingerprint: the SHA-256 of its content.
        hidden: units of each hidden layer; inputs and targets follow from the corpus.
        activation: nonlinearity of the hidden layers.
        initial: the machines that pretrain the network, or `WideRandom`; None for narrower
            random parameters.
        timed_layers: sizes of the network the cluster is charged for (units a level).
        precision: of the products in gradients; see `harness.networks.feedforward`.
        targets: what frames are trained towards and scored against in place of the corpus's own
            targets.

    Raises:
        UserError: settings that do not go together.
    """

    named: ClassVar[bool] = False  # it was there before the others

    corpus: str
    scale: str
    corpus_seed: int
    fingerprint: str
    hidden: tuple[int, ...] = setting(at_least=1)
    activation: Activation
    initial: Recipe | WideRandom | None
    timed_layers: tuple[int, ...] = setting(at_least=1)
    format: int = FORMAT
    precision: Precision = "float32"
    targets: ForcedAlignment | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.precision, self.device)

    def network(self, data: Corpus) -> Dnn:
        """What is trained."""
        return Dnn(Layout(data.layers(self.hidden)), self.activation, self.precision)

    def pieces(self, data: Corpus) -> Pieces:
        """The training utterances, or where frames are shuffled in blocks, blocks of them."""
        train = data.split("train")
        return Blocks.of(train) if self.shuffling == "in blocks" else train

    def workload(self, number: int) -> Workload:
        """What the cluster is charged for in a stage."""
        whole = Workload.of_network(self.timed_layers, self.stage(number).timed_minibatch)
        return replace(whole, parameter_bytes=whole.parameter_bytes * self.algorithm.sent)

    @property
    def judged(self) -> str:
        """Frames wrong on the development set."""
        return "dev_frame_error"

    def stage_name(self, fold: int) -> str:
        """Its algorithm, or before the first fold what it starts from."""
        if fold > 0:
            return type(self.algorithm).__name__
        return "pretraining" if isinstance(self.initial, Recipe) else "its initial parameters"


@dataclass(frozen=True)
class ForcedAlignment:
    """The targets that a trained network finds for what was said in a corpus.

    Args:
        network: the training whose last model scores the frames.
        kappa: what its acoustic scores are multiplied with; transitions and words weigh 1.
    """

    network: RunConfig
    kappa: float = setting(above=0.0)
    format: int = ALIGNMENT_FORMAT

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, canonical: what the alignment's identity hashes."""
        return plain(self)
