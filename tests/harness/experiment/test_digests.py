from __future__ import annotations

import copy
import functools
import linecache
import shutil
import subprocess
import sys
import types
from importlib import import_module, invalidate_caches, reload, util
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from harness.base.errors import UserError
from harness.experiment import digests
from harness.experiment.digests import (
    digest_of_code,
    digest_of_part,
    digest_of_state,
    digest_of_tensor,
)
from harness.modules.network import copy_module

SOURCE = """
import torch
from torch import nn

SCALE = 2.0

def halved(x):
    return x / SCALE

class Base(nn.Module):
    def inner(self, x):
        return halved(x)

class Net(Base):
    def __init__(self, hidden=4):
        super().__init__()
        self.hidden = hidden
        self.layer = nn.Linear(3, hidden)

    def forward(self, x):
        return self.inner(self.layer(x))

def make():
    return Net(5)

def loss(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs, targets)
"""


COMPILED = """
import logging
import re
import numba
from harness.simulator.events import take as kernel

INNER = 4.0

@numba.njit
def inner(x):
    return INNER * x

@numba.njit(fastmath=True)
def compiled(x):
    return inner(x)

@numba.vectorize
def ufunc(x):
    return compiled(x)

class Slotted:
    __slots__ = ("scale", "unset")

    def __init__(self, scale):
        self.scale = scale

    def scaled(self, x):
        return self.scale * x

def member(x):
    inner = lambda y: y in {"gelu", "relu", "silu", "tanh", "elu", "mish"}
    return x if inner(x) else (x in {("a", frozenset("uvwxyz")), "b", 3.0})

sets = {frozenset("abcdefgh"), frozenset("ijklmnop"), ("q", frozenset("rstuvwx"))}, {
    (frozenset("abcdefgh"), 1): 2, frozenset("ijklmnop"): 3}
logger = logging.getLogger("user")

def logging_loss(x):
    logger.info("x")
    return x

slotted = Slotted(2.0)
table = {inner: 1, compiled: {inner, compiled, ufunc}}
pattern = re.compile("a")
"""
KINDS = """
import dataclasses, datetime, decimal, enum, fractions, functools, operator, random, weakref
import numba
import numpy as np
import torch

K = {0}

def identity(x):
    return x

def scripted(x):
    return x * {0}

@numba.njit
def scale(x):
    return K * x

def into(x, out):
    out[0] = scale(x[0])

class Layer(torch.nn.Module):
    def forward(self, x):
        return x * K

    @classmethod
    def make(cls):
        return K

class Optimised(torch.nn.Module):  # as torch.compile gives, which takes seconds to import
    def __init__(self, module):
        super().__init__()
        self._orig_mod, self.frame = module, weakref.ref(module)

class Slotted:
    __slots__ = ("_value",)

    def __init__(self, value):
        self._value = value

    def __call__(self, x):
        return x

@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    value: int

class Key:
    def __init__(self, value):
        self.value = value

def wrapped(function):
    @functools.wraps(function)
    def call(x):
        return function(x) * {0}

    return call

class Turned(Layer):
    kind = torch.zeros(K)

Layer.late = lambda self: {0}

class Size(enum.Enum):
    LARGE = K

@dataclasses.dataclass
class Defaults:
    value: int = K

def nested():
    class Inner:
        def call(self):
            return K
        scale = K

    try:
        return Inner
    except ValueError:
        raise

class Odd:
    @property
    def __dict__(self):
        raise RuntimeError("not today")

@functools.singledispatch
def shown(x):
    return x

@shown.register
def _(x: int):
    return K

made = {1}
"""


