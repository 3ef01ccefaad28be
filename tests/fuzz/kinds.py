"""What can be read from outside: for each kind a good file, and who reads it."""

import gzip
import io
import json
import shutil
import tarfile
import wave
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import kaldiio
import numpy as np
import pytest
import soundfile
import torch

from data_synth.public import fetching
from data_synth.public.kaldi_files import matrices, read_lexicon, read_table
from data_synth.public.kaldi_targets import read_times, spread
from data_synth.recorded import read_flac, read_wav
from data_synth.storage import load as load_corpus
from data_synth.storage import save as save_corpus
from data_synth.targets import monophones
from harness.acoustics.language_model import read_arpa
from harness.experiment import loop, run_file
from harness.judge.results import read_results
from harness.processes.transport import (
    LAYOUT,
    Header,
    Kind,
    MalformedMessage,
    fill,
    frames_of,
    read_frames,
)
from harness.simulator.cluster import load_cluster
from harness.simulator.timeline import Contributions, Folds, Timeline
from harness.simulator.timeline_file import load_timeline, save_timeline
from harness.speech import task
from harness.store import Store
from harness.store.archive import read_archive, write_archive
from harness.store.files import columns_of, read_columns, write_columns
from harness.store.read import read_run, verify_run
from tests.data_synth.small import small_corpus

ROOT = Path(__file__).parents[2]
WORDS = (
    b"\0", b"\n", b"\\data\\", b"\\end\\", b"ngram 1=1", b"../", b"/etc/passwd", b"|", b"touch x |",
    b"nan", b"inf", b"-1", b"0", b"9" * 400, b"1e999", b"[", b"]" * 3, b"{", b"}", b'"', b"'''",
    b"PKL", b"NPY", b"\0BFM ", b"\0BCM ", b"\4\xff\xff\xff\x7f", b"\xff" * 8, b"\x7f\xff\xff\xff",
    b"[" * 5000, b"is = ", b"\xef\xbb\xbf", b"RIFF", b"AUDIO", b"null", b"true", b"a" * 70_000,
)  # fmt: skip
"""What a mutation may put somewhere."""


@dataclass(frozen=True)
class Input:
    """A kind of input.

    Args:
        name: for whoever counts.
        good: what is right, in a folder of its own.
        read: reads it, from the folder.
        file: the name of the file that is changed.
        around: what else lies in the folder.
    """

    name: str
    good: Callable[[Path], bytes]
    read: Callable[[Path], object]
    file: str
    around: Callable[[Path], None] = lambda folder: None


def text(content: str) -> Callable[[Path], bytes]:
    return lambda folder: content.encode()


ARPA = """\\data\\
ngram 1=4
ngram 2=2

\\1-grams:
-99 <s> -0.3
-0.5 </s>
-0.4 yes -0.2
-0.6 no -0.1

\\2-grams:
-0.2 <s> yes
-0.3 yes </s>

\\end\\
"""
LEXICON = "yes Y EH S\nno N OW\nno(2) N AH\nSIL SIL\n"
RUN = """
task = { is = "frames", corpus = "smoke", hidden = [8] }
cluster = "cluster.toml"
workers = 2
stages = [{ minibatch = 8, timed_minibatch = 32, share = 0.1 }]
algorithm = { is = "AsyncSgd" }
schedule = { is = "Constant", rate = 0.01 }
"""
PHONES = "u1 1 0.0 0.05 SIL\nu1 1 0.05 0.1 Y\n"


def made(write: Callable[[Path], object]) -> Callable[[Path], bytes]:
    """The bytes that something writes to a path."""

    def good(folder: Path) -> bytes:
        path = folder / "made"
        write(path)
        content = path.read_bytes()
        path.unlink()
        return content

    return good


def _wav(path: Path) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(np.arange(200, dtype="<i2").tobytes())


def _flac(path: Path) -> None:
    soundfile.write(str(path), np.arange(200, dtype=np.int16), 8000, format="FLAC")


def _ark(path: Path) -> None:
    kaldiio.save_ark(str(path), {"u1": np.ones((3, 2), np.float32)})


def _scp(folder: Path) -> bytes:
    kaldiio.save_ark(str(folder / "feats.ark"), {"u1": np.ones((3, 2), np.float32)})
    return b"u1 feats.ark:3\n"


def _matrices(folder: Path) -> None:
    for read in matrices(folder).values():
        read()


def _timeline(path: Path) -> None:
    ones = np.arange(3)
    folds = Folds(ones, ones + 0.5)
    rows = Contributions(ones, ones * 0, ones, ones * 0.5, ones, ones * 0 + 1)
    save_timeline(Timeline(folds, rows), path)


def _metrics(path: Path) -> None:
    row = {"name": "error", "value": 0.5, "fold": 3, "time_s": 1.0, "epoch": 0.1}
    write_columns(path, columns_of([row, row]))


def _checkpoint(folder: Path) -> bytes:
    loop.save(folder, {"model": np.arange(6.0), "n": np.array(3)}, {"version": 3})
    return (folder / loop.NAME).read_bytes()


def _corpus(folder: Path, name: str) -> bytes:
    place = folder / "corpus"
    if not place.exists():
        save_corpus(small_corpus(), place)
    return (place / name).read_bytes()


