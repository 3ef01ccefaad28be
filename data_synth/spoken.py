"""Text to speech as a corpus: Mandarin, English and Icelandic by espeak-ng, phones timed.

A speaker is a voice with a pitch and a speed. Sentences follow an invented bigram over a
short list of real words. The test set ``noise`` says what ``clean`` says, in a simulated
room with noise. Every phone has three states that share its time equally. Needs the extra
``spoken``; utterance i of a split depends on seed, split and i alone.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from data_synth.corpus import Corpus
from data_synth.features import utterance_features
from data_synth.invented_language import Bigram, Manner, invent_bigram
from data_synth.recorded import Recording, table_of, with_noise
from data_synth.storage import load_or_make, recipe_key, write
from data_synth.targets import silence_of
from data_synth.tree import SILENCE, expand_lexicon, monophone_tree
from data_synth.voices import Speaker, Synthesis
from harness.base.errors import UserError
from harness.base.seeds import stream

RATE_HZ = 16_000
STATES = 3
SHIFT, HALF_WINDOW = 160, 200  # samples from frame to frame, and to a frame's middle
TRIES = 20
MAKERS = (
    "spoken.py",
    "voices.py",
    "invented_language.py",
    "features.py",
    "recorded.py",
    "corpus.py",
    "storage.py",
)
LANGUAGES = {
    "spoken-english": (
        "en-us",
        "water garden seven morning paper window yellow table river music doctor winter "
        "butter silver market summer kitchen letter number paint stone green house field "
        "bread cloud train dream light voice fish bird road hill moon glass chair shoes",
    ),
    "spoken-mandarin": (
        "cmn",
        "天 地 人 你 我 他 好 大 小 中 国 上 下 来 去 水 火 山 木 日 月 年 时 分 学 生 老 师 书 车 "
        "门 花 家 电 话 北 京 东 西 南 吃 饭 看 听",
    ),
    "spoken-icelandic": (
        "is",
        "hestur kona maður barn vatn fjall jökull bók dagur nótt veður sumar vetur hús "
        "skip fiskur fugl sól tungl stjarna vegur borg skóli kennari brauð mjólk kaffi "
        "gluggi hurð stóll borð land eyja bær foss dalur",
    ),
}


@dataclass(frozen=True)
class Recipe:
    """Parameters of a spoken corpus.

    Attributes:
        seed: of everything random.
        train, dev, test: utterances of each split.
        speakers, test_speakers: people in train, and in dev and test each.
        pitch, speed: (least, most) of a speaker, in espeak-ng's units.
        noise_snr_db, echo_s: (least, most) in the test set noise; the echo's time to −60 dB.
        manner: parameters of the word bigram.
    """

    seed: int = 0
    train: int = 300
    dev: int = 40
    test: int = 60
    speakers: int = 40
    test_speakers: int = 10
    pitch: tuple[int, int] = (25, 75)
    speed: tuple[int, int] = (130, 210)
    noise_snr_db: tuple[float, float] = (5.0, 15.0)
    echo_s: tuple[float, float] = (0.1, 0.4)
    manner: Manner = dataclasses.field(default_factory=lambda: Manner(sentence_words=(3, 7)))


PRESETS = {
    "smoke": Recipe(),
    "laptop": Recipe(train=2000, dev=200, test=300, speakers=200, test_speakers=40),
    "overnight": Recipe(train=10_000, dev=300, test=1000, speakers=500, test_speakers=80),
    "gpu": Recipe(train=20_000, dev=500, test=1000, speakers=1000, test_speakers=100),
    "paper": Recipe(train=200_000, dev=1000, test=2000, speakers=2000, test_speakers=200),
}


@dataclass(frozen=True)
class Utterance:
    """An utterance with the time of every phone.

    Attributes:
        words, phones: transcript, and the phones of each word as said.
        speaker: number of the speaker.
        signal: float64 [samples], 16-bit units, 16 kHz.
        spans: (first sample, phone or silence), in order.
    """

    words: tuple[str, ...]
    phones: tuple[tuple[str, ...], ...]
    speaker: int
    signal: np.ndarray
    spans: tuple[tuple[float, str], ...]


def plain(phone: str) -> str:
    """A phone without its stress; pauses are silence."""
    return SILENCE if phone.startswith("_") else phone.lstrip("',%=")


def build_utterance(said: Synthesis, words: tuple[str, ...], speaker: int) -> Utterance | None:
    """Spoken events by words; None if espeak-ng ran words together or swallowed one."""
    spoken: list[list[str]] = []
    spans: list[tuple[float, str]] = [(0.0, SILENCE)]
    for at, name in said.events:
        if not name:
            spoken.append([])
        elif plain(name):
            spans.append((at * RATE_HZ / said.rate_hz, plain(name)))
            if plain(name) != SILENCE and spoken:
                spoken[-1].append(plain(name))
    if len(spoken) != len(words) or not all(spoken):
        return None
    # A slow import, about a second, that other corpora do without.
    from scipy.signal import (  # pyright: ignore[reportMissingTypeStubs]
        resample_poly,  # pyright: ignore[reportUnknownVariableType]
    )

    common = np.gcd(RATE_HZ, said.rate_hz)
    up, down = RATE_HZ // common, said.rate_hz // common
    signal = cast(np.ndarray, resample_poly(said.samples.astype(float), up, down))
    return Utterance(words, tuple(map(tuple, spoken)), speaker, signal, tuple(spans))


def room(rng: np.random.Generator, echo_s: float) -> np.ndarray:
    """A room's impulse response: the direct sound and a tail of noise that dies away."""
    t = np.arange(int(echo_s * RATE_HZ)) / RATE_HZ
    tail = 0.05 * rng.normal(size=len(t)) * 10.0 ** (-3.0 * t / echo_s)
    tail[0] = 1.0
    return tail


