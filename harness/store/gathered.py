"""Finished runs gathered in an object store, where several machines claim theirs.

A store here whose finished runs are gathered in an object store, where others claim theirs too.
Several machines without a file system in common work on one grid so: each asks for all of it. A
run is held here and there while it is made, and sent before it is given back; whoever comes second
takes it as it is.

Finished runs in an object store, and leases of those that are being made. A run is one object,
``runs/HASH.tar`` (`archive`), made where there is none: so it is there as a whole or not at all,
and is replaced only where it is damaged. Leases are ``leases/HASH/N`` (`lease`).

An object store: S3 and what speaks like it, Google's, Azure's, or a folder in their place. All
that is needed of it is that an object is made where there is none, once.

A finished run as one archive, so that it is somewhere as a whole or not at all.
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
from harness.store import files as atomic
from harness.store import files as integrity
from harness.store import schema
from harness.store.lease import Lease, Place, Waiting, parse_numbers
from harness.store.lease import Leases as lease_Leases
from harness.store.read import Run, read_run
from harness.store.store import Store
from harness.store.write import RunWriter

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig


class BucketStore(Store):
    """A store whose finished runs are elsewhere too.

    Args:
        path: the folder here.
        bucket: where they are gathered.
    """

    def __init__(self, path: Path | str, bucket: Bucket) -> None:
        super().__init__(path)
        self.bucket = bucket

    def missing(self, hashes: Iterable[str]) -> set[str]:
        """Those that are neither here nor there; the others are in both places from now on.

        Raises:
            OSError: the object store cannot be reached, or does not let us in.
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
        """Whether somebody else makes this run now, here or there."""
        return super().elsewhere(hash_) or Lease(self.bucket.leases(hash_)).is_held_by_other()

    def pull(self, hash_: str) -> bool:
        """Have a run here that is there; False if what is there is damaged, which is said."""
        folder = atomic.writable_folder(self.path / hash_, "store")
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
        if not self.has(folder.name) and self.bucket.has(folder.name):
            self._fetch_run(folder)
        return super()._open_run(folder, config, lease)

    def _fetch_run(self, folder: Path) -> bool:
        """Write the files of a run into its folder, which is held, its record last."""
        try:
            files = self.bucket.pull(folder.name)
        except DamagedError as error:
            self._say(f"{self.bucket.url}: {error}; it stays until a whole one is sent")
            return False
        here = folder / schema.RUN
        if self.needing().has(folder.name) and here.read_bytes() != files[schema.RUN]:
            return False  # a light one is here, with other results: it stays
        for name in schema.LARGE.difference(files):  # whatever lies there under its name
            (folder / name).unlink(missing_ok=True)
        for name, data in files.items():
            atomic.write_bytes(folder / name, data)
        return True

    def _on_finished(self, folder: Path) -> None:
        """Send it; what cannot be sent now `missing` sends when it is asked for again."""
        try:
            self._send_run(folder)
        except OSError as error:
            self._say(f"{error}; run {folder.name[:SHORT]} is kept here, the same command sends it")

    def _send_run(self, folder: Path) -> bool:
        """Send a finished run if it is a result; False if it is too old to be sent."""
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
    """The files of a run are not as they were written, or are another run's."""


RUNS = "runs/"

RUN = re.compile(RUNS + r"([0-9a-f]{64})\.tar")
"""Where a run lies; whatever else is there is not ours, and its name is nobody's path."""

Sent = Literal["pushed", "replaced", "there", "there, light", "different", "damaged there"]


