from hypothesis import given
from hypothesis import strategies as st

from tercet.metrics.labels import OTHER, TenantLabels, known

names = st.text("abc", max_size=3)


@given(st.sets(names, max_size=4), st.integers(0, 4), st.lists(names, max_size=60))
def test_there_are_never_more_than_were_allowed(named, most, comers):
    labels = TenantLabels(named, most)
    told = [labels.label(name) for name in comers]
    for name, label in zip(comers, told, strict=True):
        assert label in (name, OTHER)
        if name in named:
            assert label == name
    assert len(set(told) - named - {OTHER}) <= most
    # Once told apart, always.
    assert [labels.label(name) for name in comers if name in set(told)] == [
        name for name in comers if name in set(told)
    ]


def test_ten_thousand_tenants_are_a_few_labels():
    labels = TenantLabels(["alice"], 3)
    told = {labels.label(f"tenant-{index}") for index in range(10_000)}
    assert told == {"tenant-0", "tenant-1", "tenant-2", OTHER}
    assert labels.label("alice") == "alice"


@given(st.text(max_size=40))
def test_what_is_not_known_is_other(value):
    assert known(value, {"STOP", "LENGTH"}) in ("STOP", "LENGTH", OTHER, "")
    assert known("STOP", {"STOP"}) == "STOP"
    assert known("", {"STOP"}) == ""
