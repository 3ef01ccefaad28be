import pytest

from harness.experiment.task import one_thread


@pytest.fixture
def _one_thread():
    with one_thread():
        yield
