"""Test of the table of Caffe2's own tests: it is consistent, and docs/caffe2.md has its sums."""

import pytest

from caffe2_suite import outcomes

PAGE = outcomes.HERE.parent.parent / "docs" / "caffe2.md"


def test_each_exception_is_an_expected_test_with_a_kind_and_a_reason():
    known = set(outcomes.expected())
    for test, (kind, reason) in outcomes.exceptions().items():
        assert test in known, test
        assert kind in outcomes.KINDS, test
        assert len(reason) > 20, test


def test_at_least_97_percent_of_the_tests_in_scope_are_expected_to_pass():
    kinds = [kind for kind, _ in outcomes.exceptions().values()]
    scope = len(outcomes.expected()) - kinds.count("out of scope")
    assert (scope - (len(kinds) - kinds.count("out of scope"))) / scope >= 0.97


def test_the_page_of_caffe2_has_the_sums():
    tests, excused = outcomes.expected(), outcomes.exceptions()
    scope = len(tests) - [kind for kind, _ in excused.values()].count("out of scope")
    sums = f"{len(tests) - len(excused):,} of the {scope:,} tests in scope"
    assert sums in " ".join(PAGE.read_text(encoding="utf-8").split())


def test_the_page_of_tests_can_be_made():
    """It has each group, and each exception with its reason."""
    page = outcomes.page()
    for test, (_, reason) in outcomes.exceptions().items():
        assert f"| {outcomes.group_of(test.file)} |" in page
        assert f"`{test.file}`" in page and reason in page, test


@pytest.mark.parametrize(
    "file, group",
    [
        ("operator_test/gru_test.py", "recurrent nets"),
        ("operator_test/conv_test.py", "operators"),
        ("models/resnet_test.py", "memory sharing"),
        ("core_test.py", "graphs and workspaces"),
        ("layers_test.py", "layer models"),
    ],
)
def test_group_of(file, group):
    assert outcomes.group_of(file) == group
