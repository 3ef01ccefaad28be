"""A light run whose files are needed, in a grid."""

from dataclasses import dataclass
from typing import Any

import pytest

from harness.base.seeds import identity
from harness.experiment.run import keep_faults, run
from harness.store import Store, schema


@dataclass(frozen=True)
class Faulty:
    """A run that a fault of ours ends."""

    def to_dict(self) -> dict[str, Any]:
        return {"is": "Faulty"}

    def execute(self, store: Store, watch: Any) -> Any:
        return _fail(self, store)


def _fail(config: Faulty, store: Store) -> Any:
    def execute(writer: Any) -> None:
        raise ZeroDivisionError

    return store.obtain(config.to_dict(), execute)


def execute(store: Store) -> None:
    with keep_faults(Faulty(), store, True):
        run(Faulty(), store)


@pytest.fixture
def light(tmp_path):
    def execute(writer):
        writer.attach(schema.TIMELINE, b"when")
        writer.finish(summary={"loss": 0.5})

    run = Store(tmp_path).obtain(Faulty().to_dict(), execute)
    (run.dir / schema.TIMELINE).unlink()
    return run


def test_a_light_run_that_cannot_be_made_again_stays_what_it_was(light, tmp_path):
    strict = Store(tmp_path).needing(schema.TIMELINE)
    execute(strict)
    assert Store(tmp_path).load(light.hash).summary == {"loss": 0.5}
    assert Store(tmp_path).load(light.hash).status == "done"


def test_a_run_that_a_fault_ends_has_failed(tmp_path):
    execute(Store(tmp_path))
    assert Store(tmp_path).load(identity(Faulty().to_dict())).status == "failed"
