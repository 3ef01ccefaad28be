"""What is not as in paper 3 at a scale."""

from __future__ import annotations

from reproductions.paper import Subject, levels
from reproductions.paper3_async_mmi.experiments import criterion
from reproductions.paper3_async_mmi.presets import KAPPA, NUMERATOR, PRESETS, REPORTED, SMALL

DENOMINATORS = {
    "graph": "the whole graph, which is their limit",
    "lattice": "lattices made on the fly: the words' loop is too large for sums over all of it",
}


def differences(subject: Subject) -> list[dict[str, str]]:
    """Rows of ``what``, ``paper`` and ``here``."""
    preset, corpus, paper = PRESETS[subject.scale], subject.corpus, REPORTED["paper"]
    train = corpus.split("train")
    hours = train.total_frames * corpus.frame_shift_s / 3600.0
    flying = 50 * preset.slots / len(train)
    rows = [
        ("training speech",
         f"{paper['training_hours']} h Icelandic, {paper['utterances']:,} queries",
         f"{hours:.2f} h {corpus.name}, {len(train):,} queries"),
        ("network", levels(paper["layers"]),
         levels(corpus.layers(preset.hidden))),
        ("vocabulary", f"{paper['vocabulary']:,} words", f"{len(corpus.lexicon):,} words"),
        ("slots of a minibatch", str(paper["minibatch"]),
         f"{preset.slots}: a small corpus is soon all in flight (50 replicas: {flying:.0%})"),
        ("rates", f"{paper['rate_one']} with one replica, {paper['rate_many']} with more",
         f"{preset.rate_one} and {preset.rate_many}, both of sums over a minibatch: what is "
         "stable goes by rate times stale frames, and that by slots, kept frames and replicas"),
        ("passes of MMI", "many, rate divided by 10 at a plateau",
         f"{preset.passes}, {'the same' if preset.passes > 1 else 'one rate'}"),
        ("denominator", "lattices made on the fly", DENOMINATORS[criterion(corpus).denominator]),
        ("numerator", "not said", f"{NUMERATOR} over all alignments"),
        ("acoustic scale", "not said", f"{KAPPA:g}"),
        ("re-aligned control", "forced alignments", "forced alignments, no frame left out"),
        ("shuffling compared", "trained from scratch, replicas not said",
         "from the same cross-entropy start, ten replicas"),
        ("test language model", "trigram", "trigram of the corpus's text"),
        ("fetch intervals", "minutes, at the rate of ten replicas; all decoders at once",
         "passes: " + ", ".join(f"{x:g}" for x in preset.fetch)
         + f"; at rate {preset.rate_one}; each decoder as its next utterance begins"),
        ("server", "in shards", "one shard"),
        ("evaluators", "machines of their own", "cost no time; measured at shares of a pass"),
        ("start", "not said", "all replicas at once"),
        ("seeds, data", "not said",
         "verdicts on seeds from 21; sweeps and decoding were settled with other seeds on the same "
         "synthetic corpus (decision 20)" if corpus.name == SMALL else "not used before"),
        ("large task", "3,000 h English, 8 layers, 14,000 states",
         f"voice-search-large, 8 layers, rate {preset.rate_large}" if corpus.name == SMALL
         else "none"),
        ("time", "measured", "simulated for the paper's network on assumed machines"),
    ]  # fmt: skip
    return [dict(zip(("what", "paper", "here"), row, strict=True)) for row in rows]
