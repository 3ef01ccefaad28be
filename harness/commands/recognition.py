"""Results of recognition runs: error rates with intervals, and the difference of two systems."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np
from safetensors.numpy import load_file  # pyright: ignore[reportUnknownVariableType]

from data_synth.corpus import Corpus
from harness.base.seeds import stream
from harness.judge import Interval, bootstrap_rate_ci, rate_ci, rate_difference_ci
from harness.judge.paired import matched_pairs
from harness.speech.recognise import ERRORS
from harness.store import Run

__all__ = ["compute_figures", "text"]

UNITS = ("words", "characters", "phones")
KINDS = ("substitutions", "insertions", "deletions")


def compute_figures(
    labels: Sequence[str],
    corpora: Sequence[Corpus],
    runs: Sequence[Sequence[Run]],
    seeds: Sequence[int],
) -> dict[str, Any]:
    """All figures as plain JSON values.

    Args:
        labels: name of each system.
        corpora: corpus of each system.
        runs: runs of each system, one for each seed.
        seeds: seeds in the order of the runs.
    """
    systems = [
        {
            "system": label,
            "corpus": _corpus(corpus),
            "seeds": list(seeds),
            "runs": [run.hash for run in row],
            "tuned": [_decoding_settings(run) for run in row],
            "tests": {test: _test(corpus, test, row) for test in corpus.tests},
        }
        for label, corpus, row in zip(labels, corpora, runs, strict=True)
    ]
    found: dict[str, Any] = {"schema": 1, "systems": systems}
    if len(systems) == 2:
        tests = [t for t in corpora[0].tests if _same(corpora, t)]
        found["difference"] = {t: _difference(t, runs) for t in tests}
    return found


def _corpus(corpus: Corpus) -> dict[str, Any]:
    minutes = {
        split: corpus.frames_of(split) * corpus.frame_shift_s / 60.0
        for split in ("train", "dev", *corpus.tests)
    }
    return {
        "name": corpus.name,
        "fingerprint": corpus.fingerprint,
        "minutes": minutes,
        "targets": corpus.n_targets,
        "text_sentences": len(corpus.lm_text),
        "words_are": _words_are(corpus),
    }


def _words_are(corpus: Corpus) -> str:
    """``"characters"`` if every word is one; ``"single words"`` if utterances have one word."""
    said = corpus.utterances.words
    if not corpus.lm_text and all(len(words) == 1 for words in said):
        return "single words"
    return "characters" if all(len(w) == 1 for words in said for w in words) else "words"


def _decoding_settings(run: Run) -> dict[str, Any]:
    names = ("dev_word_error", "dev_frame_error", "passes")
    for setting in ("scale", "insertion"):
        names += (setting, *(f"{setting}_{what}" for what in ("low", "high", "decided")))
    return {name: run.summary[name] for name in names if name in run.summary}


def _test(corpus: Corpus, test: str, runs: Sequence[Run]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "utterances": len(corpus.split(test)),
        "frame_error": [run.summary[f"{test}_frame_error"] for run in runs],
        "chance": _chance(corpus, test),
        "unknown_words": runs[0].summary[f"{test}_unknown_words"],
    }
    kept = load_file(runs[0].path(ERRORS))
    for unit in (unit for unit in UNITS if f"{test}/{unit}/edits" in kept):
        errors, lengths = _errors(test, unit, runs)
        # One seed gives a bootstrap over utterances; only several tell the variation of seeds.
        each = [bootstrap_rate_ci(own, lengths, _stream(test)) for own in errors]
        pooled = rate_ci(errors, lengths) if len(runs) > 1 else each[0]
        kinds = np.array([_edits(test, unit, run).sum(0) for run in runs])
        counts = [dict(zip(KINDS, own, strict=True)) for own in kinds.tolist()]
        found[unit] = {
            **_interval(pooled),
            "of_seeds": [{**_interval(one), **own} for one, own in zip(each, counts, strict=True)],
            "length": int(lengths.sum()),
            **dict(zip(KINDS, kinds.mean(axis=0).tolist(), strict=True)),
        }
    return found


def _chance(corpus: Corpus, test: str) -> float:
    """Frame error of always answering the most frequent training target."""
    train, part = corpus.split("train"), corpus.split(test)
    own, tested = (corpus.targets[u.start[0] : u.start[0] + u.total_frames] for u in (train, part))
    return float((tested != np.bincount(own).argmax()).mean())


def _edits(test: str, unit: str, run: Run) -> np.ndarray:
    return load_file(run.path(ERRORS))[f"{test}/{unit}/edits"]


def _errors(test: str, unit: str, runs: Sequence[Run]) -> tuple[np.ndarray, np.ndarray]:
    """Errors ``[S, U]`` and lengths ``[U]`` of S seeds and U utterances."""
    errors = np.stack([_edits(test, unit, run).sum(axis=1) for run in runs])
    return errors, load_file(runs[0].path(ERRORS))[f"{test}/{unit}/lengths"]


def _stream(test: str) -> np.random.Generator:
    return stream(0, f"recognise {test}")


def _interval(value: Interval) -> dict[str, Any]:
    """A rate with its 95% interval, cut at 0, below which it can reach with few errors."""
    return {"rate": value.estimate, "ci95": [max(0.0, value.low), value.high]}


def _same(corpora: Sequence[Corpus], test: str) -> bool:
    """Whether both corpora have the same transcripts in a test set, so that utterances pair."""
    first, second = corpora
    return test in second.tests and first.split(test).words == second.split(test).words


def _difference(test: str, runs: Sequence[Sequence[Run]]) -> dict[str, Any]:
    """Word error rate of the first system minus that of the second, paired by utterance."""
    (a, lengths), (b, _) = (_errors(test, "words", row) for row in runs)
    paired = matched_pairs(a.mean(axis=0), b.mean(axis=0), lengths, _stream(test))
    both = rate_difference_ci(a, b, lengths) if len(a) > 1 else paired.difference
    return {"difference": both.estimate, "ci95": list(both.ci95), "p_value": paired.p_value}


def text(found: dict[str, Any]) -> str:
    """The figures as a page of Markdown."""
    said = dict.fromkeys(_format_corpus(system["corpus"]) for system in found["systems"])
    lines = [*said, ""]
    heads = (
        "system", "set", "frames wrong", "chance", "unknown", _unit(found), "characters wrong",
        "phones wrong", "seeds",
    )  # fmt: skip
    rows = [heads, ("---",) * len(heads)]
    for system in found["systems"]:
        for test, own in system["tests"].items():
            rows.append(_row(system["system"], test, own))
    if _unit(found) != "words wrong":
        rows = [row[:6] + row[7:] for row in rows]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    lines += ["", *(line for system in found["systems"] for line in _count_lines(system)), ""]
    lines += [_tuning(system) for system in found["systems"]]
    for test, own in found.get("difference", {}).items():
        first, second = (system["system"] for system in found["systems"])
        low, high = own["ci95"]
        lines.append(
            f"{test}: {first} less {second}: {100 * own['difference']:+.2f} points "
            f"[{100 * low:+.2f}, {100 * high:+.2f}], matched pairs p = {own['p_value']:.2g}"
        )
    return "\n".join(lines)


def _format_corpus(corpus: dict[str, Any]) -> str:
    speech = ", ".join(f"{split} {m:.1f} min" for split, m in corpus["minutes"].items())
    text = corpus["text_sentences"]
    model = f"language model's text: {text} sentences" if text else "no language model"
    return f"{corpus['name']}: {speech}; {corpus['targets']} targets; {model}."


def _unit(found: dict[str, Any]) -> str:
    kind = found["systems"][0]["corpus"]["words_are"]
    return {"single words": "utterances wrong"}.get(kind, f"{kind} wrong")


def _row(system: str, test: str, own: dict[str, Any]) -> tuple[str, ...]:
    seeds = " ".join(f"{100 * one['rate']:.1f}" for one in own["words"]["of_seeds"])
    frames = fmean(own["frame_error"])
    return (
        system,
        f"{test} ({own['words']['length']})",
        f"{frames:.1%}",
        f"{own['chance']:.1%}",
        f"{own['unknown_words']:.1%}",
        _rate(own["words"]),
        _rate(own["characters"]),
        _rate(own["phones"]) if "phones" in own else "–",
        seeds,
    )


def _rate(own: dict[str, Any]) -> str:
    low, high = own["ci95"]
    bounds = f" [{100 * low:.1f}, {100 * high:.1f}]" if np.isfinite([low, high]).all() else ""
    return f"{100 * own['rate']:.1f}%{bounds}"


def _count_lines(system: dict[str, Any]) -> list[str]:
    """Word errors of each test set and seed as counts, in the notation of Kaldi and sclite."""
    lines: list[str] = []
    for test, own in system["tests"].items():
        length = own["words"]["length"]
        for seed, one in zip(system["seeds"], own["words"]["of_seeds"], strict=True):
            substituted, inserted, deleted = (round(one[kind]) for kind in KINDS)
            counted = f"{inserted} ins, {deleted} del, {substituted} sub"
            errors = f"{substituted + inserted + deleted} / {length}, {counted}"
            rate = f"%WER {100 * one['rate']:.2f} [ {errors} ]"
            lines.append(f"{system['system']}, {test}, seed {seed}: {rate}")
    return lines


def _tuning(system: dict[str, Any]) -> str:
    tuned = system["tuned"]
    if "scale" not in tuned[0]:
        return f"{system['system']}: nothing to tune."
    scales = ", ".join(f"{t['scale']:g}/{t['insertion']:g}" for t in tuned)
    rates = ", ".join(f"{t['dev_word_error']:.1%}" for t in tuned)
    told = f"{system['system']}: acoustic scale/insertion penalty {scales}, chosen on dev ({rates})"
    return ". ".join([told, *_format_undecided(system)]) + "."


def _format_undecided(system: dict[str, Any]) -> list[str]:
    """Sentences about decoding settings that the development data left undecided, by seed."""
    return [
        f"Dev cannot decide the {what} of seed {seed}: "
        f"{tuned[f'{name}_low']:g} to {tuned[f'{name}_high']:g} do as well"
        for what, name in (("scale", "scale"), ("penalty", "insertion"))
        for seed, tuned in zip(system["seeds"], system["tuned"], strict=True)
        if not tuned[f"{name}_decided"]
    ]
