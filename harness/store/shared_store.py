"""Finished runs gathered in an object store, by which machines without a common file system share.

Every machine runs the same grid on its own store. A run is locked locally and in the bucket while
it is executed, and sent to the bucket before the leases are released; a process that waited for it
takes the finished run.

A finished run is one object, ``runs/HASH.tar``: it is in the bucket completely or not at all. It is
created only if absent, and replaced only if damaged. Leases are objects ``leases/HASH/N``, see
`harness.store.lease`.

Object stores are S3 and compatible ones, Google's, Azure's, or a folder in their place. The only
requirement is the atomic creation of an object that does not exist.
"""

from __future__ import annotations

import io
import json
import os
import re
import secrets
import tarfile
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from pathlib import Path, PurePath
from threading import Thread, current_thread, main_thread
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import urlsplit
from urllib.request import url2pathname

from harness.base.errors import UserError
from harness.base.log import LOG
from harness.base.seeds import SHORT, identity
from harness.store import files as run_files
from harness.store import schema
from harness.store.lease import Lease, Place, Waiting, parse_numbers
from harness.store.lease import Leases as lease_Leases
from harness.store.read import Run, read_run
from harness.store.store import Store
from harness.store.write import RunWriter

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig


class BucketStore(Store):
    """A local store that gathers its finished runs in a bucket.

    Args:
        path: the local folder.
        bucket: the bucket.
    """

    def __init__(self, path: Path | str, bucket: Bucket) -> None:
        super().__init__(path)
        self.bucket = bucket

    def missing(self, hashes: Iterable[str]) -> set[str]:
        """Hashes of the runs that are finished in neither place; copies the others to both.

        Raises:
            OSError: the object store cannot be reached, or refuses access.
        """
        wanted, there, old = list(hashes), self.bucket.hashes(), 0
        for name in wanted:
            if not self.has(name):
                self.pull(name) if name in there else None
            elif name not in there:
                old += not self._send_run(self.path / name)
        if old:
            told = "1 run was" if old == 1 else f"{old} runs were"
            self._say(f"{self.path}: {told} made before version 0.2.0, without digests; not sent")
        return super().missing(wanted)

    def elsewhere(self, hash_: str) -> bool:
        """Whether another process executes this run now, on this machine or another."""
        return super().elsewhere(hash_) or Lease(self.bucket.leases(hash_)).is_held_by_other()

    def pull(self, hash_: str) -> bool:
        """Copy a run of the bucket to the local store; False, with a warning, if it is damaged."""
        folder = run_files.writable_folder(self.path / hash_, "store")
        (lease := Lease(folder)).acquire(Waiting(f"run {hash_[:SHORT]}"))
        try:
            return self.has(hash_) or self._fetch_run(folder)
        finally:
            lease.release()

    def _places(self, folder: Path) -> list[Path | Place]:
        return [folder, self.bucket.leases(folder.name)]

    def _open_run(
        self, folder: Path, config: Mapping[str, object], lease: lease_Leases
    ) -> RunWriter:
        # Under both leases: no other process can finish the run between this look and the start.
        if not self.has(folder.name) and self.bucket.has(folder.name):
            self._fetch_run(folder)
        return super()._open_run(folder, config, lease)

    def _fetch_run(self, folder: Path) -> bool:
        """Write the files of a run into its folder, the record last; the lease must be held."""
        try:
            files = self.bucket.pull(folder.name)
        except DamagedError as error:
            self._say(f"{self.bucket.url}: {error}; it stays until a whole one is sent")
            return False
        here = folder / schema.RUN
        if self.needing().has(folder.name) and here.read_bytes() != files[schema.RUN]:
            return False  # a light run with other results is here: it stays
        for name in schema.LARGE.difference(files):  # leftovers, which the record does not cover
            (folder / name).unlink(missing_ok=True)
        for name, data in files.items():
            run_files.write_bytes(folder / name, data)
        return True

    def _on_finished(self, folder: Path) -> None:
        """Send the run; if that fails, `missing` sends it when it is next requested."""
        try:
            self._send_run(folder)
        except OSError as error:
            self._say(f"{error}; run {folder.name[:SHORT]} is kept here, the same command sends it")

    def _send_run(self, folder: Path) -> bool:
        """Send a finished run if it is a result (`KEPT`); False if it has no digests."""
        run = read_run(folder)
        if run.status not in KEPT:
            return True
        if run.digests and self.bucket.push(run) == "different":
            told = f"run {run.hash[:SHORT]} is there with other results, and stays so"
            self._say(f"{self.bucket.url}: {told}")
        return bool(run.digests)

    def _say(self, line: str) -> None:
        LOG.warning(line)


