"""Recognise a corpus's test sets with a stored run: scale and word penalty are tuned on dev.

lagbench train async-averaged --out runs
python recognise.py runs/HASH [LANGUAGE_MODEL.arpa]
"""

import sys
from pathlib import Path

from data_synth.corpus import Utterances
from harness.acoustics.scoring import word_errors
from harness.fidelity.replay import config_of, load_finished_run
from harness.speech.evaluation import FrameEvaluator, Transcriber
from harness.speech.frames import corpus_of, frames_of
from harness.speech.task import final_model

run = load_finished_run(Path(sys.argv[1]))
config = config_of(run)
corpus = corpus_of(config.task, print)
model = final_model(run)
frames = frames_of(corpus, "cpu", config.shuffling)
evaluator = FrameEvaluator(config.task.network(corpus), frames, corpus)


def scores_of(part: Utterances) -> list:
    """For each utterance [T, K]: log posteriors of the K targets less their log priors."""
    return evaluator.likelihoods(model, part)


arpa = Path(sys.argv[2]) if len(sys.argv) > 2 else None
transcriber = Transcriber(corpus, order=2, closed=True, arpa=arpa)
tuned = transcriber.tune_decoding(scores_of)  # None: each utterance is a single word
if tuned is not None:
    print(f"acoustic scale {tuned.best.scale:g}, insertion penalty {tuned.best.insertion:g} nats,")
    print(f"word error on development data {tuned.best.rate:.1%}")
for test in corpus.tests:
    said = corpus.split(test).words
    heard = transcriber.hear(test, scores_of, tuned)
    counts = word_errors(said, heard)
    wrong, (replaced, inserted, deleted) = counts.errors.sum(), counts.edits.sum(axis=0)
    unknown = sum(word not in transcriber.vocabulary for words in said for word in words)
    # As Kaldi and sclite print it.
    print(
        f"{test}: %WER {100 * counts.rate:.2f} [ {wrong} / {counts.lengths.sum()}, "
        f"{inserted} ins, {deleted} del, {replaced} sub ], {unknown} of the words unknown"
    )
    for words, answer in list(zip(said, heard, strict=True))[:3]:
        print(f"  said {' '.join(words)}, heard {' '.join(answer)}")
