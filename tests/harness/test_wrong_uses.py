"""Wrong uses, and the line that each is answered with: exit code 2, no traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LIGHT: list[tuple[str, str]] = [
    ("--verison", "lagbench: option: unknown '--verison' (did you mean '--version'?)"),
    ("-x", "lagbench: option: unknown '-x'"),
    ("simulat", "lagbench: command: unknown 'simulat' (did you mean 'simulate'?)"),
    ("Train diloco", "command: unknown 'Train' (did you mean 'train'?)"),
    ("simulate", "the following arguments are required: CLUSTER"),
    ("simulate k20m-servr", "cluster: unknown 'k20m-servr' (did you mean 'k20m-server'?)"),
    ("simulate nosuch.toml", "nosuch.toml: cannot read the file (No such file or directory)"),
    ("simulate .", "cannot read the file (not a regular file)"),
    ("simulate diloco", "cluster: 'diloco' is a run; allowed: lagbench train diloco"),
    ("simulate binary.toml", "binary.toml: not a text file in UTF-8"),
    ("simulate broken.toml", "broken.toml: not valid TOML"),
    ("simulate k20m-server --workers 0", "--workers: '0' is not allowed; allowed: whole numbers"),
    ("simulate k20m-server --protocol ring", "protocol: unknown 'ring'"),
    ("simulate k20m-server --protocol averagin", "did you mean 'averaging'?"),
    ("simulate k20m-server --every 10", "--every: not allowed with --protocol parameter_server"),
    ("simulate k20m-server --sweep x", "--sweep: 'x' is not allowed; allowed: key=a,b,c"),
    ("simulate k20m-server --workers 1,,2", "--workers: '1,,2' is not allowed"),
    ("simulate k20m-server --workres 1", "unknown '--workres' (did you mean '--workers'?)"),
    ("simulate k20m-server --folds 0", "--folds: '0' is not allowed"),
    ("simulate k20m-server --folds many", "argument --folds: 'many' is not allowed"),
    ("simulate k20m-server --json /", "--json: '/' is not allowed"),
    ("simulate k20m-server --protocol averaging --bound 3", "--bound: not allowed with --protocol"),
    ("simulate k20m-server --protocol averaging --shards 2", "with --protocol parameter_server or"),
    ("simulate k20m-server --shards 0", "parameter_server: shards: 0 is not allowed"),
    ("simulate k20m-server --protocol averaging --every 0", "averaging: every: 0 is not allowed"),
    ("simulate k20m-server --protocol averaging --collective rign", "did you mean 'ring'"),
    ("simulate k20m-server --sweep link.latncy_s=1", "did you mean 'latency_s'?"),
    ("simulate k20m-server --sweep link.latency_s=1,,2", "is not allowed; allowed: key=a,b,c"),
    ("simulate k20m-server --sweep link.latency_s=fast", "link.latency_s: 'fast' is not allowed"),
    ("simulate k20m-server --sweep link.latency_s=-1", "link.latency_s: -1.0 is not allowed"),
    ("simulate k20m-server --sweep name.x=1", "--sweep: 'name.x' is not a key"),
    ("simulate k20m-server --sweep workers[7].count=1", "file: 7 is not there (1 in all, from 0)"),
    ("simulate k20m-server --sweep worker[0].count=1", "unknown 'worker' (did you mean 'workers'"),
    ("simulate k20m-server --protocol ssp", "unknown 'ssp' (did you mean 'parameter_server'?)"),
    ("simulate k20m-server --network 429", "--network: '429' is not allowed"),
    ("simulate k20m-server --trace no/such/t.json", "--trace: 'no/such/t.json' is not allowed"),
    ("train diloc", "run: unknown 'diloc' (did you mean 'diloco'?)"),
    ("train k20m-server", "run: 'k20m-server' is a cluster; allowed: lagbench simulate"),
    ("train cluster.toml", "cluster.toml: a cluster file and no run file; allowed: lagbench"),
    ("train diloco --seed -1", "--seed: '-1' is not allowed; allowed: a whole number from 0"),
    ("train diloco --jobs 0", "--jobs: '0' is not allowed; allowed: a whole number from 1 to 1000"),
    ("tolerate diloco --jobs 0", "--jobs: '0' is not allowed"),
    ("compare-algorithms diloco --jobs -2", "--jobs: '-2' is not allowed"),
    ("train diloco --seed x", "--seed: 'x' is not allowed; allowed: a whole number from 0"),
    ("train diloco --device gpu", "--device: unknown 'gpu' (did you mean 'cuda'?)"),
    ("train diloco --paced", "--paced: for real processes; allowed: with --processes N"),
    ("train diloco --processes 5 --workers 2", "--processes 5: allowed: one run of the file"),
    ("train diloco --processes 5 --jobs 2", "--processes 5: allowed: one run of the file"),
    ("train diloco --processes 1", "--processes: '1' is not allowed; allowed: a whole"),
    ("predict diloco --cluster nosuch", "cluster: unknown 'nosuch'"),
    ("replay nosuch", "nosuch: no run; allowed: a folder of a store (lagbench runs)"),
    ("runs nosuch", "runs: no store in 'nosuch'; allowed: an output folder or its runs/"),
    ("corpus make nosuch --out x", "error: corpus: unknown 'nosuch'"),
    ("corpus make parametric", "--out"),
    ("corpus make parametric --out .", "--out .: exists already"),
    ("corpus make parametric --out x --scale huge", "--scale: unknown 'huge'"),
    ("corpus fetch nosuch", "fetch: unknown 'nosuch'; allowed: aishell, fsdd"),
    ("corpus validate nosuch", "nosuch: not a whole corpus"),
    ("corpus validate nosuch --epochs 0", "--epochs: '0' is not allowed; allowed: a whole"),
    ("corpus import kaldi d --out o --rounds 0", "--rounds: '0' is not allowed; allowed: a whole"),
    ("corpus bake", "invalid choice: 'bake'"),
    ("corpus import kaldi nosuch --out x", "nosuch: no such directory; needed: a Kaldi data"),
    ("corpus import kaldi empty --out x", "empty: neither feats.scp nor wav.scp; needed"),
    ("reproduce papr1", "paper: unknown 'papr1' (did you mean 'paper1'?)"),
    ("reproduce paper1 --scale lptop", "--scale: unknown 'lptop' (did you mean 'laptop'?)"),
    ("reproduce paper1 --corpus nosuch", "error: corpus: unknown 'nosuch'"),
    ("report empty", "report: 'empty' holds no results.json; allowed: a folder with one"),
    ("calibrate --out cluster.toml", "--out cluster.toml: exists already; allowed: a new file"),
]
"""Words of a command line, and what the line says; none of these needs torch."""


PROGRAM = """
import contextlib, io, json, sys
from harness.cli import main
for words in json.load(sys.stdin):
    with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.redirect_stdout(err):
        code = main(words.split())
    print(json.dumps([code, err.getvalue(), "torch" in sys.modules]))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory) -> list[tuple[int, str, bool]]:
    """Exit code, what is said, and whether torch is imported by then, of each wrong use.

    One process answers all of them, where there are a cluster file, two files that are none, and
    an empty folder.
    """
    folder = tmp_path_factory.mktemp("wrong")
    (folder / "empty").mkdir()
    (folder / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (folder / "broken.toml").write_text("name = \n")
    (folder / "cluster.toml").write_text('name = "c"\nworkers = [{count = 1, device = "K20m"}]\n')
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps([words for words, _ in LIGHT]),
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    return [tuple(json.loads(line)) for line in told.stdout.splitlines()]


def test_every_wrong_use_is_answered_with_its_line_and_exit_code_2(answers):
    wrong = [
        (words, code, said)
        for (words, line), (code, said, _) in zip(LIGHT, answers, strict=True)
        if code != 2 or said.count("\n") != 1 or not said.startswith("error: ") or line not in said
    ]
    assert wrong == []


def test_none_of_them_waits_for_torch(answers):
    waited = [words for (words, _), (_, _, torch) in zip(LIGHT, answers, strict=True) if torch]
    assert waited == []