class DamagedError(UserError):
    """The files of a run are not as they were written, or belong to another run."""


RUNS = "runs/"

RUN = re.compile(RUNS + r"([0-9a-f]{64})\.tar")
"""Path of a run's object. Other objects are ignored, and no local path is made of their names."""

Sent = Literal["pushed", "replaced", "there", "there, light", "different", "damaged there"]


class Bucket:
    """Finished runs below a URL; every method raises OSError if it cannot be reached.

    Args:
        url: see `Objects`.

    Raises:
        UserError: see `Objects`.
    """

    def __init__(self, url: str) -> None:
        self.url, self.objects = url, Objects(url)
        self._archives = Objects(url, archives=True)

    def hashes(self) -> set[str]:
        """Hashes of the runs in the bucket."""
        found = (RUN.fullmatch(path) for path in self.objects.list_paths(RUNS))
        return {each[1] for each in found if each}

    def has(self, hash_: str) -> bool:
        """Whether a run is in the bucket."""
        return self.objects.has(_path(hash_))

    def push(self, run: Run, light: bool = False) -> Sent:
        """Send a finished run, unless the bucket has it; a complete one there is never replaced.

        Args:
            run: finished run.
            light: leave its large files out.

        Returns:
            ``"pushed"``; ``"replaced"`` if the bucket's copy was damaged; else the result of
            `compare`, and the bucket's copy stays, also if its results differ or it is light.

        Raises:
            UserError: the run is not done or diverged, or is damaged.
        """
        path, data = _path(run.hash), pack_run(run, light)
        if self._archives.create(path, data):
            return "pushed"
        if (found := self.compare(run)) != "damaged there":
            return found
        self._archives.replace(path, data)  # if two processes do so at once: either is complete
        return "replaced"

    def compare(self, run: Run) -> Sent:
        """Compare the bucket's copy of a finished run: same results, others, light or damaged."""
        try:
            there = self.pull(run.hash)
        except DamagedError:
            return "damaged there"
        del there[schema.PROVENANCE]  # time and machine may differ
        both = there.keys() - run.without(there)
        same = all((run.dir / name).read_bytes() == there[name] for name in both)
        if not same:
            return "different"
        lacks = schema.LARGE.intersection(run.digests).difference(there, run.without(schema.LARGE))
        return "there, light" if lacks else "there"

    def pull(self, hash_: str) -> dict[str, bytes]:
        """Read the files of a run by name, its record last.

        Raises:
            FileNotFoundError: the bucket does not have it.
            DamagedError: its copy is damaged.
        """
        return unpack_run(self._archives.read(_path(hash_)), hash_)

    def leases(self, hash_: str) -> Leases:
        """The place for leases on a run."""
        return Leases(self.objects, f"leases/{hash_}/")


@dataclass(frozen=True)
class Leases:
    """Leases as objects ``leases/HASH/N``; see `harness.store.lease.Place`.

    If the answer to a request is lost, the library sends it again, and the second one finds the
    object of the first. Every object therefore contains a token of the instance that created it.
    """

    objects: Objects
    prefix: str
    poll_s: float = 2.0
    _maker: str = field(default_factory=secrets.token_hex)

    def numbers(self) -> list[int]:
        """See `Place`."""
        return parse_numbers(self.objects.list_paths(self.prefix), self.prefix)

    def read(self, number: int) -> str:
        """See `Place`."""
        return (
            self.objects.read(self._object_path(number)).decode(errors="replace").partition("\n")[0]
        )

    def make(self, number: int, text: str) -> bool:
        """See `Place`."""
        if self.objects.create(self._object_path(number), made := self._sign(text)):
            return True
        with suppress(FileNotFoundError):
            return self.objects.read(self._object_path(number)) == made
        return False

    def write(self, number: int, text: str) -> None:
        """See `Place`; may recreate a removed object, which is harmless: a higher number holds."""
        self.objects.replace(self._object_path(number), self._sign(text))

    def remove(self, number: int) -> None:
        """See `Place`."""
        self.objects.remove(self._object_path(number))

    def _object_path(self, number: int) -> str:
        return f"{self.prefix}{number}"

    def _sign(self, text: str) -> bytes:
        return f"{text}\n{self._maker}".encode()


def _path(hash_: str) -> str:
    return f"{RUNS}{hash_}.tar"


SCHEMES = ("s3", "gs", "az", "file")

TRIED_FOR = timedelta(seconds=20)
"""Time for which a failed request is repeated."""

LONGEST_REQUEST, LONGEST_OF_ARCHIVE = timedelta(seconds=5), timedelta(minutes=5)
"""Timeouts of one request; that of a heartbeat has to end well within the lease's `PATIENCE_S`."""

