"""What is not as in paper 3 at a scale."""

from __future__ import annotations

from reproductions.paper import Subject, levels
from reproductions.paper3_async_mmi.presets import KAPPA, NUMERATOR, PRESETS, REPORTED, SMALL
from reproductions.paper3_async_mmi.trainings import FIRST_PASSES, criterion

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
         ", ".join(f"{name} {preset.rates[name]:g}" for name in ("one", "ten", "fifty", "last"))
         + "; of sums over a minibatch, tuned on development data (p3.rates)"),
        ("passes of MMI", "many, rate divided by 10 at a plateau",
         f"{preset.passes}, {'the same' if preset.passes > 1 else 'one rate'}"),
        ("start's targets", "alignments of a system with Gaussian mixtures",
         f"forced alignments by a network of {FIRST_PASSES} passes on the true states"),
        ("denominator", "lattices made on the fly", DENOMINATORS[criterion(corpus).denominator]),
        ("numerator", "not said", f"{NUMERATOR} over all alignments"),
        ("acoustic scale", "not said", f"{KAPPA:g}"),
        ("re-aligned control", "forced alignments",
         "forced alignments; no frame is left out, so minibatches are larger by as much"),
        ("shuffling compared", "training from scratch, replicas and criterion not said",
         "cross-entropy training from scratch, one replica, minibatches of "
         f"{preset.minibatch} slots"),
        ("test language model", "trigram", "trigram of the corpus's text"),
        ("fetch intervals", "minutes; the rate of ten replicas and fifty; all decoders at once",
         "passes: " + "; ".join(
             f"{sweep} " + ", ".join(f"{x:g}" for x in intervals)
             for sweep, intervals in preset.fetch.items())
         + f"; one pass, rate {preset.fetch_rate:g}; each decoder as its next utterance begins"),
        ("server", "in shards", "one shard"),
        ("evaluators", "machines of their own", "cost no time; measured at shares of a pass"),
        ("start", "not said", "all replicas at once"),
        ("large task", "3,000 h English, 8 layers, 14,000 states",
         f"voice-search-large, 8 layers, rate {preset.rates['large']:g}, one pass of MMI"
         if corpus.name == SMALL else "none"),
        ("time", "measured", "simulated for the paper's network on assumed machines"),
    ]  # fmt: skip
    return [dict(zip(("what", "paper", "here"), row, strict=True)) for row in rows]
