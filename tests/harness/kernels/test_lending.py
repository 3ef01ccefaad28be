"""Named tuples lent to compiled functions: their fields at any depth, and writing there."""

from typing import Any, NamedTuple

import numpy as np

from harness.kernels.compiling import callable_part, kernel


class Inner(NamedTuple):
    rows: Any
    flag: bool
    nothing: Any


class Outer(NamedTuple):
    scale: float
    left: Inner
    right: Inner
    count: int


def outer(nothing=None):
    left, right = (Inner(np.arange(3.0) + place, place == 0, nothing) for place in (0, 10))
    return Outer(0.5, left, right, 7)


@callable_part
def of_inner(inner, place):
    return inner.rows[place] + (100.0 if inner.flag else 0.0)


@callable_part
def chosen(state, right):
    return state.right if right else state.left


@callable_part
def figures(state, place):
    state.left.rows[0] = state.scale
    both = of_inner(state.left, place), of_inner(state.right, place)
    return both[0], both[1], state.count, chosen(state, place == 1).rows[2]


def test_fields_are_those_of_the_tuple_and_writing_reaches_its_arrays():
    state = outer()
    assert figures(state, 0) == (100.5, 10.0, 7, 2.0)
    assert state.left.rows[0] == 0.5
    assert figures(state, 1) == (101.0, 11.0, 7, 12.0)


def test_a_kernel_of_parts_lends_what_it_has():
    @kernel
    def of_parts(state, place):
        return figures(state, place)

    assert of_parts(outer(), 1) == figures(outer(), 1)


def test_what_is_none_is_not_compiled():
    @callable_part
    def of_nothing(nothing):
        if nothing is None:
            return 0.0
        return nothing.rows[0]

    @callable_part
    def through(state):
        return of_nothing(state.left.nothing)

    assert through(outer()) == 0.0
    assert through(outer(Inner(np.array([3.0]), True, None))) == 3.0
