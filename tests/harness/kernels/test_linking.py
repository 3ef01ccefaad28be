"""A function that only kernels call has no machine code, and a constant makes no copy of it."""

import numba

from harness.kernels.compiling import callable_part, kernel


@callable_part
def leaf(value, by):
    return value * by


@callable_part
def branch(value):
    return leaf(value, 2) + leaf(value, 3)


@callable_part
def tree(value):
    return branch(value) + leaf(value, 5)


def test_functions_that_are_called_on_several_ways_are_linked_once_each(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))  # a kernel that is kept is not compiled
    low = callable_part(lambda value, by: value * by)
    middle = callable_part(lambda value: low(value, 2) + low(value, 3))
    high = callable_part(lambda value: middle(value) + low(value, 5))
    assert high(10) == 100
    assert [len(function.overloads) for function in (low, middle, high)] == [1, 1, 1]


def test_a_function_compiled_by_others_can_call_them():
    @numba.njit
    def foreign(value):
        return tree(value) + 1

    assert foreign(10) == 101


def test_a_kernel_may_call_what_python_calls_too():
    @kernel
    def outermost(value):
        return leaf(value, 2)

    assert outermost(4) == 8
    assert leaf(4, 2) == 8
    assert leaf(0.5, 4) == 2.0