class Bucket:
    """Finished runs below an address; every method raises OSError if it cannot be reached.

    Args:
        url: see `Objects`.

    Raises:
        UserError: see `Objects`.
    """

    def __init__(self, url: str) -> None:
        self.url, self.objects = url, Objects(url)
        self._archives = Objects(url, archives=True)

    def hashes(self) -> set[str]:
        """Of the runs that are there."""
        found = (RUN.fullmatch(path) for path in self.objects.list_paths(RUNS))
        return {each[1] for each in found if each}

    def has(self, hash_: str) -> bool:
        """Whether a run is there."""
        return self.objects.has(_path(hash_))

    def push(self, run: Run, light: bool = False) -> Sent:
        """Send a finished run, unless it is there; what is there as a whole is never replaced.

        Args:
            run: finished.
            light: without its large files.

        Returns:
            ``"replaced"`` if what was there was damaged; ``"different"`` if a run with other
            results is there, and stays, as does a light one of a run that is not.

        Raises:
            UserError: the run is no result, or damaged.
        """
        path, data = _path(run.hash), pack_run(run, light)
        if self._archives.create(path, data):
            return "pushed"
        if (found := self.compare(run)) != "damaged there":
            return found
        self._archives.replace(path, data)  # by two at once: whole either way
        return "replaced"

    def compare(self, run: Run) -> Sent:
        """Whether what is there of a finished run has the same results, or others, or none."""
        try:
            there = self.pull(run.hash)
        except DamagedError:
            return "damaged there"
        del there[schema.PROVENANCE]  # when and where it was made is its own
        both = there.keys() - run.without(there)
        same = all((run.dir / name).read_bytes() == there[name] for name in both)
        if not same:
            return "different"
        lacks = schema.LARGE.intersection(run.digests).difference(there, run.without(schema.LARGE))
        return "there, light" if lacks else "there"

    def pull(self, hash_: str) -> dict[str, bytes]:
        """The files of a run by name, its record last, as they were pushed.

        Raises:
            FileNotFoundError: it is not there.
            DamagedError: it is damaged.
        """
        return unpack_run(self._archives.read(_path(hash_)), hash_)

    def leases(self, hash_: str) -> Leases:
        """Where leases of a run lie."""
        return Leases(self.objects, f"leases/{hash_}/")


@dataclass(frozen=True)
class Leases:
    """Objects ``leases/HASH/N``; see `harness.store.lease.Place`.

    A request whose answer was lost is sent again, and then finds what it made itself: so each
    object says which of these made it.
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
        """Made again if it was taken over, which disturbs nobody: a higher number holds."""
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
"""So long a request is tried again before the network counts as away."""

LONGEST_REQUEST, LONGEST_OF_ARCHIVE = timedelta(seconds=5), timedelta(minutes=5)
"""So long one request may take; a lease that beats has to be well within its patience."""

HEARD_S = 0.2
"""So often whoever waits for an answer looks whether it is told to end."""

ASKED_THE_MACHINE = {
    "/latest/": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role",
    "/computeMetadata/": "GOOGLE_APPLICATION_CREDENTIALS, or a role",
    "/metadata/identity/": "AZURE_STORAGE_ACCOUNT_KEY, or a role",
}
"""In the address that is asked for credentials where the environment has none; what it may have."""

ANSWER = re.compile(r"<Code>(.*?)</Code>\s*<Message>(.*?)</Message>", re.DOTALL)
"""What S3 says in XML of a request that it refuses."""

T = TypeVar("T")


@dataclass(frozen=True)
class Objects:
    """The objects below an address; every method raises OSError if it cannot be reached.

    Args:
        url: e.g. ``s3://bucket/prefix``; what it takes to be let in comes from the environment
            (``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL``, …).
        archives: whether they are large, so that a request may take minutes.

    Raises:
        UserError: an address of no such kind, or its library is not installed.
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
        """Another process connects for itself."""
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
        """Whether there is an object."""
        import obstore

        with suppress(FileNotFoundError), self._convert_errors():
            _run_interruptible(lambda: obstore.head(self._store, path))
            return True
        return False

    def create(self, path: str, data: bytes) -> bool:
        """Make an object where there is none; False if there is one."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        with suppress(AlreadyExistsError), self._convert_errors():
            _run_interruptible(lambda: obstore.put(self._store, path, data, mode="create"))
            return True
        return False

    def replace(self, path: str, data: bytes) -> None:
        """Put an object, whatever is there."""
        import obstore

        with self._convert_errors():
            _run_interruptible(lambda: obstore.put(self._store, path, data))

    def read(self, path: str) -> bytes:
        """An object; FileNotFoundError where there is none."""
        import obstore

        with self._convert_errors():
            return _run_interruptible(lambda: bytes(obstore.get(self._store, path).bytes()))

    def remove(self, path: str) -> None:
        """There is no object from now on."""
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
        """What the library raises, as an error of the machine in one line."""
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
    """What a request comes to; who waits hears signals, which no handler of Python's does amid it.

    One that nobody waits for any more ends by itself, or with the process.
    """
    if current_thread() is not main_thread():  # it hears none anyway
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
    """What happened, without its source, address and XML."""
    if answer := ANSWER.search(told):
        return f"{answer[2]} ({answer[1]})"
    for address, allowed in ASKED_THE_MACHINE.items():
        if address in told:
            return f"no credentials; allowed: {allowed}"
    return told.partition("\n")[0][:300]


KEPT = ("done", "diverged")
"""Outcomes that are results; a failed run is tried again."""


def pack_run(run: Run, light: bool = False) -> bytes:
    """The files of a run as a tar archive, which has none but them.

    Args:
        run: finished.
        light: without the large ones (`schema.LARGE`).

    Raises:
        UserError: the run is no result, is damaged, or is of a version that kept no digests.
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
    """The files of a run by name, its record last.

    Args:
        data: what `pack_run` made, perhaps damaged.
        hash_: of the run that it should be.

    Raises:
        DamagedError: it is not, or not as it was packed.
    """
    try:
        files = _members(data)
    except (tarfile.TarError, ValueError, EOFError) as error:
        raise DamagedError(f"run {hash_[:SHORT]}: no archive of a run ({error!r})") from None
    return _check(files, hash_)


