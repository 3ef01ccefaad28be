"""Every experiment of every paper keeps its name, as long as it computes the same.

A name that changed means that stored runs are trained again. Who means it records anew, with
``python tests/golden/record.py --only identities tests/golden/identities.json``, and says why in
the commit. First seeds stand for all.
"""

import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

HERE = Path(__file__).parent


def test_every_experiment_of_every_paper_and_scale_has_the_identity_on_record():
    spec = spec_from_file_location("record", HERE / "record.py")
    record = module_from_spec(spec)
    spec.loader.exec_module(record)
    known = json.loads((HERE / "identities.json").read_text(encoding="utf-8"))["identities"]
    found = record.identities()
    assert found.keys() == known.keys()
    assert {name for name in known if known[name] != found[name]} == set()
