"""Settings with limits, the text files that they are read from, and quantities in SI units.

A settings class derives from `Spec`, is a frozen dataclass, and describes each field with
`setting`. `build` turns a TOML table into an instance; every mistake (an unknown or missing key, a
wrong type, a value out of range, a number that is not finite) becomes one `UserError` line that
names the file, the dotted key, the value and the allowed values. An instance built in Python is
checked by the same rules.

Example:
    >>> @dataclass(frozen=True)
    ... class Wire(Spec):
    ...     latency_s: float = setting(at_least=0.0)
    >>> build(Wire, {"latency_s": 1e-6}, "wire.toml")
    Wire(latency_s=1e-06)

Settings of one physical quantity share one range (`rate`, `duration`, `size`, `ratio`), so that a
typing slip cannot give an endless duration. Input files are regular text files of bounded size.
"""

from __future__ import annotations

import inspect
import math
import re
import stat
import tomllib
import types
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from harness.base.errors import UserError, name_error

_Table = Mapping[str, object]

_Built = TypeVar("_Built")

_LIMITS = "lagbench.limits"

KIND = "is"
"""Key of a table that names the class it describes."""

_TYPE_NAMES = {
    Any: "a name",
    float: "a number",
    int: "a whole number",
    str: "a string",
    bool: "true or false",
}


@dataclass(frozen=True)
class Limits:
    """Allowed values of one field; they apply to each element if the field is a list.

    Attributes:
        above, at_least, at_most: bounds of a number.
        one_of: the allowed strings.
    """

    above: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    one_of: tuple[str, ...] | None = None

    def describe(self) -> str:
        """The allowed values in words, e.g. ``a number above 0``."""
        words = {"above": self.above, "at least": self.at_least, "at most": self.at_most}
        return " and ".join(f"{word} {edge:g}" for word, edge in words.items() if edge is not None)

    def admits(self, value: float) -> bool:
        """Whether a number is within the limits (nan and infinities never are)."""
        return (
            (isinstance(value, int) or math.isfinite(value))
            and (self.above is None or value > self.above)
            and (self.at_least is None or value >= self.at_least)
            and (self.at_most is None or value <= self.at_most)
        )


def setting(
    default: object = MISSING,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    one_of: Sequence[str] | None = None,
) -> Any:
    """A dataclass field with limits; without a default the key is required.

    Args:
        default: the value when the key is absent (must be immutable).
        above: numbers must be greater than this.
        at_least: numbers must not be less than this.
        at_most: numbers must not be greater than this.
        one_of: the allowed strings.
    """
    limits = Limits(above, at_least, at_most, None if one_of is None else tuple(one_of))
    return field(default=cast(Any, default), metadata={_LIMITS: limits})


_hints_of = cache(get_type_hints)
"""The types of a class's fields; they never change."""


class Contradiction(UserError):  # noqa: N818 (what is wrong with settings)
    """Settings break a rule across fields: their class, the key, and the mistake."""

    def __str__(self) -> str:
        return "{}.{}: {}".format(*self.args)


@dataclass(frozen=True)
class Spec:
    """Base of all settings classes: checks its fields, and converts itself to plain data."""

    def __new__(cls, *_: Any, **named: Any) -> Self:
        """Refuses a name that no field has, with the nearest one."""
        allowed = [entry.name for entry in fields(cls) if entry.init] if named else []
        for name in named.keys() - {*allowed}:
            raise name_error(cls.__name__, name, allowed)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        hints = _hints_of(type(self))
        for entry in fields(self):
            value = getattr(self, entry.name)
            if not _holds_specs(value):
                key = f"{type(self).__name__}.{entry.name}"
                checked = _convert(value, hints[entry.name], limits_of(entry), key)
                object.__setattr__(self, entry.name, checked)
        trouble = self.trouble()
        if trouble is not None:
            raise Contradiction(type(self).__name__, *trouble)

    def trouble(self) -> tuple[str, str] | None:
        """The first broken rule across fields: (key, mistake and allowed values); else None."""
        return None

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers; equal specs give equal data."""
        return {entry.name: _plain(getattr(self, entry.name)) for entry in fields(self)}


def default_of(entry: Field[Any]) -> Any:
    """The default of a field; `MISSING` where it has none."""
    has_factory = entry.default_factory is not MISSING
    return cast(Any, entry.default_factory)() if has_factory else entry.default


def load_spec(kind: type[_Built], path: Path) -> _Built:
    """Read a settings class from a TOML file.

    Raises:
        UserError: the file cannot be read, or any setting in it is wrong.
    """
    return build(kind, load_toml(path), str(path))


def load_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        UserError: the file cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(text_of(path))
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: not valid TOML: {error}") from error
    except (ValueError, RecursionError) as error:  # e.g. an integer of thousands of digits
        raise UserError(f"{path}: not valid TOML: {str(error).splitlines()[0]}") from error


DEVICES = ("auto", "cpu", "cuda")


def check_device(choice: str, name: str = "--device") -> str:
    """Check the choice of a device without importing torch, and return it.

    Args:
        choice: the device.
        name: option or argument, for the message.

    Raises:
        UserError: an unknown choice; a device that is missing here passes.
    """
    if choice not in DEVICES:
        raise name_error(name, choice, DEVICES)
    return choice


def read_value(text: str) -> object:
    """Parse a value in TOML; a word without quotes, which a shell would remove, is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        return text