def written(folder: Path, source: str):
    """The module of a source file, imported anew."""
    number = len(list(folder.iterdir()))
    path = folder / f"user{number}.py"
    path.write_text(source, encoding="utf-8")
    spec = util.spec_from_file_location("user", path)
    module = util.module_from_spec(spec)
    sys.modules["user"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def user(tmp_path):
    yield functools.partial(written, tmp_path)
    sys.modules.pop("user", None)


def test_comments_and_layout_do_not_count(user):
    before = user(SOURCE)
    first = digest_of_code(before.make), digest_of_code(before.Net())
    after = user(SOURCE.replace("return x / SCALE", "return (x\n        / SCALE)  # a comment"))
    assert (digest_of_code(after.make), digest_of_code(after.Net())) == first


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x / SCALE", "x * SCALE"), ("SCALE = 2.0", "SCALE = 3.0"),
        ("self.inner(self.layer(x))", "self.layer(self.inner(x))"),
        ("return Net(5)", "return Net(6)"), ("hidden=4", "hidden=7"),
        ("class Net(Base)", "class Net(nn.Module, Base)"),
    ],
)  # fmt: skip
def test_whatever_the_code_refers_to_counts(user, old, new):
    before = digest_of_code(user(SOURCE).make)
    changed = SOURCE.replace(old, new)
    if "nn.Module, Base" in changed:
        changed = changed.replace("class Base(nn.Module)", "class Base")
    assert digest_of_code(user(changed).make) != before


def test_what_the_code_does_not_refer_to_does_not_count(user):
    before = digest_of_code(user(SOURCE).loss)
    assert digest_of_code(user(SOURCE.replace("SCALE = 2.0", "SCALE = 3.0")).loss) == before


def test_closures_defaults_partials_and_settings_count():
    def scaled(by):
        return lambda outputs, targets: by * functional.mse_loss(outputs, targets)

    assert digest_of_code(scaled(1.0)) == digest_of_code(scaled(1.0))
    assert digest_of_code(scaled(1.0)) != digest_of_code(scaled(2.0))
    one, two = (functools.partial(functional.cross_entropy, label_smoothing=s) for s in (0.1, 0.2))
    assert digest_of_code(one) != digest_of_code(two)
    assert digest_of_code(nn.Dropout(0.1)) != digest_of_code(nn.Dropout(0.2))
    assert digest_of_code(nn.CrossEntropyLoss()) != digest_of_code(nn.MSELoss())
    assert digest_of_code(functional.mse_loss) != digest_of_code(functional.l1_loss)


def test_another_process_finds_the_same(user, tmp_path):
    names = "make, loss, compiled, ufunc, slotted, slotted.scaled, table, pattern, kernel"
    names += ", member, sets, logging_loss"
    told = f"print(*map(digest_of_code, ({names})))"
    code = f"{SOURCE}{COMPILED}\nfrom harness.experiment.digests import digest_of_code\n"
    path = tmp_path / "script.py"
    path.write_text(code + told, encoding="utf-8")
    elsewhere = subprocess.run(
        [sys.executable, str(path)], check=True, capture_output=True, text=True,
        env={"PYTHONHASHSEED": "1", "PYTHONPATH": str(Path(__file__).parents[3])},
    ).stdout.split()  # fmt: skip
    here = user(SOURCE + COMPILED)
    assert [digest_of_code(eval(name, vars(here))) for name in names.split(", ")] == elsewhere


@pytest.mark.parametrize(
    "made",
    [
        "numba.njit(fastmath=bool(K - 2))(identity)", "numba.njit(lambda x: scale(x))",
        "numba.vectorize(lambda x: scale(x))", "numba.vectorize(['f8(f8)'])(lambda x: K * x)",
        "numba.guvectorize(['(f8[:], f8[:])'], '(n)->(n)')(into)",
        "numba.cfunc('f8(f8)')(lambda x: x + K)", "lambda x: scale(x)",
        "functools.partial(scale, K)", "functools.lru_cache(lambda x: x * K)",
        "torch.jit.script(scripted)", "Optimised(Layer())", "torch.func.vmap(lambda x: x * K)",
        "Slotted(K)", "Slotted(K).__call__", "Frozen(K)", "(torch.ones(2) * K).mul", "shown",
        "np.arange(6)[::-K]", "np.array(['a', 'b' * K])", "np.array(['a', K], object)",
        "np.vectorize(lambda x: x * K)", "{Key(1), Key(K)}", "operator.itemgetter(K)",
        "Layer().forward", "Layer.make", "Layer().late", "wrapped(identity)", "Turned()",
        "Size.LARGE", "Defaults", "nested", "np.float32(K)",
        "(torch.float32, torch.float64)[K - 2]",
        "(decimal.Decimal(K),)", "(fractions.Fraction(1, K),)", "(slice(K),)",
        "(datetime.timedelta(K),)", "random.Random(K)", "np.random.default_rng(K)",
    ],
)  # fmt: skip
def test_callables_and_values_of_every_kind_count(user, made):
    """In the same way after they were called, which compiles them."""

    def digest(value, source=KINDS):
        return digest_of_code(user(source.format(value, made)).made)

    assert digest(2) == digest(2)
    assert digest(2) != digest(3)