@cache
def _archive() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name, content in (("top/inside/a.wav", b"one"), ("top/inside/b/c.wav", b"two")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return file.getvalue()


def _unpacked(folder: Path) -> None:
    source = fetching.Source("c", "no url", "inside", "0" * 64, ".wav")
    place = folder / "unpacked"
    place.mkdir(exist_ok=True)
    with (folder / "a.tar.gz").open("rb") as archive:
        fetching.unpack(archive, source, place)


def _messages(folder: Path) -> bytes:
    return b"".join(frames_of(Header(Kind.DONE, 7), torch.zeros(6)))


def _received(folder: Path) -> None:
    content = (folder / "words").read_bytes()
    with suppress(MalformedMessage):
        header, body = read_frames([content[: LAYOUT.size], content[LAYOUT.size :]])
        fill(torch.zeros(6), header, body)


def _results(folder: Path) -> bytes:
    published = sorted((ROOT / "reports" / "published").rglob("results.json"))[0]
    found = json.loads(published.read_text())
    for key in ("exhibits", "claims"):
        found[key] = found[key][:1]
    return json.dumps(found).encode()


def _run_of(folder: Path, name: str) -> bytes:
    store = Store(folder / "store")
    if not list((folder / "store").glob("*/run.json")):
        with store.begin({"kind": "none", "seed": 1}) as writer:
            writer.log("error", 0.5, fold=1, time_s=1.0, epoch=0.1)
            writer.finish(summary={"error": 0.5})
    (found,) = (folder / "store").glob(f"*/{name}")
    return found.read_bytes()


def _archive_of_runs(folder: Path) -> bytes:
    _run_of(folder, "run.json")
    write_archive(folder / "written.tar.xz", Store(folder / "store").runs())
    return (folder / "written.tar.xz").read_bytes()


def _read_archive(folder: Path) -> None:
    shutil.rmtree(folder / "here", ignore_errors=True)
    read_archive(folder / "runs.tar.xz", Store(folder / "here"))


def _read_run(folder: Path) -> None:
    (place,) = [path for path in (folder / "store").iterdir() if path.is_dir()]
    verify_run(read_run(place)).lines()


def _cluster(folder: Path) -> bytes:
    return (ROOT / "reproductions" / "clusters" / "k20m-server.toml").read_bytes()


def _load_run(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "load_corpus", lambda name, **told: small_corpus())
        run_file.load_run(folder / "run.toml")


def _beside_run(folder: Path) -> None:
    (folder / "cluster.toml").write_bytes(_cluster(folder))


def _of_times(folder: Path) -> None:
    for times in read_times(folder).values():
        spread(times, 20, monophones({"yes": ("Y",)}, 1))


def _loaded(folder: Path) -> None:
    load_corpus(folder / "corpus")


INPUTS: Sequence[Input] = (
    Input("cluster", _cluster, lambda f: load_cluster(f / "c.toml"), "c.toml"),
    Input("run file", text(RUN), _load_run, "run.toml", _beside_run),
    Input("ARPA", text(ARPA), lambda f: read_arpa(f / "lm.arpa"), "lm.arpa"),
    Input(
        "ARPA, compressed", lambda f: gzip.compress(ARPA.encode()),
        lambda f: read_arpa(f / "lm.arpa.gz"), "lm.arpa.gz",
    ),
    Input("lexicon", text(LEXICON), lambda f: read_lexicon(f / "lexicon.txt"), "lexicon.txt"),
    Input(
        "lexiconp", text("yes 1.0 Y\n"),
        lambda f: read_lexicon(f / "lexiconp.txt"), "lexiconp.txt",
    ),
    Input("Kaldi text", text("u1 yes no\nu2 no\n"), lambda f: read_table(f / "text"), "text"),
    Input("phone times", text(PHONES), _of_times, "phones.ctm"),
    Input("scp", _scp, _matrices, "feats.scp"),
    Input("ark", made(_ark), _matrices, "feats.ark", lambda f: _around_ark(f)),
    Input("segments", text("u1 r1 0.0 0.02\n"), _matrices, "segments", lambda f: _around_wav(f)),
    Input("wav", made(_wav), lambda f: read_wav(f / "a.wav", 8000), "a.wav"),
    Input("flac", made(_flac), lambda f: read_flac(f / "a.flac", 8000), "a.flac"),
    Input("results.json", _results, lambda f: read_results(f / "results.json"), "results.json"),
    Input("timeline", made(_timeline), lambda f: load_timeline(f / "t.parquet"), "t.parquet"),
    Input("metrics", made(_metrics), lambda f: read_columns(f / "m.parquet"), "m.parquet"),
    Input("checkpoint", _checkpoint, loop.load, loop.NAME),
    Input("run.json", lambda f: _run_of(f, "run.json"), _read_run, "store/*/run.json"),
    Input("config.json", lambda f: _run_of(f, "config.json"), _read_run, "store/*/config.json"),
    Input("archive of runs", _archive_of_runs, _read_archive, "runs.tar.xz"),
    Input("corpus.json", lambda f: _corpus(f, "corpus.json"), _loaded, "corpus/corpus.json"),
    Input("features", lambda f: _corpus(f, "features.npy"), _loaded, "corpus/features.npy"),
    Input(
        "utterances", lambda f: _corpus(f, "utterances.parquet"),
        _loaded, "corpus/utterances.parquet",
    ),
    Input("messages", _messages, _received, "words"),
    Input("corpus archive", lambda f: _archive(), _unpacked, "a.tar.gz"),
    Input(
        "corpus archive, inside", lambda f: gzip.decompress(_archive()), _unpacked, "a.tar.gz"
    ),
)  # fmt: skip


def _around_ark(folder: Path) -> None:
    (folder / "feats.scp").write_text("u1 feats.ark:3\n")


def _around_wav(folder: Path) -> None:
    _wav(folder / "r.wav")
    (folder / "wav.scp").write_text("r1 r.wav\n")