@contextmanager
def name_keys(place: str) -> Generator[None]:
    """Prefix an error that begins with a key by the place of the key, unless it has one.

    Raises:
        UserError: the error of the block, prefixed.
    """
    try:
        yield
    except UserError as error:
        # What a key names may have been read from another place, and its error then says so.
        file, message = place.partition(": ")[0], str(error)
        raise UserError(message if message.startswith(file) else place + message) from error


def build(
    spec: type[_Built], table: object, where: str, key: str = "", named: Callable[[str], str] = str
) -> _Built:
    """An instance of ``spec`` from a TOML table.

    Where a field may be one of several classes, the table's key ``is`` names which of those that
    are imported; without it, the class of the field's default, if there is one.

    Args:
        spec: the settings class: a `Spec`, or any dataclass.
        table: a parsed TOML value; anything but a table is refused.
        where: the file or option, for messages.
        key: the dotted key of this table inside the file, empty at the top.
        named: from the name of a field to that of its key in this table, for messages.

    Raises:
        UserError: any mistake, in one line.
    """
    if not isinstance(table, Mapping):
        raise UserError(f"{where}: {key}: {_show(table)} is not allowed; allowed: a table")
    values = dict(cast(_Table, table))
    if KIND in values and values.pop(KIND) not in _names_of(spec):
        raise UserError(f"{where}: {_join(key, KIND)}: not allowed; allowed: {spec.__name__}")
    allowed = {entry.name: entry for entry in fields(cast(Any, spec)) if entry.init}
    for name in values:
        if name not in allowed:
            raise name_error(f"{where}: {'key in ' + key if key else 'key'}", str(name), allowed)
    hints = _hints_of(spec)
    built = {
        name: _value(entry, values, hints[name], where, _join(key, named(name)))
        for name, entry in allowed.items()
        if name in values or _refuse_missing(entry, where, _join(key, named(name)), hints[name])
    }
    try:
        return spec(**built)
    except Contradiction as error:
        _, name, mistake = error.args
        raise UserError(f"{where}: {_join(key, name)}: {mistake}") from error
    except UserError as error:  # from `__post_init__`: settings that contradict each other
        raise UserError(f"{where}: {f'{key}: ' if key else ''}{error}") from error


def _value(entry: Field[Any], values: _Table, kind: Any, where: str, key: str) -> object:
    value = _add_default_class(entry, values[entry.name])
    return _convert(value, kind, limits_of(entry), f"{where}: {key}", where, key)


def _add_default_class(entry: Field[Any], value: object) -> object:
    """Add the class of the field's default to a table that names no class."""
    default = default_of(entry)
    if isinstance(value, Mapping) and is_dataclass(default) and KIND not in value:
        return {KIND: type(default).__name__, **cast(_Table, value)}
    return cast(object, value)


def _refuse_missing(entry: Field[Any], where: str, key: str, kind: Any) -> bool:
    if entry.default is MISSING and entry.default_factory is MISSING:
        raise UserError(
            f"{where}: {key}: missing; needed: {describe_allowed(kind, limits_of(entry))}"
        )
    return False


