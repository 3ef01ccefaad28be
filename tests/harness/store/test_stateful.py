from hypothesis import settings

from tests.harness.store.stateful import Histories

TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=25, stateful_step_count=20)
