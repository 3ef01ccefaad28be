"""Run files that several tests train from, beside the cluster of two slow workers they name."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from data_synth.corpus import Corpus
from data_synth.parametric import Maker, Recipe
from data_synth.storage import write_chunks
from tests.stand_in import utterances

SLOW = """
name = "slow"
workers = [{{ count = 2, device = "slow" }}]
devices.slow.launch_s = {launch_s}
"""
BEGINNING = """
cluster = "cluster.toml"
workers = 2
task = { is = "frames", corpus = "parametric", hidden = [32] }
stages = [{ minibatch = 32, timed_minibatch = 32, share = 0.1 }]
"""
ASYNCHRONOUS = f"""{BEGINNING}
evaluations = 4
algorithm = {{ is = "AveragedSgd" }}
schedule = {{ is = "Halving", rate = 0.01 }}
"""
OUTER_LOOP = f"""{BEGINNING}
evaluations = 4
protocol = {{ push_every = 4 }}
algorithm = {{ is = "DelayedNesterov", every = 2, descent = {{ is = "AdamW" }} }}
schedule = {{ is = "Constant", rate = 0.004 }}
"""
STREAMING = f"""{BEGINNING}
evaluations = 4
protocol = {{ every = 4 }}
schedule = {{ is = "Constant", rate = 0.004 }}
[algorithm]
is = "StreamingDiLoCo"
fragments = 2
mixing = 0.5
descent = {{ is = "AdamW" }}
"""
ROUNDS = f"""{BEGINNING}
passes = 2
evaluations = 2
protocol = {{ every = 5 }}
[algorithm]
is = "ModelAveraging"
restart = "pass"
outer = {{ is = "BlockMomentum" }}
descent.inputs = {{ rank = 10, period = 4 }}
descent.outputs = {{ rank = 10, period = 4 }}
[schedule]
is = "Exponential"
rate = 0.5
passes = 2
"""


@cache
def tiny_corpus() -> Corpus:
    """Forty short utterances of two words over five targets, in three features."""
    draw = np.random.default_rng(0)
    lengths = draw.integers(14, 22, 40)
    total = int(lengths.sum())
    words = ["yes", "no"] * 20
    chains = {"yes": (0, 1, 2), "no": (3, 1, 4)}
    targets = np.concatenate(
        [np.repeat(chains[w], np.diff([0, 5, 10, n])) for w, n in zip(words, lengths, strict=True)]
    )
    centres = 2.0 * draw.standard_normal((5, 3))
    features = (centres[targets] + draw.standard_normal((total, 3))).astype(np.float32)
    splits = ["train"] * 28 + ["dev"] * 4 + ["clean"] * 4 + ["noise"] * 4
    table = utterances(splits, lengths, [(word,) for word in words])
    return Corpus("tiny", features, targets.astype(np.int32), table, chains, context=1)


def few_words(train: int = 1200) -> str:
    """The folder of the speech of ``parametric`` with hardly any to test on.

    Args:
        train: utterances that are trained on; ``parametric`` has 1,200 at smoke scale.
    """
    return _corpus(train).name


@cache
def _corpus(train: int) -> TemporaryDirectory[str]:
    recipe = Recipe(train=train, dev=15, test=15)
    made = TemporaryDirectory(prefix="words-")
    write_chunks(Path(made.name), Maker(recipe).card(), Maker(recipe).chunks())
    return made


def on_few_words(run: str, train: int = 1200) -> str:
    """A run file with `few_words` in place of its ``parametric`` corpus."""
    return run.replace('"parametric"', f'"{few_words(train)}"')


def written(folder: Path, run: str, launch_s: float = 0.0) -> Path:
    """Write ``run.toml``, which is returned, and ``cluster.toml``.

    Args:
        folder: where.
        run: what the run file says.
        launch_s: how long a minibatch takes on the cluster.
    """
    (folder / "cluster.toml").write_text(SLOW.format(launch_s=launch_s), encoding="utf-8")
    path = folder / "run.toml"
    path.write_text(on_few_words(run), encoding="utf-8")
    return path
