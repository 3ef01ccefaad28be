"""What a run starts from: drawn, pretrained, or what another has trained.

RBM pretraining is a run of its own, which all of a seed share.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor

from data_synth.corpus import Corpus
from harness.acoustics.rbm import Recipe, pretrain
from harness.base.seeds import stream_key
from harness.execution.data.frames import Order, Shuffling
from harness.execution.data.made import Blocks
from harness.execution.data.minibatches import Examples
from harness.execution.runs.config import RunConfig
from harness.networks.feedforward import Dnn, random_parameters
from harness.store import Run, RunWriter, Store
from harness.store.schema import MODEL

MINIBATCH = 100
"""Frames a minibatch, as the recipe's rates expect."""
ENOUGH = 1_000_000
"""Frames that machines are trained on, of speech in blocks: draws are made on the host, 0.7
ms a minibatch, which over 500 h is hours; and a pretraining that ends early begins anew."""
SIGMOID_GAIN = 4.0
FORMAT = 1
"""Grows when the same configuration would no longer pretrain to the same bytes."""


@dataclass(frozen=True)
class PretrainingConfig:
    """What the pretrained parameters are a function of.

    Args:
        corpus, scale, fingerprint: the corpus and the SHA-256 of its content.
        hidden: units of each hidden layer.
        recipe: rates and epochs of the machines.
        seed: of data order and draws.
        device: ``"cpu"`` or ``"cuda"``.
        share: of the training utterances, the same as the run trains on; no part of the
            identity while it is all of them.
        shuffling: ``"in blocks"``, or ``"full"`` however the run shuffles, and then no part of it.
    """

    corpus: str
    scale: str
    fingerprint: str
    hidden: tuple[int, ...]
    recipe: Recipe
    seed: int
    device: str
    share: float = 1.0
    format: int = FORMAT
    shuffling: Shuffling = "full"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: what the run's identity hashes."""
        told = asdict(self)
        if self.share == 1.0:
            del told["share"]
        if self.shuffling == "full":
            del told["shuffling"]
        return {"is": "PretrainingConfig", "minibatch": MINIBATCH, **told}


def final_model(run: Run) -> Tensor:
    """The final parameters ``[P]`` of a run.

    Raises:
        UserError: it has kept none.
    """
    return load_file(run.path(MODEL))["model"]


def initial_parameters(
    config: RunConfig, net: Dnn, frames: Examples, corpus: Corpus, store: Store
) -> Tensor:
    """The parameters ``[P]`` that a run starts from: pretrained, or drawn."""
    if isinstance(config.initial, Recipe):
        asked = PretrainingConfig(
            config.corpus,
            config.scale,
            config.fingerprint,
            config.hidden,
            config.initial,
            config.seed,
            config.device,
            _share(config, corpus),
            shuffling="in blocks" if config.shuffling == "in blocks" else "full",
        )
        return pretrained(asked, net, frames, corpus, store)
    generator = torch.Generator().manual_seed(stream_key(config.seed, "initialise") >> 65)
    if config.initial is not None:
        return config.initial.parameters(net.layout, generator)[0]
    gain = SIGMOID_GAIN if config.activation == "sigmoid" else 1.0
    return random_parameters(net.layout, generator, gain)[0]


def _share(config: RunConfig, corpus: Corpus) -> float:
    """Of the utterances. Asynchronous runs pretrain on all, whatever share they train on."""
    share = config.stages[0].share if config.rounds else 1.0
    if config.shuffling != "in blocks":
        return share
    return min(share, ENOUGH / corpus.frames_of("train"))


def pretrained(
    config: PretrainingConfig, net: Dnn, frames: Examples, corpus: Corpus, store: Store
) -> Tensor:
    """The pretrained parameters ``[P]``: from the store, or made now.

    Several processes may ask at once: one makes them, the others wait.
    """
    run = store.needing(MODEL).obtain(
        config.to_dict(), lambda writer: _pretrain(config, net, frames, corpus, writer)
    )
    return load_file(run.path(MODEL))["model"]


def _pretrain(
    config: PretrainingConfig, net: Dnn, frames: Examples, corpus: Corpus, writer: RunWriter
) -> None:
    train = corpus.split("train")
    if config.shuffling == "in blocks":
        train = Blocks.of(train)
    # Stages of training count from 0: these orders are of no stage.
    parts = (train.start, train.frames, MINIBATCH, config.share)
    orders = [
        Order(config.seed, -1 - epoch, *parts, shuffling=config.shuffling)
        for epoch in range(max(config.recipe.gaussian_epochs, config.recipe.bernoulli_epochs))
    ]

    def inputs(epoch: int, number: int) -> Tensor:
        return frames.gather(torch.as_tensor(orders[epoch].rows(number))[None]).x

    found = pretrain(net, inputs, orders[0].steps, [config.seed], config.recipe)
    for depth, errors in enumerate(found.reconstruction):
        for epoch, error in enumerate(map(float, errors[:, 0]), start=1):
            writer.log(f"reconstruction/{depth}", error, fold=0, time_s=0.0, epoch=epoch)
    writer.attach_arrays(MODEL, {"model": found.stack[0].cpu().numpy()})
    writer.finish(
        "done", {f"reconstruction/{d}": e[-1, 0].item() for d, e in enumerate(found.reconstruction)}
    )
