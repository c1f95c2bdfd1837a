"""Test of the table of Caffe2's own tests: it is consistent, and its page is the one in docs/."""

import pytest

from caffe2_suite import outcomes

PAGE = outcomes.HERE.parent.parent / "docs" / "caffe2_tests.md"


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


def test_the_page_is_what_the_table_says():
    assert PAGE.read_text(encoding="utf-8") == outcomes.page(), (
        "docs/caffe2_tests.md is not that of expected.tsv and exceptions.tsv: run `make caffe2-tests-page`"
    )


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