def test_where_members_of_a_set_lie_does_not_count():
    class Key:
        value = 0

    keys = Key(), Key()

    def digest(*values):
        for key, value in zip(keys, values, strict=True):
            key.value = value
        return digest_of_code(set(keys))

    assert digest(1, 2) == digest(2, 1)
    assert digest(1, 2) != digest(1, 3)


def test_a_compiled_function_is_known_as_the_same_after_it_was_called(user):
    here = user(COMPILED)
    before = digest_of_code(here.compiled)
    assert here.compiled(1.0) == 4.0
    assert digest_of_code(here.compiled) == before
    changed = user(COMPILED.replace("INNER = 4.0", "INNER = 5.0"))
    assert digest_of_code(changed.compiled) != before


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ("np.frompyfunc(lambda x: x * K, 1, 1)", "numpy.frompyfunc keeps no Python function of it"),
        ("torch.jit.trace(Layer(), torch.ones(2))", "a traced module has no source"),
        ("functools.cmp_to_key(identity)", "it has no name of its own"),
        ("Odd()", "what it refers to cannot be read (RuntimeError: not today)"),
    ],
)
def test_what_cannot_be_told_from_another_of_its_kind_is_refused_in_one_line(user, made, told):
    with pytest.raises(UserError) as refused:
        digest_of_code(user(KINDS.format(2, made)).made)
    assert told in str(refused.value)
    assert "allowed: functions, classes and objects of Python" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_bytes_of_parameters_and_data_count():
    module = nn.Linear(3, 2)
    before = digest_of_state(module)
    with torch.no_grad():
        module.weight[0, 0] = torch.nextafter(module.weight[0, 0], torch.tensor(9.0))
    assert digest_of_state(module) != before
    x = torch.arange(6.0)
    assert digest_of_tensor(x) == digest_of_tensor(x.clone())
    assert digest_of_tensor(x) != digest_of_tensor(x.view(2, 3))
    assert digest_of_tensor(x) != digest_of_tensor(x.double())


def test_the_weights_of_a_loss_count():
    def weighted(*weights):
        return nn.CrossEntropyLoss(weight=torch.tensor(weights))

    assert digest_of_part(weighted(1.0, 2.0)) == digest_of_part(weighted(1.0, 2.0))
    assert digest_of_part(weighted(1.0, 2.0)) != digest_of_part(weighted(1.0, 3.0))
    assert digest_of_part(nn.MSELoss()) == digest_of_code(nn.MSELoss())


def test_the_parameters_of_a_module_that_a_function_holds_count():
    def maker(fill):
        held = nn.Linear(2, 2)
        nn.init.constant_(held.weight, fill)
        nn.init.zeros_(held.bias)
        return lambda: held

    assert digest_of_code(maker(1.0)) == digest_of_code(maker(1.0))
    assert digest_of_code(maker(1.0)) != digest_of_code(maker(2.0))


def test_hooks_of_a_module_count():
    plain, doubled, halved = nn.ReLU(), nn.ReLU(), nn.ReLU()
    doubled.register_forward_hook(lambda module, x, y: y * 2)
    halved.register_forward_hook(lambda module, x, y: y / 2)
    assert len({digest_of_code(each) for each in (plain, doubled, halved)}) == 3


def test_members_of_a_module_of_ones_own_count(user, tmp_path):
    def seen(source):
        helper = types.ModuleType("helper")
        (tmp_path / "helper.py").write_text(source, encoding="utf-8")
        helper.__file__ = str(tmp_path / "helper.py")
        exec(source, helper.__dict__)
        sys.modules["helper"] = helper
        made = user(
            "import helper\ndef loss(outputs, targets):\n    return helper.scaled(outputs)\n"
        )
        return digest_of_code(made.loss)

    scaled = "SCALE = {}\nOTHER = {}\ndef scaled(x):\n    return x * SCALE\n"
    try:
        first, other, scale = (seen(scaled.format(*pair)) for pair in ((1, 1), (1, 2), (2, 1)))
    finally:
        sys.modules.pop("helper", None)
    assert first == other != scale


