from reports.provenance import LONG, flat, group_by_keys, split


def test_nested_keys_are_dotted():
    assert flat({"a": {"b": 1, "c": {}}, "d": [1, 2]}) == {"a.b": "1", "a.c": "{}", "d": "[1, 2]"}


def test_what_is_shared_is_told_once_and_the_rest_by_each():
    shared, apart = split([{"a": 1, "b": 1}, {"a": 1, "b": 2, "c": 3}])
    assert shared == {"a": "1"}
    assert apart == [{"b": "1"}, {"b": "2", "c": "3"}]
    assert split([]) == ({}, [])


def test_values_that_differ_only_beyond_what_is_printed_still_differ():
    long = "x" * (2 * LONG)
    shared, apart = split([{"a": long + "1"}, {"a": long + "2"}])
    assert shared == {}
    assert all(len(own["a"]) == LONG for own in apart)


def test_a_list_of_tables_is_entered_by_position():
    stages = [{"minibatch": 4}, {"minibatch": 16}]
    assert flat({"stages": stages}) == {"stages.1.minibatch": "4", "stages.2.minibatch": "16"}


def test_configurations_with_other_keys_are_another_kind_of_run():
    assert group_by_keys([{"a": 1}, {"b": 1}, {"a": 2}]) == [[0, 2], [1]]
