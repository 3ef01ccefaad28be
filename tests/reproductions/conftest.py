import pytest

from tests.reproductions.book import Book


@pytest.fixture(scope="session")
def book(tmp_path_factory: pytest.TempPathFactory) -> Book:
    """Runs for every exhibit and claim, each made when it is first asked for."""
    return Book(tmp_path_factory.mktemp("book"))
