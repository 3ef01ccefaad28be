"""Downloading published recordings, kept only if their bytes are the expected ones."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tarfile
import tempfile
import urllib.request
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from data_synth.storage import new_folder
from harness.base.errors import UserError


@dataclass(frozen=True)
class Source:
    """Published archive of a corpus.

    Attributes:
        name: of the corpus.
        url: a tar.gz archive.
        inside: name of the folder in the archive that is kept.
        sha256: of the manifest of the kept files.
        suffix: end of the names of the files that are kept.
    """

    name: str
    url: str
    inside: str
    sha256: str
    suffix: str = ""


def manifest_sha256(folder: Path, suffix: str = "") -> str:
    """SHA-256 over the lines ``<sha256>  <path>`` of all files, sorted by path."""
    digest = hashlib.sha256()
    paths = {p.relative_to(folder).as_posix(): p for p in folder.rglob(f"*{suffix}") if p.is_file()}
    for name in sorted(paths):
        digest.update(f"{hashlib.sha256(paths[name].read_bytes()).hexdigest()}  {name}\n".encode())
    return digest.hexdigest()


def find(name: str, inside: str, cache: Path) -> Path:
    """LAGBENCH_CORPORA's folder of a corpus if it has one, else the cache's own.

    Args:
        name: of the corpus, for the message.
        inside: the folder, e.g. ``"aishell_sample/data_aishell"``.
        cache: see ``data_synth.storage.cache_folder``.

    Raises:
        UserError: neither is there; says how to get it.
    """
    places = [cache / inside]
    if corpora := os.environ.get("LAGBENCH_CORPORA"):
        places.insert(0, Path(corpora) / inside)
    folder = next((place for place in places if place.is_dir()), None)
    if folder is None:
        looked = " or ".join(map(str, places))
        raise UserError(f"corpus {name}: no recordings in {looked}; {how_to_get(name, inside)}")
    return folder


def how_to_get(name: str, inside: str) -> str:
    """Words on how to get a corpus."""
    folder = f"set LAGBENCH_CORPORA to the folder that has {inside}"
    return f"{folder}, or run: lagbench corpus fetch {name}"


def fetch(source: Source, folder: Path, progress: Callable[[str], None]) -> Path:
    """Downloads a corpus into a folder, checked; nothing is kept if it differs.

    Raises:
        UserError: no network, not an archive, or another SHA-256 than expected.
    """
    if folder.is_dir():
        progress(f"{source.name}: already in {folder}")
        return folder
    progress(f"{source.name}: downloading {source.url}")
    new_folder(folder, lambda empty: _download(source, empty))
    count = sum(path.is_file() for path in folder.rglob("*"))
    progress(f"{source.name}: {count} files in {folder}")
    return folder


def _download(source: Source, folder: Path) -> None:
    try:
        with tempfile.TemporaryFile() as archive:
            with urllib.request.urlopen(source.url, timeout=60) as answer:
                shutil.copyfileobj(answer, archive)
            unpack(archive, source, folder)
    except OSError as error:
        raise UserError(
            f"corpus {source.name}: {source.url} could not be fetched ({error})"
        ) from None
    digest = manifest_sha256(folder, source.suffix)
    if digest != source.sha256:
        raise UserError(
            f"corpus {source.name}: {source.url}: the files' SHA-256 is {digest}, "
            f"expected {source.sha256}"
        )


def unpack(archive: IO[bytes], source: Source, folder: Path) -> None:
    """Keep the regular files below ``source.inside``, and nothing outside the folder.

    Links and devices are left out, as are names that lead up.

    Raises:
        UserError: it is no whole archive.
    """
    archive.seek(0)
    try:
        with tarfile.open(fileobj=gzip.GzipFile(fileobj=archive), mode="r|") as tar:
            for member in tar:
                place = _place(member, source, folder)
                data = tar.extractfile(member) if place else None
                if place is not None and data is not None:
                    place.parent.mkdir(parents=True, exist_ok=True)
                    with place.open("wb") as file:
                        shutil.copyfileobj(data, file)
    except (OSError, EOFError, tarfile.TarError, ValueError, zlib.error) as error:
        reason = f"not a whole archive: {(str(error) or repr(error)).splitlines()[0]}"
        raise UserError(
            f"corpus {source.name}: {source.url} could not be fetched ({reason})"
        ) from None


def _place(member: tarfile.TarInfo, source: Source, folder: Path) -> Path | None:
    """Destination of an archive member; None if it is left out."""
    parts = PurePosixPath(member.name).parts
    fits = source.inside in parts and ".." not in parts and member.isreg()
    if not fits or not member.name.endswith(source.suffix):
        return None
    below = parts[parts.index(source.inside) + 1 :]
    return folder.joinpath(*below) if below else None