def _convert(
    value: object, kind: Any, limits: Limits, label: str, where: str = "", key: str = ""
) -> object:
    """Convert ``value`` to the type ``kind``, or raise the `UserError` that names both."""
    if kind is Any or isinstance(kind, TypeVar):
        return value
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        inner = _select_type(value, arguments, label)
        return _convert(value, inner, limits, label, where, key)
    if isinstance(origin, type) and is_dataclass(origin):  # of a class for one of its parts
        kind = origin
        if isinstance(value, Mapping):
            return cast(Any, origin).from_table(arguments[0], value, where, key)
    if isinstance(kind, type) and is_dataclass(kind):
        return value if isinstance(value, kind) else build(kind, value, where, key)
    # Builtins have subclasses too, dozens in every library, which are no choices of a field.
    is_plain = isinstance(kind, type) and kind.__module__ == "builtins"
    if isinstance(kind, type) and not is_plain and isinstance(value, kind):
        return value
    if isinstance(kind, type) and not is_plain and (below := dataclasses_below(kind)):
        return _convert(value, _select_type(value, below, label), limits, label, where, key)
    if origin is Literal:
        return _scalar(value, str, Limits(one_of=arguments), label)
    if origin is tuple and isinstance(value, Sequence) and not isinstance(value, str):
        items = list(cast(Sequence[object], value))
        if arguments[-1] is not Ellipsis and len(items) != len(arguments):
            allowed = describe_allowed(kind, limits)
            raise UserError(f"{label}: {_show(items)} is not allowed; allowed: {allowed}")
        return tuple(
            _convert(v, arguments[0], limits, f"{label}[{i}]", where, f"{key}[{i}]")
            for i, v in enumerate(items)
        )
    if origin is dict and isinstance(value, Mapping):
        pairs = cast(_Table, value).items()
        return {
            k: _convert(v, arguments[1], limits, _join(label, k), where, _join(key, k))
            for k, v in pairs
        }
    return _scalar(value, kind, limits, label)


def dataclasses_below(kind: type[Any]) -> tuple[Any, ...]:
    """All dataclasses below a class that is none itself, at any depth, each once; no bases."""
    classes: list[type[Any]] = []
    waiting = [kind]
    while waiting:
        below = waiting.pop().__subclasses__()
        classes += [sub for sub in below if is_dataclass(sub) and not inspect.isabstract(sub)]
        waiting += below
    return tuple(dict.fromkeys(classes))


def _concrete(kind: Any) -> tuple[Any, ...]:
    """The dataclasses below a class that is none itself; any other type unchanged."""
    if not isinstance(kind, type) or is_dataclass(cast(object, kind)):
        return cast(tuple[Any, ...], (kind,))
    return dataclasses_below(cast(type[Any], kind)) or cast(tuple[Any, ...], (kind,))


def _select_type(value: object, kinds: tuple[Any, ...], label: str) -> Any:
    """The type among several that a value is converted to: the class that its table names."""
    possible = [option for kind in kinds if kind is not type(None) for option in _concrete(kind)]
    classes = {cast(type, kind).__name__: kind for kind in possible if is_dataclass(kind)}
    second = {name: kind for kind in classes.values() for name in _names_of(cast(type, kind))}
    if len(possible) == 1 or not classes:
        suitable = [option for option in possible if _suits(value, option)]
        return type(value) if type(value) in suitable else [*suitable, possible[0]][0]
    if type(value) in possible:
        return type(value)
    if not isinstance(value, Mapping):
        raise UserError(f"{label}: {_show(value)} is not allowed; allowed: a table")
    name = cast(_Table, value).get(KIND)
    if not isinstance(name, str):
        mistake = "missing" if name is None else f"{_show(name)} is not allowed"
        raise UserError(f"{label}.{KIND}: {mistake}; allowed: one of {', '.join(classes)}")
    if name not in second | classes:
        raise name_error(f"{label}.{KIND}", name, classes)
    return (second | classes)[name]


def _names_of(spec: type) -> tuple[str, ...]:
    """Allowed values of a table's ``is``: the class's name, and its class attribute ``name``.

    Options name a protocol by that attribute, too.
    """
    is_field = any(entry.name == "name" for entry in fields(cast(Any, spec)))
    second = None if is_field else getattr(spec, "name", None)
    return (spec.__name__, *([second] if isinstance(second, str) else []))


def _suits(value: object, kind: Any) -> bool:
    """Whether a value other than a table may be of a type."""
    if get_origin(kind) is tuple:
        return isinstance(value, Sequence) and not isinstance(value, str)
    return type(value) is kind or (kind is float and type(value) is int)