def hiss(rng: np.random.Generator, samples: int) -> np.ndarray:
    """Noise with a power that falls with frequency, float64 [samples]."""
    bins = np.fft.rfft(rng.normal(size=samples))
    return np.fft.irfft(bins / np.sqrt(1.0 + np.arange(len(bins))), samples)


def frame_targets(
    spans: tuple[tuple[float, str], ...], frames: int, tree: Mapping[str, tuple[int, ...]]
) -> np.ndarray:
    """The target of every frame: its phone's third in which the frame's middle lies.

    Args:
        spans: (first sample, phone).
        frames: number of frames.
        tree: phone -> its targets.

    Returns:
        int32 [frames].
    """
    middle = np.arange(frames) * SHIFT + HALF_WINDOW
    edges = np.array([at for at, _ in spans] + [max(spans[-1][0] + 1, frames * SHIFT)])
    which = np.clip(np.searchsorted(edges, middle, side="right") - 1, 0, len(spans) - 1)
    length = np.maximum(edges[which + 1] - edges[which], 1e-9)
    third = np.clip((STATES * (middle - edges[which]) / length).astype(int), 0, STATES - 1)
    return np.array([tree[spans[w][1]][s] for w, s in zip(which, third, strict=True)], np.int32)


class Maker:
    """Says any utterance of a recipe."""

    def __init__(self, language: str, recipe: Recipe, voices: Speaker) -> None:
        self.voice, text = LANGUAGES[language]
        self.words = tuple(text.split())
        self.recipe, self.voices = recipe, voices
        self.text: Bigram = invent_bigram(recipe.seed, len(self.words), recipe.manner)

    def utterance(self, split: str, index: int) -> Utterance:
        """Utterance ``index`` of a split; redrawn where espeak-ng runs words together."""
        r = self.recipe
        first, count = {"train": (0, r.speakers), "dev": (r.speakers, r.test_speakers)}.get(
            split, (r.speakers + r.test_speakers, r.test_speakers)
        )
        for attempt in range(TRIES):
            rng = stream(r.seed, f"spoken {split}", index, attempt)
            speaker = first + int(rng.integers(count))
            words = tuple(self.words[w] for w in self.text.sentence(rng))
            who = stream(r.seed, "spoken speaker", speaker)
            body = ("m", "f")[int(who.integers(2))] + str(int(who.integers(1, 6)))
            pitch, speed = (int(who.integers(a, b + 1)) for a, b in (r.pitch, r.speed))
            said = self.voices.say(f"{self.voice}+{body}", " ".join(words), pitch, speed)
            found = build_utterance(said, words, speaker)
            if found is not None:
                return found
        raise RuntimeError(f"espeak-ng: {TRIES} sentences in a row without word boundaries")

    def add_room(self, clean: Utterance, index: int) -> Utterance:
        """The same utterance with echo and noise."""
        from scipy.signal import (  # pyright: ignore[reportMissingTypeStubs]
            fftconvolve,  # pyright: ignore[reportUnknownVariableType]
        )

        rng = stream(self.recipe.seed, "spoken room", index)
        (short, long), (least, most) = self.recipe.echo_s, self.recipe.noise_snr_db
        echo = room(rng, short + (long - short) * rng.random())
        sound = np.asarray(fftconvolve(clean.signal, echo))[: len(clean.signal)]
        level = least + (most - least) * rng.random()
        return dataclasses.replace(clean, signal=with_noise(sound, hiss(rng, len(sound)), level))


