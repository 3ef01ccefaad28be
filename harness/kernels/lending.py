# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportPrivateImportUsage=false
"""Named tuples are handed from one compiled function to the next by their address.

numba hands over a tuple by its parts, and an array by seven words. The state of a simulation is
forty arrays in tuples of tuples: 300 words, copied at every call, typed and lowered again in
every function that passes them on. Lent, it is one word. The first function that calls another
keeps the tuple in its frame, which outlives whatever it calls. A lent tuple has the fields of the
tuple; a tuple within it is lent in turn.
"""

from __future__ import annotations

from typing import Any

from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.imputils import impl_ret_borrowed, lower_cast, lower_getattr_generic
from numba.core.typeconv import Conversion
from numba.core.typing.templates import AttributeTemplate
from numba.extending import infer_getattr, register_model

__all__ = ["Lent", "lent"]


class Lent(types.Type):
    """The type of the address of a named tuple of type ``whole``."""

    def __init__(self, whole: Any) -> None:
        self.whole = whole
        super().__init__(f"Lent({whole})")

    @property
    def key(self) -> Any:
        """What tells two such types apart."""
        return self.whole

    def can_convert_from(self, typingctx: Any, other: Any) -> Any:
        """A tuple can be lent."""
        return Conversion.safe if other == self.whole else None


def lent(kind: Any) -> Any:
    """The type as which a compiled function takes a value: lent if it is a named tuple."""
    return Lent(kind) if isinstance(kind, types.BaseNamedTuple) else kind


@register_model(Lent)
class _Address(models.PrimitiveModel):
    def __init__(self, dmm: Any, kind: Lent) -> None:
        super().__init__(dmm, kind, dmm.lookup(kind.whole).get_value_type().as_pointer())


@infer_getattr
class _Fields(AttributeTemplate):
    key = Lent

    def generic_resolve(self, kind: Lent, name: str) -> Any:
        if name not in kind.whole.fields:
            return None
        return lent(kind.whole[kind.whole.fields.index(name)])


@lower_getattr_generic(Lent)
def _field(context: Any, builder: Any, kind: Lent, address: Any, name: str) -> Any:
    place = kind.whole.fields.index(name)
    field, there = kind.whole[place], cgutils.gep_inbounds(builder, address, 0, place)
    if isinstance(field, types.BaseNamedTuple):
        return there
    return impl_ret_borrowed(context, builder, field, builder.load(there))


@lower_cast(types.BaseNamedTuple, Lent)
def _lend(context: Any, builder: Any, kind: Any, lent_kind: Lent, value: Any) -> Any:
    return cgutils.alloca_once_value(builder, value)
