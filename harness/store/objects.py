"""An object store: S3 and what speaks like it, Google's, Azure's, or a folder in their place.

All that is needed of it is that an object is made where there is none, once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from threading import Thread, current_thread, main_thread
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import url2pathname

from harness.base.errors import UserError

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

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

    def listed(self, prefix: str) -> list[str]:
        """Paths of the objects below a prefix."""
        import obstore

        def found() -> list[str]:
            some: Any = obstore.list(self._store, prefix)  # pyright: ignore[reportUnknownMemberType]
            return [each["path"] for page in some for each in page]

        with self._asked():
            return _answered(found)

    def has(self, path: str) -> bool:
        """Whether there is an object."""
        import obstore

        with suppress(FileNotFoundError), self._asked():
            _answered(lambda: obstore.head(self._store, path))
            return True
        return False

    def create(self, path: str, data: bytes) -> bool:
        """Make an object where there is none; False if there is one."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        with suppress(AlreadyExistsError), self._asked():
            _answered(lambda: obstore.put(self._store, path, data, mode="create"))
            return True
        return False

    def replace(self, path: str, data: bytes) -> None:
        """Put an object, whatever is there."""
        import obstore

        with self._asked():
            _answered(lambda: obstore.put(self._store, path, data))

    def read(self, path: str) -> bytes:
        """An object; FileNotFoundError where there is none."""
        import obstore

        with self._asked():
            return _answered(lambda: bytes(obstore.get(self._store, path).bytes()))

    def remove(self, path: str) -> None:
        """There is no object from now on."""
        import obstore

        with suppress(FileNotFoundError), self._asked():
            _answered(lambda: obstore.delete(self._store, path))

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
    def _asked(self) -> Generator[None]:
        """What the library raises, as an error of the machine in one line."""
        from obstore.exceptions import AlreadyExistsError, BaseError

        try:
            yield
        except AlreadyExistsError:
            raise
        except (BaseError, ValueError, OSError) as error:
            if isinstance(error, FileNotFoundError) and "NoSuchBucket" not in str(error):
                raise
            raise OSError(f"{self.url}: {_in_short(str(error))}") from None


def _answered(request: Callable[[], T]) -> T:
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


def _in_short(told: str) -> str:
    """What happened, without its source, address and XML."""
    if answer := ANSWER.search(told):
        return f"{answer[2]} ({answer[1]})"
    for address, allowed in ASKED_THE_MACHINE.items():
        if address in told:
            return f"no credentials; allowed: {allowed}"
    return told.partition("\n")[0][:300]
