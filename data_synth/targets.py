"""Targets from transcripts alone: monophones, then tied states in context.

1. Flat start: a sentence's states share its loud frames equally, silence has the quiet ends and
   pauses; one Gaussian a state, and several for silence.
2. Viterbi training of monophones (``rounds``), their mixtures growing meanwhile.
3. Statistics of every state in its contexts; a tree ties them (``tree``).
4. Viterbi training of the tied states (``tied_rounds``).

Models learn from ``train`` only; the other splits are aligned with what was learned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain
from operator import add
from typing import Any

import numpy as np

from data_synth.align import Aligner, Alignment, Mixtures, equal_parts, refit
from data_synth.corpus import Corpus, Utterances
from data_synth.tree import (
    SILENCE,
    Tree,
    expand_lexicon,
    grow,
    monophone_tree,
    questions,
    statistics_of,
)
from harness.acoustics.language_model import variants
from harness.acoustics.lattice import BestPath
from harness.base.errors import UserError

Pronunciations = Mapping[str, tuple[str, ...]]
Run = tuple[int, int, str, str, str, int]
SMOOTHED = 11  # frames that loudness is averaged over
QUIETEST, LOUDEST = 0.05, 0.95  # quantiles of an utterance's loudness; speech is above halfway
BACKGROUND = 3  # Gaussians of silence for each of another target's, from the first round on
MARGIN = 8  # frames before and after what is loud that belong to speech all the same


@dataclass(frozen=True)
class Effort:
    """Parameters of the search for targets.

    Attributes:
        states: HMM states of a phone.
        rounds, tied_rounds: realignments of monophones and of tied states.
        leaves: tied states wanted, silence's included; 0 stays with monophones.
        least_frames: frames every tied state has in training.
        components: Gaussians a state at most, for speech of many voices.
    """

    states: int = 3
    rounds: int = 10
    tied_rounds: int = 4
    leaves: int = 300
    least_frames: int = 100
    components: int = 8


@dataclass(frozen=True)
class Speech:
    """Frames and transcripts, before there are targets.

    Attributes:
        features: float32 [frames, dim].
        utterances: the table; starts are rows of ``features``.
        pronunciations: lexicon entry -> phones.
    """

    features: np.ndarray
    utterances: Utterances
    pronunciations: Pronunciations

    def rows(self, utterances: Utterances) -> np.ndarray:
        """Frames of some utterances, one after another."""
        ends = utterances.start + utterances.frames
        index = [np.arange(int(a), int(b)) for a, b in zip(utterances.start, ends, strict=True)]
        return self.features[np.concatenate([np.zeros(0, np.int64), *index])]


def monophones(pronunciations: Pronunciations, states: int) -> Tree:
    """Context-independent targets: one of silence, then those of the phones in alphabetical order.

    A background has no order in time. In a chain of states it could not return to a state that it
    has left, and a word of a few frames would be heard where it does.
    """
    phones = sorted(set(chain.from_iterable(pronunciations.values())) - {SILENCE})
    return monophone_tree({SILENCE: 1, **dict.fromkeys(phones, states)})


def silence_of(tree: Tree) -> tuple[int, ...]:
    """The targets of silence."""
    return tuple(~at for at in tree.roots[SILENCE])


def is_speech(loudness: np.ndarray) -> np.ndarray:
    """Whether each frame of an utterance is loud, or within ``MARGIN`` of one that is.

    Args:
        loudness: float [frames], in any unit and from any zero.

    Returns:
        bool [frames].
    """
    around = np.pad(np.asarray(loudness, np.float64), SMOOTHED // 2, "edge")
    smooth = np.convolve(around, np.full(SMOOTHED, 1.0 / SMOOTHED), "valid")
    loud = smooth > np.quantile(smooth, [QUIETEST, LOUDEST]).mean()
    around_loud = np.convolve(loud, np.ones(2 * MARGIN + 1, np.int64))
    return around_loud[MARGIN : MARGIN + len(loud)] > 0


def flat_targets(
    speech: Speech, utterances: Utterances, lexicon: Mapping[str, tuple[int, ...]], silence: int
) -> np.ndarray:
    """Equal parts of the loud frames for the first pronunciations, silence elsewhere.

    Loudness is the first feature: log energy or its like in PLP and MFCC. If the loud frames are
    too few for the words, the whole utterance is speech.

    Args:
        speech: frames.
        utterances: table of the utterances.
        lexicon: lexicon entry -> targets.
        silence: target of the ends, and of pauses longer than twice ``MARGIN``.

    Returns:
        int32 [frames of ``utterances``].
    """
    parts: list[np.ndarray] = []
    entry_of = {word: entries[0] for word, entries in variants(lexicon).items()}
    rows = zip(utterances.start.tolist(), utterances.frames.tolist(), strict=True)
    for (start, frames), words in zip(rows, utterances.words, strict=True):
        states = tuple(chain.from_iterable(lexicon[entry_of[word]] for word in words))
        spoken = is_speech(speech.features[start : start + frames, 0])
        if spoken.sum() < len(states):
            spoken[:] = True
        targets = np.full(frames, silence, np.int32)
        targets[spoken] = equal_parts(int(spoken.sum()), states)
        parts.append(targets)
    return np.concatenate(parts)


def viterbi_rounds(
    speech: Speech,
    train: Utterances,
    tree: Tree,
    start: np.ndarray,
    rounds: int,
    components: int = 1,
) -> tuple[Mixtures, Alignment, Utterances]:
    """Fits mixtures to targets, realigns, and refits; utterances that do not fit drop out.

    Args:
        speech: frames and pronunciations.
        train: utterances to learn from.
        tree: targets of the phones.
        start: int32 [frames of ``train``], first targets.
        rounds: realignments, at least one.
        components: Gaussians a state at most; from the fourth round on they double every
            second one.

    Returns:
        The mixtures, the last alignment, and the utterances it is of.

    Raises:
        UserError: nothing could be aligned.
    """
    aligner = Aligner(expand_lexicon(speech.pronunciations, tree), silence_of(tree))
    shares = np.ones(tree.n_targets, np.int64)
    shares[list(silence_of(tree))] = BACKGROUND
    model, aligned = refit(speech.rows(train), start, tree.n_targets, shares), Alignment((), 0.0)
    for number in range(1, rounds + 1):
        aligned = aligner.align_all(train, mixture_scores(speech, model))
        rows = np.setdiff1d(np.arange(len(train)), aligned.failed)
        if not len(rows):
            raise UserError("alignment: no training utterance has frames enough for its words")
        train = train.take(rows)
        aligned = Alignment(tuple(p for p in aligned.paths if p is not None), aligned.score)
        sizes = shares * min(components, 2 ** max(0, (number - 1) // 2))
        model = refit(speech.rows(train), aligned.targets, tree.n_targets, sizes, model)
    return model, aligned, train


def mixture_scores(speech: Speech, model: Mixtures) -> Callable[[int, int], np.ndarray]:
    """Scores for the aligner: (first row, rows) -> log-likelihoods."""
    return lambda start, rows: model.loglik(speech.features[start : start + rows])


def contexts(
    train: Utterances, paths: tuple[BestPath | None, ...], tree: Tree, lexicon: Pronunciations
) -> list[Run]:
    """Stretches of one state in aligned utterances, with the phones around it.

    Args:
        train: the aligned utterances.
        paths: their paths through the targets of ``tree``, which must be untied.
        tree: monophones.
        lexicon: pronunciations.

    Returns:
        (first row, row after last, left, phone, right, state), silence not among them.
    """
    entries = {word: [lexicon[e] for e in words] for word, words in variants(lexicon).items()}
    runs: list[Run] = []
    for start, path in zip(train.start.tolist(), paths, strict=True):
        assert path is not None
        for word, begin, end in zip(path.words, path.start, path.end, strict=True):
            targets = path.targets[begin:end]
            edges = [0, *(np.flatnonzero(np.diff(targets)) + 1).tolist(), len(targets)]
            visits = tuple(targets[edges[:-1]].tolist())
            phones = next(p for p in entries[word] if tree.targets(p) == visits)
            around, states = (SILENCE, *phones, SILENCE), len(visits) // len(phones)
            for i in range(len(visits)):
                at = i // states
                rows = (start + begin + edges[i], start + begin + edges[i + 1])
                runs.append((*rows, around[at], phones[at], around[at + 2], i % states))
    return runs


def tie_states(
    speech: Speech,
    train: Utterances,
    paths: tuple[BestPath | None, ...],
    tree: Tree,
    effort: Effort,
) -> tuple[Tree, np.ndarray]:
    """Grows a tree on a monophone alignment and renames its targets.

    Returns:
        The tree and int32 [frames of ``train``].
    """
    runs = contexts(train, paths, tree, speech.pronunciations)
    statistics = statistics_of(speech.features, runs)
    means: dict[str, np.ndarray] = {}
    for phone in tree.roots:
        heard = [n for (p, _), part in statistics.items() if p == phone for n in part.values()]
        if heard:
            total = reduce(add, heard)
            means[phone] = total.first / total.frames
    states = {phone: len(roots) for phone, roots in tree.roots.items()}
    grown = grow(statistics, questions(means), states, effort.leaves, effort.least_frames)
    rows = np.zeros(len(speech.features), np.int32)
    place = zip(train.start.tolist(), train.frames.tolist(), strict=True)
    for (start, frames), path in zip(place, paths, strict=True):
        assert path is not None
        rows[start : start + frames] = path.targets  # silence keeps its targets
    for begin, end, before, phone, right, state in runs:
        rows[begin:end] = grown(before, phone, right, state)
    return grown, Speech(rows, train, {}).rows(train)


def learn(speech: Speech, effort: Effort, progress: Callable[[str], None]) -> tuple[Tree, Mixtures]:
    """Tree and mixtures from the transcripts of ``train``."""
    train = speech.utterances.take(speech.utterances.split == "train")
    tree = monophones(speech.pronunciations, effort.states)
    aligner = Aligner(expand_lexicon(speech.pronunciations, tree), silence_of(tree))
    fits = [
        n >= aligner.fewest_frames(w) > 0
        for n, w in zip(train.frames.tolist(), train.words, strict=True)
    ]
    train = train.take(np.array(fits, bool))
    if not len(train):
        raise UserError("alignment: no training utterance has frames enough for its words")
    (silence,) = silence_of(tree)
    start = flat_targets(speech, train, expand_lexicon(speech.pronunciations, tree), silence)
    most = effort.components
    model, aligned, train = viterbi_rounds(speech, train, tree, start, effort.rounds, most)
    progress(f"monophones: {tree.n_targets} targets, log-likelihood a frame {aligned.score:.2f}")
    if effort.leaves > tree.n_targets:
        tree, start = tie_states(speech, train, aligned.paths, tree, effort)
        model, aligned, train = viterbi_rounds(speech, train, tree, start, effort.tied_rounds, most)
        progress(
            f"tied states: {tree.n_targets} targets, log-likelihood a frame {aligned.score:.2f}"
        )
    return tree, model


def from_transcripts(
    name: str,
    speech: Speech,
    effort: Effort,
    progress: Callable[[str], None],
    skip: bool = False,
    **card: Any,
) -> Corpus:
    """A corpus with targets, from frames and transcripts.

    Args:
        name: of the corpus.
        speech: frames, utterances of all splits, pronunciations.
        effort: parameters of the search.
        progress: called with a line of text now and then.
        skip: leave out utterances with too few frames for their words, instead of raising.
        **card: further fields of ``Corpus``.

    Raises:
        UserError: an utterance does not fit, and ``skip`` is off.
    """
    tree, model = learn(speech, effort, progress)
    aligner = Aligner(expand_lexicon(speech.pronunciations, tree), silence_of(tree))
    aligned = aligner.align_all(speech.utterances, mixture_scores(speech, model))
    table = _drop_failed(name, speech.utterances, aligned, skip, progress)
    return Corpus(
        name=name,
        features=speech.rows(table),
        targets=aligned.targets,
        utterances=replace(table, start=np.cumsum(table.frames) - table.frames),
        lexicon=expand_lexicon(speech.pronunciations, tree),
        silence=silence_of(tree),
        pronunciations=speech.pronunciations,
        tree=tree,
        **card,
    )


def _drop_failed(
    name: str,
    utterances: Utterances,
    aligned: Alignment,
    skip: bool,
    progress: Callable[[str], None],
) -> Utterances:
    lost = aligned.failed
    if len(lost):
        problem = f"corpus {name}: {len(lost)} of {len(utterances)} utterances have too few frames "
        problem += f"for their words, e.g. {utterances.id[lost[0]]}"
        if not skip:
            raise UserError(f"{problem}; they are left out with --skip-bad")
        progress(f"{problem}: left out")
    return utterances.take(np.setdiff1d(np.arange(len(utterances)), lost))