def test_the_code_that_was_loaded_counts_and_not_a_file_that_was_edited_since(user, tmp_path):
    here = user(SOURCE)
    before = digest_of_code(here.make), digest_of_code(here.Net())
    path = Path(here.__file__)
    path.write_text(SOURCE.replace("x / SCALE", "x * SCALE").replace("Net(5)", "Net(6)"))
    linecache.checkcache(str(path))
    assert (digest_of_code(here.make), digest_of_code(here.Net())) == before


@pytest.mark.parametrize(
    "line",
    [f"{start} as nets" for start in ("import nets_of_mine", "from nets_of_mine import make")],
)
def test_what_a_function_imports_when_it_is_called_counts(user, tmp_path, monkeypatch, line):
    monkeypatch.syspath_prepend(str(tmp_path))

    def digest(layers):
        sys.modules.pop("nets_of_mine", None)
        invalidate_caches()
        source = f"LAYERS = {layers}\ndef make():\n    return [LAYERS]\nOTHER = {layers}\n"
        (tmp_path / "nets_of_mine.py").write_text(source + "#" * layers)
        call = "nets.make()" if " as nets" in line and "from" not in line else "0"
        return digest_of_code(user(f"def model():\n    {line}\n    return {call}\n").model)

    try:
        assert digest(2) == digest(2) != digest(3)
    finally:
        sys.modules.pop("nets_of_mine", None)


def test_a_package_counts_by_its_version_wherever_it_is_installed(user, tmp_path, monkeypatch):
    """As by ``pip install --target``; what lies beside it is the user's code."""
    monkeypatch.syspath_prepend(str(tmp_path / "libs"))

    def digest(name, factor, version="1.0"):
        for old in (tmp_path / "libs").glob("*"):
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        for module in ("installed_here", "of_the_user"):
            path = tmp_path / "libs" / module / "parts.py"
            path.parent.mkdir(parents=True)
            (path.parent / "__init__.py").write_text("")
            path.write_text(f"def loss(x):\n    return x * {factor}\n")
            for part in (module, f"{module}.parts"):
                sys.modules.pop(part, None)
        record = tmp_path / "libs" / f"pack-{version}.dist-info" / "RECORD"
        record.parent.mkdir()
        record.write_text("installed_here/__init__.py,,\ninstalled_here/parts.py,,\n")
        for cached in (digests.is_installed, digests._recorded):
            cached.cache_clear()
        invalidate_caches()
        return digest_of_code(import_module(f"{name}.parts").loss)

    one = digest("installed_here", 2)
    assert one == digest("installed_here", 22) != digest("installed_here", 2, "1.1")
    assert digest("of_the_user", 2) != digest("of_the_user", 22)
    for cached in (digests.is_installed, digests._recorded):
        cached.cache_clear()
    del sys.modules["of_the_user"], sys.modules["of_the_user.parts"]  # imported last


def test_a_package_of_another_environment_counts_by_its_version_too(tmp_path, monkeypatch):
    """As where an environment lends the packages of the system's Python."""
    folder = tmp_path / "lib" / "site-packages"
    folder.mkdir(parents=True)
    path = folder / "lent_to_us.py"
    path.write_text("__version__ = '3'\ndef loss(x):\n    return x\n")
    monkeypatch.syspath_prepend(str(folder))
    lent = import_module("lent_to_us")
    before = digest_of_code(lent.loss)
    path.write_text("__version__ = '3'\ndef loss(x):\n    return 2 * x\n")
    assert digest_of_code(reload(lent).loss) == before
    lent.__version__ = "4"
    assert digest_of_code(lent.loss) != before


class Recurrent(nn.Module):
    """A module that holds a layer whose parameters PyTorch keeps a second time, by reference."""

    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(3, 4, batch_first=True)


