"""Inputs to `lagbench simulate` that are wrong, absurd or at the edge of what is allowed, by class.

Many are allowed: then they are to be answered, and none may take long.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
GOOD = (ROOT / "reproductions" / "clusters" / "k20m-server.toml").read_bytes()
PLAIN = """
name = "c"
[[workers]]
count = 3
device = "d"
[devices.d]
achieved_flops_per_s = 1e12
[link]
bandwidth_bytes_per_s = 1e9
[workload]
minibatch_frames = 256
flops_per_frame = 1e8
parameter_bytes = 1e7
"""
LONG = "9" * 5000


class Case(NamedTuple):
    """One input.

    Attributes:
        name: its class, and which it is.
        cluster: content of the cluster file; None is a file that the arguments name themselves.
        options: after it; ``DIR`` is a folder of the case's own.
        refused: whether it must be; None is either.
    """

    name: str
    cluster: bytes | None
    options: tuple[str, ...]
    refused: bool | None


def cases() -> list[Case]:
    """All of them, in order of class."""
    kinds = (contents, places, numbers, options, sweeps, extremes)
    return [case for kind in kinds for case in kind()]


def contents() -> Iterator[Case]:
    """What no cluster file holds, and what one may begin with."""
    wrong = {
        "empty": b"",
        "blank": b"\n \n",
        "binary": bytes(range(256)),
        "utf-16": GOOD.decode().encode("utf-16"),
        "null": GOOD + b"\x00",
        "latin": "name = 'é'".encode("latin-1"),
        "json": b'{"name": "c"}',
        "deep": b"a=" + b"[" * 50_000,
        "twice": GOOD + b'\nname = "again"\n',
        "half": GOOD[: len(GOOD) // 2],
        "large": b"#" * (17 * 2**20),
        "one line": b"a" * 1_000_000,
        "only a mark": b"\xef\xbb\xbf",
        "two marks": b"\xef\xbb\xbf\xef\xbb\xbf" + GOOD,
        "return": GOOD.replace(b"\n", b"\r"),
        "quote": GOOD.replace(b'name = "', b"name = '", 1),
    }
    for name, content in wrong.items():
        yield Case(f"content: {name}", content, (), True)
    right = {
        "mark": b"\xef\xbb\xbf" + GOOD,
        "windows": GOOD.replace(b"\n", b"\r\n"),
        "comments": b"# c\n" * 100_000 + GOOD,
        "no end": GOOD.rstrip(b"\n"),
    }
    for name, content in right.items():
        yield Case(f"content: {name}", content, (), False)


def places() -> Iterator[Case]:
    """Names of cluster files that name none."""
    names = ["DIR", "DIR/fifo", "DIR/loop", "DIR/dangling", "DIR/missing.toml", "/dev/null"]
    names += ["/dev/zero", "/dev/stdin", "/proc/self/mem", "DIR/" + "n" * 300, "", " ", "DIR/\n"]
    names += ["DIR/" + "d/" * 3000 + "c.toml", "-"]
    for name in names:
        yield Case(f"place: {name[:30]!r}", None, (name,), True)


NUMBERS = {
    "link": ("latency_s", "bandwidth_bytes_per_s"),
    "host": ("memory_bytes_per_s", "staging_bytes_per_s"),
    "server": ("fold_s", "fold_traffic"),
    "jitter": ("cv",),
    "stragglers": ("probability", "slowdown"),
    "parallel": ("slowdown", "average_s", "epoch_minibatches", "epoch_s"),
    "devices.d": ("launch_s", "half_rate_frames", "achieved_flops_per_s"),
    "workload": ("minibatch_frames", "flops_per_frame", "parameter_bytes"),
}


def put(table: str, key: str, value: str) -> bytes:
    """`PLAIN` with a value; in the table's own place if it has that table."""
    head = f"[{table}]\n"
    lines = [line for line in PLAIN.splitlines(keepends=True) if not line.startswith(f"{key} =")]
    text = "".join(lines)
    new = f"{key} = {value}\n"
    text = text.replace(head, head + new) if head in text else f"{text}{head}{new}"
    return text.encode()