def build(language: str, recipe: Recipe, progress: Callable[[str], None]) -> Corpus:
    """Speaks a whole corpus."""
    made: list[tuple[str, int, Utterance]] = []
    with Speaker() as voices:
        maker = Maker(language, recipe, voices)
        for split, count in (("train", recipe.train), ("dev", recipe.dev), ("clean", recipe.test)):
            made += [(split, i, maker.utterance(split, i)) for i in range(count)]
            progress(f"{language}: {count} utterances said for {split}")
        clean = [(i, said) for split, i, said in made if split == "clean"]
        made += [("noise", i, maker.add_room(said, i)) for i, said in clean]
        text = tuple(said.words for split, _, said in made if split == "train")
    entries = _entries([said for _, _, said in made])
    phones = sorted({p for _, _, said in made for _, p in said.spans} - {SILENCE})
    tree = monophone_tree(dict.fromkeys((SILENCE, *phones), STATES))
    names = {phone: tuple(~at for at in roots) for phone, roots in tree.roots.items()}
    blocks = [utterance_features(said.signal, RATE_HZ, "plp") for _, _, said in made]
    pairs = list(zip(made, blocks, strict=True))
    return Corpus(
        name=language,
        features=np.concatenate(blocks),
        targets=np.concatenate([frame_targets(m[2].spans, len(b), names) for m, b in pairs]),
        utterances=table_of([_recording_of(*m) for m in made], list(map(len, blocks))),
        lexicon=expand_lexicon(entries, tree),
        silence=silence_of(tree),
        pronunciations=entries,
        tree=tree,
        lm_text=text,
    )


def _recording_of(split: str, index: int, said: Utterance) -> Recording:
    name = f"{split}-{index:06d}"
    return Recording(name, f"speaker-{said.speaker:04d}", split, said.words, Path(name))


def _entries(made: list[Utterance]) -> dict[str, tuple[str, ...]]:
    """Every way a word was said, the commonest first."""
    heard: dict[str, dict[tuple[str, ...], int]] = {}
    for said in made:
        for word, phones in zip(said.words, said.phones, strict=True):
            ways = heard.setdefault(word, {})
            ways[phones] = ways.get(phones, 0) + 1
    entries: dict[str, tuple[str, ...]] = {}
    for word in sorted(heard):
        for n, phones in enumerate(sorted(heard[word], key=lambda p: (-heard[word][p], p)), 1):
            entries[word if n == 1 else f"{word}({n})"] = phones
    return entries


def maker_of(language: str) -> Callable[..., Corpus]:
    """The function that makes a language's corpus, with the signature of ``CORPORA``."""

    def make(scale: str, *, seed: int, cache: Path, progress: Callable[[str], None]) -> Corpus:
        if importlib.util.find_spec("espeakng_loader") is None:
            raise UserError(f"corpus {language}: needs pip install 'lagbench[spoken]'")
        recipe = dataclasses.replace(PRESETS[scale], seed=seed)
        key = recipe_key({"language": language, **dataclasses.asdict(recipe)}, MAKERS)
        place = cache / "corpora" / f"{language}-{scale}-{key}"
        return load_or_make(place, lambda empty: write(build(language, recipe, progress), empty))

    return make