def test_a_module_with_a_recurrent_layer_has_a_digest():
    module = Recurrent()
    assert digest_of_code(module, "model") == digest_of_code(copy.deepcopy(module), "model")
    assert digest_of_state(module) == digest_of_state(copy.deepcopy(module))


def test_what_a_wrapped_function_its_attributes_and_private_globals_are_counts(user):
    wraps = (
        "import functools, torch\n@functools.wraps(torch.sum)\ndef loss(x):\n    return {} * x\n"
    )
    attribute = "def loss(x):\n    return loss.factor * x\nloss.factor = {}\n"
    private = "__factor = {}\ndef loss(x):\n    return __factor * x\n"
    for source in (wraps, attribute, private):
        assert len({digest_of_code(user(source.format(n)).loss) for n in (2, 3, 2)}) == 2


@pytest.mark.parametrize(
    "base", ["NamedTuple", "dict[int, int]", "list[int]", "float", "Tensor", "functools.partial"]
)
def test_the_class_and_its_members_of_every_kind_count(user, base):
    """The class of a callable value too, and methods that are no plain functions."""
    source = (
        "import functools\nfrom typing import NamedTuple\nfrom torch import Tensor\n"
        "class Made({}):\n    def scaled(self, x, by):\n        return x * by\n"
        "    __call__ = functools.partialmethod(scaled, by={})\n"
    )
    content = "int" if base == "functools.partial" else ""

    def digest(by):
        return digest_of_code(user(f"{source.format(base, by)}made = Made({content})\n").made)

    assert digest(2) == digest(2) != digest(3)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("{'a': 1, 'b': 2}", "{'b': 2, 'a': 1}"), ("dict(a=K).get", "dict(a=1).get"),
        ("[K, 1]", "(K, 1)"), ("{K}", "frozenset([K])"), ("True", "1"),
        ("types.MappingProxyType({1: K})", "types.MappingProxyType({1: 1})"),
        ("collections.defaultdict(lambda: K)", "collections.defaultdict(lambda: 1)"),
        ("np.ma.masked_less([1, K], K)", "np.ma.masked_less([1, K], 1)"),
        ("re.compile('a').match", "re.compile('b').match"), ("staticmethod(str)", "str"),
    ],
)  # fmt: skip
def test_values_that_differ_in_order_kind_or_what_they_are_bound_to_differ(user, one, other):
    source = "import collections, re, types\nimport numpy as np\nK = 2\nclass Held:\n    made = {}"
    first, second, again = (user(source.format(made)).Held for made in (one, other, one))
    assert digest_of_code(first) == digest_of_code(again) != digest_of_code(second)


def test_states_of_the_global_generators_do_not_count(user):
    source = "import random\nfrom numpy.random import normal\nmade = [random.gauss, normal]\n"
    here = user(source)
    before = digest_of_code(here.made)
    for draw in here.made:
        draw(0.0, 1.0)
    assert digest_of_code(here.made) == before


class Tied(nn.Module):
    """Three equal layers, some of which have one weight."""

    def __init__(self, *pairs, scale=None, alone=1.0):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(3))
        self.register_buffer("kept", torch.ones(1), persistent=False)
        self.alone = [nn.Linear(1, 1)]  # no child
        for tensor in [*self.parameters(), *self.alone[0].parameters()]:
            nn.init.constant_(tensor, alone if tensor.shape[-1] == 1 else 1.0)
        for one, other in pairs:
            self.layers[other].weight = self.layers[one].weight
        if scale is not None:
            (self if scale > 2 else self.layers[1].weight)._hook_scale = scale


def test_tied_weights_their_attributes_and_modules_that_are_no_children_count():
    made = [(), ((0, 1),), ((0, 2),), ((1, 2),), ((0, 1), (0, 2))]
    several = [Tied(*pairs, scale=scale) for pairs in made for scale in (None, 1, 2, 3, 4)]
    several.append(Tied(alone=2.0))
    digests_of_all = {digest_of_part(module) for module in several}
    assert len(digests_of_all) == len(several)
    assert digests_of_all == {digest_of_part(copy_module(module)) for module in several}
    changed = Tied()
    changed.kept += 1.0
    assert digest_of_part(changed) not in digests_of_all
