from reports.provenance import flat, group_by_keys


def test_nested_keys_are_dotted():
    assert flat({"a": {"b": 1, "c": {}}, "d": [1, 2]}) == {"a.b": "1", "a.c": "{}", "d": "[1, 2]"}


def test_a_list_of_tables_is_entered_by_position():
    stages = [{"minibatch": 4}, {"minibatch": 16}]
    assert flat({"stages": stages}) == {"stages.1.minibatch": "4", "stages.2.minibatch": "16"}


def test_configurations_with_other_keys_are_another_kind_of_run():
    assert group_by_keys([{"a": 1}, {"b": 1}, {"a": 2}]) == [[0, 2], [1]]