def numbers() -> Iterator[Case]:
    """Numbers at the edges of what is allowed, and just beyond."""
    for table, keys in NUMBERS.items():
        for key in keys:
            for value in ("0", "5e-324", "1e9", "1.7e308"):
                yield Case(f"number: {table}.{key} = {value}", put(table, key, value), (), None)
    laws = ("constant", "lognormal", "gamma", "shifted-exponential")
    for law in laws:
        for cv in ("5e-324", "1e-200", "1e-9", "1", "100"):
            text = put("jitter", "law", f'"{law}"\ncv = {cv}')
            yield Case(f"number: jitter {law} {cv}", text, (), None)
    for listed in ("[5e-324]", "[5e-324, 0]", "[0, 0]", "[1e9, 5e-324]", "[]", "[1e-310, 1e-310]"):
        text = put("jitter", "law", f'"empirical"\nvalues = {listed}')
        yield Case(f"number: jitter values {listed}", text, (), None)


OPTIONS = ("workers", "folds", "seed", "push-every", "fetch-every", "bound")
OPTIONS += ("queue", "depth", "shards")


def options() -> Iterator[Case]:
    """Options with what is no number, or none that is allowed."""
    for text in ("", "-", "1-", "0-1", "1-2x0", "a-b", LONG, "10-20x1001-30", "1-²"):
        yield Case(f"option: --network {text[:20]!r}", PLAIN.encode(), (f"--network={text}",), True)
    for option in OPTIONS:
        for text in ("", "x", "1.5", "nan", "-1" + "0" * 30, LONG, "1e3", "0x10", " ", "1,,2", "½"):
            name = f"option: --{option} {text[:12]!r}"
            yield Case(name, PLAIN.encode(), (f"--{option}={text}",), None)
    wrong = ("protocol", "x" * 9000), ("frames", "nan"), ("kept", "inf"), ("slots", "0")
    for option, text in wrong:
        yield Case(f"option: --{option}", PLAIN.encode(), (f"--{option}={text}",), True)


def sweeps() -> Iterator[Case]:
    """Sweeps that lead nowhere, and values that are not allowed there."""
    texts = ["", "=", "a", "a=", "=1", "a=1", "a.b.c=1", "workers=1", "workers[0]=1", "name[0]=1"]
    texts += [f"workers[{LONG}].count=1", f"workers[0].count={LONG}", "link.latency_s=1e999"]
    texts += ["link.latency_s=nan", "link=1", "devices.d=1", "link.sharing=", "a" * 9000 + "=1"]
    texts += ["workers[0].count=0,1", "..=1", "[0]=1"]
    texts += ["link.latency_s=[1]", "link.latency_s={}", "link.latency_s='", "jitter.law=x", "é=1"]
    for text in texts:
        yield Case(f"sweep: {text[:30]!r}", PLAIN.encode(), (f"--sweep={text}",), True)


def extremes() -> Iterator[Case]:
    """What is allowed and large: to be answered, or refused for what it needs."""
    many = PLAIN.replace("count = 3", "count = 10000000").encode()
    for protocol in ("parameter_server", "averaging", "backup_workers", "sequence"):
        for workers in ("1", "3", "100", "5000"):
            few = ("--folds=5", f"--protocol={protocol}", f"--workers={workers}")
            yield Case(f"extreme: {protocol} {workers}", PLAIN.encode(), few, None)
    yield Case("extreme: 10,000,001", many.replace(b"10000000", b"10000001"), (), True)
    yield Case("extreme: folds", PLAIN.encode(), ("--folds=10000001",), True)
    death = '[[faults]]\nkind = "death"\nmean_s = 1e-6\n'
    yield Case("extreme: all die", PLAIN.encode() + death.encode(), (), True)
    for sharing in ("none", "fifo", "fair"):
        for duplex in ("full", "half"):
            text = put("link", "sharing", f'"{sharing}"\nduplex = "{duplex}"\nlatency_s = 1e9')
            yield Case(f"extreme: {sharing} {duplex}", text, ("--folds=50",), False)


def prepared(case: Case, folder: Path) -> list[str]:
    """The arguments of `lagbench`, with the files they need in an empty folder."""
    os.mkfifo(folder / "fifo")
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("nowhere")
    named = list(case.options)
    if case.cluster is not None:
        (folder / "c.toml").write_bytes(case.cluster)
        named.insert(0, str(folder / "c.toml"))
    told = any(word.startswith("--folds") for word in named)
    if not told:  # of numbers the long run is asked for, of all workers alone as it takes a while
        named.append("--workers=3" if case.name.startswith("number") else "--folds=50")
    return ["simulate", *(word.replace("DIR", str(folder)) for word in named)]