def _scalar(value: object, kind: Any, limits: Limits, label: str) -> object:
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        value = _as_float(value)
    wrong_type = type(value) is not kind
    out_of_range = isinstance(value, int | float) and not limits.admits(value)
    if wrong_type or out_of_range:
        raise UserError(
            f"{label}: {_show(value)} is not allowed; allowed: {describe_allowed(kind, limits)}"
        )
    if limits.one_of is not None and value not in limits.one_of:
        raise name_error(label, str(value), limits.one_of)
    return value


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def describe_allowed(kind: Any, limits: Limits) -> str:
    """The allowed values of a field in words, e.g. ``a number above 0``."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        parts = (describe_allowed(part, limits) for part in arguments if part is not type(None))
        return " or ".join(dict.fromkeys(parts))
    if origin is tuple:
        count = "" if arguments[-1] is Ellipsis else f" of {len(arguments)}"
        return f"a list{count}, each entry {describe_allowed(arguments[0], limits)}"
    if origin is Literal:
        return "one of " + ", ".join(arguments)
    if limits.one_of is not None:
        return "one of " + ", ".join(limits.one_of)
    return " ".join([_TYPE_NAMES.get(kind, "a table"), limits.describe()]).strip()


ENTRY = r"^    (\w[\w, ]*): (.*(?:\n {5,}.*)*)"
"""An entry of a docstring: names, and their description over one or more lines."""


def meanings(documented: type) -> dict[str, str]:
    """Descriptions of a class's fields from its and its bases' docstrings, each on one line."""
    descriptions: dict[str, str] = {}
    for kind in reversed(documented.__mro__):
        descriptions |= meanings_in(inspect.cleandoc(kind.__dict__.get("__doc__") or ""))
    return descriptions


def meanings_in(docstring: str) -> dict[str, str]:
    """Descriptions by name under ``Attributes`` or ``Args`` of a docstring, each on one line."""
    _, *section = re.split(r"^(?:Attributes|Args):\n", docstring, maxsplit=1, flags=re.MULTILINE)
    return {
        name.strip(): re.sub(r"\s+", " ", description).replace("``", "`")
        for names, description in re.findall(ENTRY, "".join(section), flags=re.MULTILINE)
        for name in names.split(",")
    }


def find_changed(table: Any, *names: str) -> list[str]:
    """The fields among ``names`` of a dataclass that are not at their defaults."""
    declared = {entry.name: entry for entry in fields(table)}
    return [name for name in names if getattr(table, name) != default_of(declared[name])]


def check_order(spec: Spec, low: str, high: str) -> tuple[str, str] | None:
    """The broken rule, for `Spec.trouble`, if setting ``low`` is above ``high``; else None."""
    least, most = getattr(spec, low), getattr(spec, high)
    if least <= most:
        return None
    return low, f"{least:g} is above {high}, {most:g}; allowed: up to it"


def limits_of(entry: Field[Any]) -> Limits:
    """The limits that `setting` declared for a field."""
    return entry.metadata.get(_LIMITS, Limits())


def _holds_specs(value: object) -> bool:
    """Whether a value is or contains a `Spec`, which has checked itself already."""
    if isinstance(value, Mapping):
        return any(isinstance(v, Spec) for v in cast(_Table, value).values())
    if isinstance(value, tuple):
        return any(isinstance(v, Spec) for v in cast(tuple[object, ...], value))
    return isinstance(value, Spec)


def _plain(value: object) -> Any:
    if isinstance(value, Spec):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in cast(_Table, value).items()}
    if isinstance(value, tuple):
        return [_plain(v) for v in cast(tuple[object, ...], value)]
    return value


def _join(key: str, name: str) -> str:
    """A dotted key; a name that needs quotes in TOML is quoted."""
    safe = name if re.fullmatch(r"[\w.\[\]-]+", name) and len(name) <= 60 else _show(name)
    return f"{key}.{safe}" if key else safe


def _show(value: object) -> str:
    """A value as in TOML, on one line of at most 60 characters."""
    try:
        text = repr(value).lower() if isinstance(value, bool) else repr(value)
    except ValueError:  # Python writes out no integer of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= 60 else text[:57] + "..."


_STEPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))

_SMALL = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def format_quantity(value: float, unit: str) -> str:
    """A quantity with a decimal prefix.

    Example:
        >>> format_quantity(6e9, "B/s")
        '6 GB/s'
    """
    for size, prefix in _STEPS:
        if abs(value) >= size:
            return f"{value / size:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


def format_count(count: float, noun: str) -> str:
    """A number with its noun, in the plural unless it is 1.

    Example:
        >>> format_count(1, "pass"), format_count(3.0, "pass"), format_count(2, "seed")
        ('1 pass', '3 passes', '2 seeds')
    """
    ending = "es" if noun.endswith(("s", "ch")) else "s"
    return f"{count:g} {noun}{'' if count == 1 else ending}"


def format_seconds(seconds: float) -> str:
    """A duration in the largest unit that it fills.

    Example:
        >>> format_seconds(0.0586), format_seconds(7200), format_seconds(0)
        ('58.6 ms', '2 h', '0 s')
    """
    if abs(seconds) >= 3600.0:
        return f"{seconds / 3600.0:.4g} h"
    if abs(seconds) >= 60.0:
        return f"{seconds / 60.0:.4g} min"
    for size, unit in _SMALL:
        if abs(seconds) >= size:
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds:.4g} s"


def round_to(value: float, digits: int, width: float = math.inf) -> float:
    """A value with so many significant digits, or up to six if its interval has a small width.

    Example:
        >>> round_to(1.4931, 2), round_to(1.4931, 2, width=0.7), round_to(1.4931, 2, width=0.006)
        (1.5, 1.5, 1.493)
    """
    if value and 0.0 < width < math.inf:
        places = math.floor(math.log10(abs(value))) - math.floor(math.log10(width)) + 1
        digits = max(digits, min(places, 6))
    return float(f"{value:.{digits}g}")


MOST_BYTES = 16 * 2**20


def text_of(path: str | Path, where: str = "") -> str:
    """The text of a file, without a byte order mark.

    Args:
        path: the file.
        where: file or key that names it, for messages; empty if the user named it directly.

    Raises:
        UserError: it cannot be read, is no regular file, is larger than `MOST_BYTES`, or is not
            text in UTF-8.
    """
    place = str(path) if len(str(path)) <= 200 else f"{str(path)[:197]}..."
    name = f"{where}: {place!r}" if where else place
    try:
        status = Path(path).stat()  # before opening: a pipe without a writer would block forever
        if not stat.S_ISREG(status.st_mode):
            raise UserError(f"{name}: cannot read the file (not a regular file)")
        if status.st_size > MOST_BYTES:
            size = f"{status.st_size / 2**20:.0f} MiB; allowed: at most {MOST_BYTES >> 20} MiB"
            raise UserError(f"{name}: cannot read the file (it has {size})")
        return Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"{name}: cannot read the file ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{name}: not a text file in UTF-8") from error
    except ValueError as error:  # a null byte in the name
        raise UserError(f"{name!r}: cannot read the file ({error})") from error


LEAST_RATE, GREATEST_RATE = 1e-6, 1e21

GREATEST_SIZE = 1e21

GREATEST_DURATION_S = 1e9

GREATEST_RATIO = 1e6


def rate(default: object = None) -> Any:
    """A field in bytes or FLOP a second; the default None means infinitely fast."""
    return setting(default, at_least=LEAST_RATE, at_most=GREATEST_RATE)


def duration(default: object = 0.0) -> Any:
    """A field in seconds, up to `GREATEST_DURATION_S` (some thirty years)."""
    return setting(default, at_least=0.0, at_most=GREATEST_DURATION_S)


def size(default: object = MISSING) -> Any:
    """A field in bytes or floating-point operations."""
    return setting(default, at_least=0.0, at_most=GREATEST_SIZE)


def ratio(default: object = 1.0, *, at_least: float = 1.0 / GREATEST_RATIO) -> Any:
    """A field for a dimensionless factor."""
    return setting(default, at_least=at_least, at_most=GREATEST_RATIO)


def check_settings_class(name: str, part: object) -> None:
    """Reject an object whose class is no dataclass: its fields would be missing in identities.

    Raises:
        UserError: its class is no dataclass.
    """
    if not is_dataclass(part):
        kind = type(part).__qualname__
        mistake = (
            f"{kind} is no dataclass; allowed: with @dataclass(frozen=True) above class {kind},"
            " and its settings as fields in place of __init__"
        )
        raise UserError(f"{name}: {mistake}")