def _check(files: Mapping[str, bytes], hash_: str) -> dict[str, bytes]:
    """Check the files of a run; gives them by name, its record last.

    Raises:
        DamagedError: one is missing, or not as it was written, or they are another run's.
    """
    lost: list[str] = []

    def read(name: str, is_right: Callable[[Any], object]) -> Any:
        """Read a file; None, and the file is lost, where it is not right."""
        try:
            value = json.loads(files[name])
            if is_right(value):
                return value
        except (KeyError, TypeError, AttributeError, ValueError):
            pass
        lost.append(name)
        return None

    record = read(schema.RUN, lambda said: _is_result(integrity.check_digest(said), hash_))
    read(schema.CONFIG, lambda said: identity(said) == hash_)
    read(schema.PROVENANCE, lambda said: _is_moment(integrity.check_digest(said, True), hash_))
    digests: dict[str, str] = {} if record is None else record["files"]
    results = sorted(digests.keys() - schema.LARGE.difference(files))
    whole = {name for name in files if integrity.sha256_of(files[name]) == digests.get(name)}
    if lost := [*lost, *(name for name in results if name not in whole)]:
        raise DamagedError(f"run {hash_[:SHORT]}: damaged, not as written: {', '.join(lost)}")
    names = (schema.CONFIG, *results, schema.PROVENANCE, schema.RUN)
    return {name: files[name] for name in names}


def _is_result(record: Mapping[str, Any], hash_: str) -> bool:
    """Whether a record is of a finished run, and of this one."""
    of_it = record["hash"] == identity(record["config"]) == hash_
    return of_it and record["status"] in KEPT and all(map(_is_plain, record["files"].keys()))


def _members(data: bytes) -> dict[str, bytes]:
    """Plain files alone: what else an archive may hold is not ours."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        plain = [each for each in tar if each.isreg() and not each.issparse()]
        return {each.name: file.read() for each in plain if (file := tar.extractfile(each))}


def _is_moment(record: Mapping[str, Any], hash_: str) -> bool:
    """Whether it may be this run's: older ones do not say whose they are."""
    return record.get("hash", hash_) == hash_


def _is_plain(name: str) -> bool:
    return PurePath(name).name == name and not name.startswith(".")
