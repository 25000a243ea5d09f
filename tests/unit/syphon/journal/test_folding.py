"""The choice of runs to fold: which of several syphons folds the rows of a run that another process wrote."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.syphon.journal.folding import OtherRun, runs_to_fold

DONE = OtherRun("done", is_done=True, is_over=True, folds=True)
DEAD = OtherRun("dead", is_done=False, is_over=True, folds=True)
#: A run that folds and sorts behind `m`, one that sorts before it, and one of a service without a ledger.
LATER = OtherRun("z", is_done=False, is_over=False, folds=True)
SMALLER = OtherRun("b", is_done=False, is_over=False, folds=True)
SERVICE = OtherRun("a", is_done=False, is_over=False, folds=False)


@pytest.mark.parametrize("exclusive", [False, True])
def test_the_smallest_running_id_folds_all_that_is_over(exclusive: bool) -> None:
    """A service never folds, and a dead run never will: neither is waited for."""
    others = [DONE, SERVICE, DEAD, LATER]
    assert runs_to_fold("m", ["l"], others, exclusive=exclusive) == ["m", "l", "done", "dead"]


@pytest.mark.parametrize(("exclusive", "expected"), [(True, ["m", "l", "done"]), (False, ["m", "l"])])
def test_any_other_folds_what_is_done_where_plans_are_exclusive(exclusive: bool, expected: list[str]) -> None:
    """Its own run and the runs before it, in any case; a run that was killed is left to the smallest id."""
    assert runs_to_fold("m", ["l"], [DONE, DEAD, SMALLER], exclusive=exclusive) == expected


def test_a_run_that_is_done_is_no_rival() -> None:
    """Though its id is the smallest."""
    done = OtherRun("a", is_done=True, is_over=True, folds=True)
    assert runs_to_fold("m", [], [done, DEAD], exclusive=False) == ["m", "a", "dead"]


RUNS = st.lists(
    st.builds(OtherRun, st.text("abcxyz", min_size=1, max_size=3), st.booleans(), st.booleans(), st.booleans()),
    unique_by=lambda run: run.name,
    max_size=6,
)


@given(runs=RUNS, own=st.sampled_from(["m", "n"]), exclusive=st.booleans())
def test_no_run_that_goes_on_is_folded_by_another(runs: list[OtherRun], own: str, exclusive: bool) -> None:
    """And every run folds its own rows."""
    others = [OtherRun(each.name, each.is_done, each.is_over or each.is_done, each.folds) for each in runs]
    folded = runs_to_fold(own, [], others, exclusive=exclusive)
    assert folded[0] == own
    assert set(folded[1:]) <= {each.name for each in others if each.is_over}


@given(names=st.sets(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=6))
def test_where_plans_are_not_exclusive_one_process_folds_a_dead_run(names: set[str]) -> None:
    """Exactly one of all that fold, by its own view of the others."""
    running = [OtherRun(name, is_done=False, is_over=False, folds=True) for name in names]
    folds = [
        "dead" in runs_to_fold(own, [], [DEAD, *(run for run in running if run.name != own)], exclusive=False)
        for own in names
    ]
    assert folds.count(True) == 1
