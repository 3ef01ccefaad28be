"""What ``--help`` shows below a command's options: lines that can be typed as they are."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["EXAMPLES", "shown"]

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "lagbench": ("simulate k20m-server", "train async-averaged", "reproduce paper1 --scale smoke"),
    "lagbench simulate": (
        "k20m-server --workers 1,2,4,8",
        "infiniband-64 --protocol averaging --every 10 --workers 8",
        "k20m-server --sweep link.latency_s=0,1e-4,1e-3",
        "k20m-server --workers 4 --trace trace.json --plot page.svg",
    ),
    "lagbench runs": ("", "reports/out --verify", "reports/out --csv"),
    "lagbench compare-algorithms": (
        "async-averaged --algorithms async,averaging:10 --workers 1,4 --seeds 2",
        "diloco --rates file --set schedule.rate=0.1",
    ),
    "lagbench check-algorithm": ("async", "Mine --import mine"),
    "lagbench corpus": ("make parametric --out words", "import kaldi data/train --out MINE"),
    "lagbench corpus make": ("parametric --out words", "mandarin-like --scale laptop --out speech"),
    "lagbench corpus validate": ("words --frames 100000",),
    "lagbench corpus import": (
        "kaldi data/train --dev data/dev --test data/test --out MINE",
        "kaldi data/train --lexicon data/lang/lexicon.txt --front-end log_mel --out MINE",
    ),
    "lagbench corpus align": ("words --out realigned --leaves 200",),
    "lagbench corpus knobs": ("mandarin-like --epochs 2",),
    "lagbench corpus fetch": ("fsdd",),
    "lagbench train": (
        "async-averaged",
        "async-averaged --workers 1,4,16 --seeds 3 --set schedule.rate=0.005",
        "async-averaged --processes 5 --paced",
    ),
    "lagbench tolerate": ("async-averaged", "async-averaged --what delay --to 0.5"),
    "lagbench replay": ("reports/out/runs/HASH",),
    "lagbench compare": ("reports/out/runs/HASH", "reports/out/runs/HASH --cluster k20m-server"),
    "lagbench validate": ("",),
    "lagbench predict": (
        "async-averaged --workers 16",
        "diloco --cluster l40s-wide-area",
        "async-averaged --target reports/out/runs/HASH",
    ),
    "lagbench calibrate": ("--out my.toml --workers 8",),
    "lagbench recognise": ("parametric --scale smoke", "MINE --against initial=random --seeds 5"),
    "lagbench bench": ("--check", "--only simulator"),
    "lagbench device": ("--minutes 10", "--device cpu --scale small"),
    "lagbench reproduce": ("paper1 --scale smoke", "paper1 --only table2,fig3 --seeds 5 --jobs 2"),
    "lagbench report": ("reports/out/paper1/laptop", "--site pages"),
    "lagbench completion": ("bash > ~/.local/share/bash-completion/completions/lagbench",),
    "harness.train": ("async-averaged --processes 5",),
    "reproductions": ("paper1 --scale smoke",),
}
"""Words after the program's name, by the program."""


def shown(program: str) -> str:
    """The examples of a program as a last paragraph; empty without any."""
    before = "" if program.startswith("lagbench") else "python -m "
    lines = [f"  {before}{program} {words}".rstrip() for words in EXAMPLES.get(program, ())]
    return "\n".join(["", "examples:", *lines, ""]) if lines else ""
