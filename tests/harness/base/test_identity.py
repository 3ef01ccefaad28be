import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.base.seeds import canonical, identity, plain

leaves = (
    st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
configs = st.dictionaries(
    st.text(max_size=3), leaves | st.dictionaries(st.text(max_size=3), leaves)
)


@given(configs)
@settings(max_examples=50)
def test_the_order_of_keys_does_not_matter(config):
    assert identity(dict(reversed(config.items()))) == identity(config)


@given(configs, st.text(max_size=3), leaves)
@settings(max_examples=50)
def test_any_other_value_is_another_run(config, key, value):
    changed = config | {key: value}
    same = key in config and repr(config[key]) == repr(value)
    assert (identity(changed) == identity(config)) == same


def test_identity_is_pinned_so_that_old_stores_stay_readable():
    config = {"seed": 0, "rate": 0.1, "layers": (429, 2048), "name": "π"}
    assert canonical(config) == '{"layers":[429,2048],"name":"\\u03c0","rate":0.1,"seed":0}'
    assert identity(config) == "40c62eb54354d85935ced5d1d1110903eb8579b8ab2efbed1ee3fd72d5639a8d"


def test_numpy_scalars_and_tuples_are_the_plain_values_they_hold():
    assert plain({"a": np.float64(0.5), "b": (np.int32(1),)}) == {"a": 0.5, "b": [1]}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_without_canonical_text_is_refused(value):
    with pytest.raises(ValueError, match=r"config\.rate\[0\]"):
        identity({"rate": [value]})


@pytest.mark.parametrize("value", [object(), b"bytes", {1: "a"}, {1, 2}])
def test_what_is_not_data_is_refused(value):
    with pytest.raises(TypeError, match=r"config\.x"):
        identity({"x": value})