HEARD_S = 0.2
"""Seconds after which a thread that waits for an answer handles pending signals."""

ASKED_THE_MACHINE = {
    "/latest/": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role",
    "/computeMetadata/": "GOOGLE_APPLICATION_CREDENTIALS, or a role",
    "/metadata/identity/": "AZURE_STORAGE_ACCOUNT_KEY, or a role",
}
"""Variables to name in an error, by a part of the address that the library asks for credentials."""

ANSWER = re.compile(r"<Code>(.*?)</Code>\s*<Message>(.*?)</Message>", re.DOTALL)
"""Code and message in the XML of a request that S3 refuses."""

T = TypeVar("T")


@dataclass(frozen=True)
class Objects:
    """The objects below a URL; every method raises OSError if it cannot be reached.

    Args:
        url: e.g. ``s3://bucket/prefix``; credentials and options come from the environment
            (``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL``, …).
        archives: whether the objects are large, so that a request may take minutes.

    Raises:
        UserError: the scheme is not supported, or the library is not installed.
    """

    url: str
    archives: bool = False

    def __post_init__(self) -> None:
        scheme, found, _ = self.url.partition("://")
        if not found or scheme not in SCHEMES:
            allowed = ", ".join(f"{each}://" for each in SCHEMES)
            raise UserError(f"{self.url!r} is no address of an object store; allowed: {allowed}...")
        try:
            import obstore as _needed  # noqa: F401  # pyright: ignore[reportUnusedImport]
        except ImportError:
            told = "needs obstore; pip install 'lagbench[object-store]'"
            raise UserError(f"{self.url}: {told}") from None

    def __reduce__(self) -> tuple[type[Objects], tuple[str, bool]]:
        """Pickle the URL alone: each process opens its own connection."""
        return Objects, (self.url, self.archives)

    def list_paths(self, prefix: str) -> list[str]:
        """Paths of the objects below a prefix."""
        import obstore

        def request_paths() -> list[str]:
            some: Any = obstore.list(self._store, prefix)  # pyright: ignore[reportUnknownMemberType]
            return [each["path"] for page in some for each in page]

        with self._convert_errors():
            return _run_interruptible(request_paths)

    def has(self, path: str) -> bool:
        """Whether an object exists."""
        import obstore

        with suppress(FileNotFoundError), self._convert_errors():
            _run_interruptible(lambda: obstore.head(self._store, path))
            return True
        return False

    def create(self, path: str, data: bytes) -> bool:
        """Create an object, atomically; False if it exists."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        with suppress(AlreadyExistsError), self._convert_errors():
            _run_interruptible(lambda: obstore.put(self._store, path, data, mode="create"))
            return True
        return False

    def replace(self, path: str, data: bytes) -> None:
        """Write an object, whether or not it exists."""
        import obstore

        with self._convert_errors():
            _run_interruptible(lambda: obstore.put(self._store, path, data))

    def read(self, path: str) -> bytes:
        """Read an object; FileNotFoundError if it does not exist."""
        import obstore

        with self._convert_errors():
            return _run_interruptible(lambda: bytes(obstore.get(self._store, path).bytes()))

    def remove(self, path: str) -> None:
        """Remove an object, if it exists."""
        import obstore

        with suppress(FileNotFoundError), self._convert_errors():
            _run_interruptible(lambda: obstore.delete(self._store, path))

    @cached_property
    def _store(self) -> ObjectStore:
        from obstore.store import from_url

        if self.url.startswith("file:"):
            if not Path(url2pathname(urlsplit(self.url).path)).is_dir():
                raise NotADirectoryError("there is no such folder, and none is made")
            return from_url(self.url)
        plain = os.environ.get("AWS_ALLOW_HTTP", "").lower() == "true"  # not read beside options
        longest = LONGEST_OF_ARCHIVE if self.archives else LONGEST_REQUEST
        client: ClientConfig = {"timeout": longest, "allow_http": plain}
        tries: RetryConfig = {"retry_timeout": TRIED_FOR}
        return from_url(self.url, client_options=client, retry_config=tries)

    @contextmanager
    def _convert_errors(self) -> Generator[None]:
        """Raise the library's errors as OSError with a short message."""
        from obstore.exceptions import AlreadyExistsError, BaseError

        try:
            yield
        except AlreadyExistsError:
            raise
        except (BaseError, ValueError, OSError) as error:
            if isinstance(error, FileNotFoundError) and "NoSuchBucket" not in str(error):
                raise
            raise OSError(f"{self.url}: {_shorten_message(str(error))}") from None


