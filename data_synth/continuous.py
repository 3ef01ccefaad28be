"""Synthetic sentences with known truth: continuous speech of tied states in context.

Words come from an invented bigram (``invented_language``), are said as phones whose states are
tied by their neighbours (``tie``), and sound by the same physics as isolated words
(``articulation``). A test set is a condition: speakers, speed, channel and signal-to-noise ratio.

Phones fall into families of neighbours (k-means of their places; silence is one of its
own). A phone's first state has a target for each family to the left, its last state one
for each family to the right, its middle one target: 2 (families + 1) + 1 a phone.

Utterance i of a split is a pure function of (recipe, split, i): a corpus can be made in
chunks of any size, and none of it need be stored.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from data_synth import invented_language
from data_synth.corpus import Card, Corpus, join
from data_synth.invented_language import (
    SILENCE_STATES,
    STATES_A_PHONE,
    Manner,
    SpeechMaker,
    Spoken,
    invent_bigram,
    make_speech,
    phone_name,
    table_of,
)
from data_synth.storage import progress_counter
from data_synth.tree import SILENCE, Node, Tree, expand_lexicon
from harness.base.seeds import stream

MAKERS = (
    "continuous.py",
    "invented_language.py",
    "tree.py",
    "articulation.py",
    "features.py",
    "corpus.py",
    "storage.py",
)

# States, int64 [n], frames in each, int64 [n], and displacements, float64 [n, dims].
Visits = tuple[np.ndarray, np.ndarray, np.ndarray]

Drawn = tuple[np.ndarray, np.ndarray, int, tuple[str, ...], np.random.Generator]
"""Articulatory aims, targets, speaker, words, and the random numbers for the sound."""

FIRST_CHARACTER = 0x4E00  # where the common Chinese characters begin in Unicode


@dataclass(frozen=True)
class Condition:
    """A test set's differences from the recipe's training speech.

    Attributes:
        name: of the split.
        utterances: number of utterances.
        snr_db: (least, most) signal over background.
        speaker: factor on ``Recipe.speaker_spread``; ``channel`` on ``channel_spread``.
        hurry: factor on the speed of speaking.
        speech_of: another split whose utterances these are, in other surroundings.
    """

    name: str
    utterances: int
    snr_db: tuple[float, float] = (15.0, 30.0)
    speaker: float = 1.0
    channel: float = 1.0
    hurry: float = 1.0
    speech_of: str = ""


@dataclass(frozen=True)
class Recipe(invented_language.Recipe):
    """The knobs of a continuous corpus: those of isolated words, and these.

    ``test`` and ``noise_snr_db`` are not used: ``conditions`` say it.

    Attributes:
        manner: parameters of the word bigram.
        families, pull: number of groups of neighbours that change a phone's ends; how far.
        homophones: share of words that sound like another word.
        characters: words are written as Chinese characters, not as their sounds.
        pause: probability of silence between two words; ``pause_frames`` (least, most).
        lm_sentences: text for a language model, apart from everything spoken.
        conditions: the test sets.
    """

    manner: Manner = field(default_factory=Manner)
    families: int = 4
    pull: float = 0.35
    homophones: float = 0.0
    characters: bool = False
    pause: float = 0.1
    pause_frames: tuple[int, int] = (4, 12)
    lm_sentences: int = 5000
    conditions: tuple[Condition, ...] = (Condition("test", 200),)

    def splits(self) -> tuple[Condition, ...]:
        """All splits in order: train, dev, and the test sets."""
        return (
            Condition("train", self.train, self.snr_db),
            Condition("dev", self.dev, self.snr_db),
            *self.conditions,
        )

    def sizes(self) -> dict[str, int]:
        """Utterances in each split."""
        return {c.name: c.utterances for c in self.splits()}


def invent_lexicon(recipe: Recipe) -> dict[str, tuple[int, ...]]:
    """Words and their phones; homophones share the phones of an earlier word."""
    distinct = max(1, round(recipe.words * (1.0 - recipe.homophones)))
    lexicon = invented_language.invent_words(dataclasses.replace(recipe, words=distinct))
    rng = stream(recipe.seed, "homophones")
    stems = list(lexicon)
    for number in range(recipe.words - distinct):
        stem = stems[int(rng.integers(distinct))]
        lexicon[f"{stem}'{number}"] = lexicon[stem]
    if not recipe.characters:
        return lexicon
    return {chr(FIRST_CHARACTER + i): phones for i, phones in enumerate(lexicon.values())}


class Maker(SpeechMaker):
    """Makes any utterance of a recipe; the model is described in the module's docstring."""

    recipe: Recipe

    def __init__(self, recipe: Recipe, name: str = "continuous") -> None:
        super().__init__(recipe, name)
        self.senones = tie(recipe, self.language.places, recipe.families, recipe.pull)
        self.phones = invent_lexicon(recipe)
        self.words = tuple(self.phones)
        self.pronunciations = {w: tuple(map(phone_name, p)) for w, p in self.phones.items()}
        self.lexicon = expand_lexicon(self.pronunciations, self.senones.tree)
        self.text = invent_bigram(recipe.seed, len(self.words), recipe.manner)
        self.conditions = {c.name: c for c in recipe.splits()}

    def card(self) -> Card:
        """All of the corpus but its utterances."""
        return Card(
            name=self.name,
            lexicon=self.lexicon,
            silence=tuple(range(SILENCE_STATES)),
            tests=tuple(c.name for c in self.recipe.conditions),
            pronunciations=self.pronunciations,
            tree=self.senones.tree,
            lm_text=tuple(  # sentences that are in no split
                tuple(
                    self.words[w] for w in self.text.sentence(stream(self.recipe.seed, "text", i))
                )
                for i in range(self.recipe.lm_sentences)
            ),
        )

    def speaker(self, speech: str, rng: np.random.Generator) -> int:
        """One of the people of a split: every split has its own."""
        r = self.recipe
        people = range(r.speakers)
        if speech != "train":
            place = [c.name for c in r.splits()].index(speech) - 1
            begin = r.speakers + place * r.test_speakers
            people = range(begin, begin + r.test_speakers)
        return people[int(rng.integers(len(people)))]

    def aims(
        self, words: tuple[int, ...], hurry: float, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Articulatory aim of every frame of a sentence, and its targets.

        Returns:
            float64 [frames, articulation + 1] and int32 [frames].
        """
        r = self.recipe
        gaps = [r.pause_frames if rng.random() < r.pause else None for _ in words[1:]]
        visits = [self.draw_silence(r.silence_frames, rng)]
        for word, gap in zip(words, [*gaps, r.silence_frames], strict=True):
            visits.append(self.draw_word(self.words[word], hurry, rng))
            if gap:
                visits.append(self.draw_silence(gap, rng))
        targets, stays, shifts = (np.concatenate(column) for column in zip(*visits, strict=True))
        places = self.senones.places[targets] + shifts
        places += r.jitter * rng.normal(size=places.shape)
        return np.repeat(places, stays, axis=0), np.repeat(targets, stays).astype(np.int32)

    def draw_word(self, word: str, hurry: float, rng: np.random.Generator) -> Visits:
        """The states of a word, how long each is stayed in, and how this saying displaces it."""
        phones, targets = self.phones[word], np.array(self.lexicon[word])
        ways = rng.integers(self.recipe.variants, size=len(phones))
        shifts = np.repeat(self.language.variants[phones, ways], STATES_A_PHONE, axis=0)
        leave = min(1.0, hurry / self.recipe.mean_state_frames)
        return targets, rng.geometric(leave, size=len(targets)), shifts

    def draw_silence(self, frames: tuple[int, int], rng: np.random.Generator) -> Visits:
        """A silence of (least, most) frames, like ``draw_word``."""
        total = int(rng.integers(frames[0], frames[1] + 1))
        stays = np.array([total // 3, total - 2 * (total // 3), total // 3])
        still = np.zeros((SILENCE_STATES, self.recipe.articulation + 1))
        return np.arange(SILENCE_STATES), stays, still

    def draw(self, split: str, index: int) -> Drawn:
        """Utterance ``index`` of a split, a sentence, before it sounds."""
        condition = self.conditions[split]
        speech_of = condition.speech_of or split
        rng = stream(self.recipe.seed, f"continuous {speech_of}", index)
        words, speaker = self.text.sentence(rng), self.speaker(speech_of, rng)
        aims, targets = self.aims(words, condition.hurry, rng)
        return aims, targets, speaker, tuple(self.words[w] for w in words), rng

    def utterance(self, split: str, index: int) -> Spoken:
        """Utterance ``index`` of a split."""
        aims, targets, speaker, words, rng = self.draw(split, index)
        condition = self.conditions[split]
        voice = self.voice(speaker, condition.speaker)
        features = self.sound(voice, aims, condition.snr_db, rng, condition.channel)
        return features, targets, speaker, words


def make(
    name: str, recipe: Recipe, scale: str, *, cache: Path, progress: Callable[[str], None]
) -> Corpus:
    """The corpus of a recipe, from the cache or newly made."""
    maker = partial(Maker, recipe, name)
    return make_speech(maker, recipe, MAKERS, f"{name}-{scale}", cache, progress)


FORMAT = 2
"""Version of speech that is never stored; raised when a recipe no longer gives the same speech."""


def make_as_needed(
    name: str, recipe: Recipe, scale: str, *, cache: Path, progress: Callable[[str], None]
) -> Corpus:
    """As `make`, but training speech is made where it is needed; words and targets are made here.

    It is the speech that `make` stores, 1 to 2 ms of one core an utterance.
    """
    without = dataclasses.replace(recipe, train=0)
    stored = make(name, without, scale, cache=cache, progress=progress)
    maker = Maker(recipe, name)
    tell = progress_counter(progress, f"{name} corpus", recipe.train, "training utterances drawn")
    rows: list[tuple[np.ndarray, int, tuple[str, ...]]] = []
    for index in range(recipe.train):
        rows.append(maker.draw("train", index)[1:4])
        tell(index + 1)
    labels, speakers, words = zip(*rows, strict=True)
    table, targets = table_of("train", 0, labels, speakers, words), np.concatenate(labels)
    content = {
        "stored": stored.fingerprint,
        "targets": hashlib.sha256(targets.data).hexdigest(),
        "recipe": dataclasses.asdict(recipe),
        "format": FORMAT,
    }

    def sound(numbers: np.ndarray) -> np.ndarray:
        return np.concatenate([maker.utterance("train", i)[0] for i in numbers.tolist()])

    return dataclasses.replace(
        stored,
        targets=np.concatenate([stored.targets, targets]),
        utterances=join([stored.utterances, table.shifted(len(stored.features))]),
        speech=sound,
        stored_fingerprint=hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest(),
    )


KMEANS_ROUNDS = 20


@dataclass(frozen=True)
class Senones:
    """The tied states of an invented language.

    Attributes:
        tree: maps (left, phone, right, state) to a target; targets start after the silence's.
        places: float64 [targets, dims], articulatory aim of each, the silence's first.
    """

    tree: Tree
    places: np.ndarray


def families(places: np.ndarray, count: int) -> np.ndarray:
    """Groups of phones that are close, by k-means from spread-out starts: int64 [phones]."""
    centres = places[:1]
    while len(centres) < min(count, len(places)):
        gap = ((places[:, None] - centres) ** 2).sum(2).min(1)
        centres = np.concatenate([centres, places[gap.argmax()][None]])
    label = np.zeros(len(places), np.int64)
    for _ in range(KMEANS_ROUNDS):
        label = ((places[:, None] - centres) ** 2).sum(2).argmin(1)
        alive = [
            places[label == k].mean(0) if (label == k).any() else c for k, c in enumerate(centres)
        ]
        centres = np.stack(alive)
    return np.unique(label, return_inverse=True)[1]


def tie(recipe: invented_language.Recipe, places: np.ndarray, count: int, pull: float) -> Senones:
    """Makes the tree, and the places of its leaves.

    Args:
        recipe: seed and number of phones.
        places: float64 [3 + 3 * phones, dims], the untied places of ``invent_language``.
        count: families of neighbours; 0 leaves the states untied from context.
        pull: distance of a leaf from its untied place.
    """
    silence, states = places[:STATES_A_PHONE], places[STATES_A_PHONE:]
    states = states.reshape(recipe.phones, STATES_A_PHONE, -1)
    label = families(states.mean(axis=1), count) if count else np.zeros(0, np.int64)
    groups = [
        tuple(phone_name(int(p)) for p in np.flatnonzero(label == k))
        for k in range(label.max(initial=-1) + 1)
    ]
    rng = stream(recipe.seed, "senones")
    nodes: list[Node] = []
    roots: dict[str, tuple[int, ...]] = {}
    leaves = [*silence]

    def leaf(place: np.ndarray) -> int:
        leaves.append(place + pull * rng.normal(size=place.shape) if groups else place)
        return ~(len(leaves) - 1)

    def add_questions(side: str, place: np.ndarray) -> int:
        """A chain of questions, one a family; a neighbour in no family is silence."""
        if not groups:
            return leaf(place)
        start = len(nodes)
        answers = [leaf(place) for _ in groups]
        otherwise = leaf(place)
        for k, (group, yes) in enumerate(zip(groups, answers, strict=True)):
            no = otherwise if k + 1 == len(groups) else start + k + 1
            nodes.append((side, group, yes, no))
        return start

    for phone in range(recipe.phones):
        opening, middle, right = states[phone]
        roots[phone_name(phone)] = (
            add_questions("left", opening),
            leaf(middle),
            add_questions("right", right),
        )
    silence_roots = {SILENCE: tuple(~s for s in range(STATES_A_PHONE))}
    return Senones(Tree({**silence_roots, **roots}, tuple(nodes)), np.stack(leaves))
