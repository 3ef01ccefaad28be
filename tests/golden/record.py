"""What a change of the walls must leave as it is: ``python tests/golden/record.py OUT.json``.

Three kinds of values, each a digest by name:

- ``identities``: of every experiment of every paper at every scale, with a stand-in for the corpus;
- ``runs``: timeline, model and word errors of every run file in ``reproductions/runs``;
- ``reports``: `results.json` of the three papers at smoke scale, without its provenance.

Identities and timelines are equal on every machine and committed (``identities.json``, tested).
Models and reports are those of one kind of processor: record them before a change, and again
after it with ``--against OUT.json``, which names what differs and ends with 1.
"""

import argparse
import hashlib
import json
import sys
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness.base.seeds import identity
from reproductions.command import PAPERS, main
from reproductions.paper import Paper, Subject
from tests.stand_in import load_large, stand_in

ROOT = Path(__file__).parents[2]
KINDS = ("identities", "runs", "reports")


def identities() -> dict[str, str]:
    """The hash of every experiment's first seed, by paper, scale and setting."""
    found: dict[str, str] = {}
    for name, module in PAPERS.items():
        paper: Paper = import_module(module).PAPER
        for scale in paper.seeds:
            made = stand_in(paper.corpus)
            subject = Subject(scale, made, 11, "cpu", load=load_large)
            configs = paper.experiments(subject, paper.seeds_of(scale)[0])
            for setting, config in configs.items():
                found[f"{name}/{scale}/{setting}"] = identity(config.to_dict())
    return found


def runs() -> dict[str, str]:
    """Digests of what the run files in ``reproductions/runs`` leave in the store."""
    from harness.cli import main as lagbench
    from harness.store import Store

    found: dict[str, str] = {}
    for path in sorted((ROOT / "reproductions/runs").glob("*.toml")):
        with TemporaryDirectory() as folder:
            if lagbench(["train", str(path), "--out", folder]) != 0:
                raise SystemExit(f"{path} did not train")
            for number, run in enumerate(sorted(Store(folder).runs(), key=lambda run: run.hash)):
                place = f"{path.stem}/{number}"
                found[f"{place}/identity"] = run.hash
                found[f"{place}/timeline"] = str(run.summary.get("timeline_sha256"))
                for kept in sorted(run.dir.glob("*.safetensors")):
                    found[f"{place}/{kept.name}"] = _sha256(kept.read_bytes())
    return found


def reports() -> dict[str, str]:
    """Digests of the exhibits and claims of every paper's smoke report."""
    found: dict[str, str] = {}
    for name in PAPERS:
        with TemporaryDirectory() as folder:
            main([name, "--scale", "smoke", "--out", folder])
            told = json.loads((Path(folder) / "results.json").read_text(encoding="utf-8"))
        for entry in (*told["exhibits"], *told["claims"]):
            found[f"{name}/{entry['id']}"] = _sha256(json.dumps(entry, sort_keys=True).encode())
    return found


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [f"{kind}: not recorded before" for kind in after if kind not in before] + [
        f"{kind}: {name}: {before[kind].get(name)} before, {after[kind].get(name)} now"
        for kind in KINDS
        if kind in before and kind in after
        for name in sorted(before[kind].keys() | after[kind].keys())
        if before[kind].get(name) != after[kind].get(name)
    ]


def _parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("out", type=Path, help="where the values go, as JSON")
    p.add_argument("--only", choices=KINDS, action="append", help="kinds; all if not given")
    p.add_argument("--against", type=Path, help="values of before")
    return p


if __name__ == "__main__":
    asked = _parser().parse_args()
    made = {"identities": identities, "runs": runs, "reports": reports}
    values = {kind: made[kind]() for kind in asked.only or KINDS}
    asked.out.write_text(json.dumps(values, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    if asked.against:
        wrong = _differences(json.loads(asked.against.read_text(encoding="utf-8")), values)
        print("\n".join(wrong) or "equal")
        sys.exit(1 if wrong else 0)