def _run_interruptible(request: Callable[[], T]) -> T:
    """Execute a request so that the main thread can handle signals meanwhile; returns its result.

    Python's signal handlers do not run during a call into the library. After an interrupt the
    request ends by itself, or with the process.
    """
    if current_thread() is not main_thread():  # signals are handled on the main thread only
        return request()
    answer: Future[T] = Future()
    (asks := Thread(target=_answer, args=(answer, request), name="asks", daemon=True)).start()
    while asks.is_alive():
        asks.join(HEARD_S)
    return answer.result()


def _answer(answer: Future[T], request: Callable[[], T]) -> None:
    try:
        answer.set_result(request())
    except BaseException as error:
        answer.set_exception(error)


def _shorten_message(told: str) -> str:
    """Shorten an error message: no source location, address or XML."""
    if answer := ANSWER.search(told):
        return f"{answer[2]} ({answer[1]})"
    for address, allowed in ASKED_THE_MACHINE.items():
        if address in told:
            return f"no credentials; allowed: {allowed}"
    return told.partition("\n")[0][:300]


KEPT = ("done", "diverged")
"""Statuses that are results; a failed run is executed again."""


def pack_run(run: Run, light: bool = False) -> bytes:
    """Pack the files of a run into a tar archive, without attributes of files.

    Args:
        run: finished run.
        light: leave the large files (`schema.LARGE`) out.

    Raises:
        UserError: the run is not done or diverged, is damaged, or has no digests.
    """
    if run.status not in KEPT or not run.digests:
        why = f"is {run.status}" if run.status not in KEPT else "has no digests"
        told = "allowed: runs that are done or diverged, made by version 0.2.0 or later"
        raise UserError(f"run {run.hash[:SHORT]} {why}; {told}")
    names = {schema.CONFIG, schema.PROVENANCE, schema.RUN, *run.digests}
    names -= schema.LARGE if light else set()
    files = {name: path.read_bytes() for name in names if (path := run.dir / name).is_file()}
    files = _check(files, run.hash)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return archive.getvalue()


def unpack_run(data: bytes, hash_: str) -> dict[str, bytes]:
    """Read the files of a run from an archive, by name, the record last.

    Args:
        data: result of `pack_run`, perhaps damaged.
        hash_: expected hash of the run.

    Raises:
        DamagedError: it is another run, or not as it was packed.
    """
    try:
        files = _members(data)
    except (tarfile.TarError, ValueError, EOFError) as error:
        raise DamagedError(f"run {hash_[:SHORT]}: no archive of a run ({error!r})") from None
    return _check(files, hash_)


def _check(files: Mapping[str, bytes], hash_: str) -> dict[str, bytes]:
    """Check the files of a run; returns them by name, the record last.

    Raises:
        DamagedError: one is missing or not as it was written, or they belong to another run.
    """
    lost: list[str] = []

    def read(name: str, is_right: Callable[[Any], object]) -> Any:
        """Read a JSON file; None, and its name added to ``lost``, if it is invalid."""
        try:
            value = json.loads(files[name])
            if is_right(value):
                return value
        except (KeyError, TypeError, AttributeError, ValueError):
            pass
        lost.append(name)
        return None

    record = read(schema.RUN, lambda said: _is_result(run_files.check_digest(said), hash_))
    read(schema.CONFIG, lambda said: identity(said) == hash_)
    read(schema.PROVENANCE, lambda said: _is_moment(run_files.check_digest(said, True), hash_))
    digests: dict[str, str] = {} if record is None else record["files"]
    results = sorted(digests.keys() - schema.LARGE.difference(files))
    whole = {name for name in files if run_files.sha256_of(files[name]) == digests.get(name)}
    if lost := [*lost, *(name for name in results if name not in whole)]:
        raise DamagedError(f"run {hash_[:SHORT]}: damaged, not as written: {', '.join(lost)}")
    names = (schema.CONFIG, *results, schema.PROVENANCE, schema.RUN)
    return {name: files[name] for name in names}


def _is_result(record: Mapping[str, Any], hash_: str) -> bool:
    """Whether a record belongs to the run of this hash, which is done or diverged."""
    of_it = record["hash"] == identity(record["config"]) == hash_
    return of_it and record["status"] in KEPT and all(map(_is_plain, record["files"].keys()))


def _members(data: bytes) -> dict[str, bytes]:
    """Plain files of an archive; links, folders and devices are ignored."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        plain = [each for each in tar if each.isreg() and not each.issparse()]
        return {each.name: file.read() for each in plain if (file := tar.extractfile(each))}


def _is_moment(record: Mapping[str, Any], hash_: str) -> bool:
    """Whether a provenance may belong to this run; older ones have no hash."""
    return record.get("hash", hash_) == hash_


def _is_plain(name: str) -> bool:
    return PurePath(name).name == name and not name.startswith(".")
