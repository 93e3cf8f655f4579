"""A class that is misspelt is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tercet.load.classes import check_known, check_used
from tercet.load.principals import Principals, Tenant
from tercet.load.slo import Slo
from tercet.load.workload import Workload
from tercet.load.workload_error import WorkloadError

KNOWN = ("interactive", "batch")
LIMIT = Slo(ttft_s=1.0)


def trace(folder: Path, traffic_class: str) -> str:
    path = folder / "trace.csv"
    path.write_text(f"at_s,prompt_tokens,max_tokens,traffic_class\n0,1,1,{traffic_class}\n")
    return str(path)


def test_what_the_server_does_not_have_is_told_by_its_field(tmp_path: Path) -> None:
    for field, workload in (
        ("classes", Workload(requests=1, principals=Principals(classes={"batch": 1.0, "nix": 1.0}))),
        ("tenants", Workload(requests=1, principals=Principals((Tenant("a", traffic_class="nix"),)))),
        ("trace", Workload(trace=trace(tmp_path, "nix"))),
        ("slo", Workload(requests=1, slo={"nix": LIMIT, "": LIMIT})),
    ):
        with pytest.raises(WorkloadError, match="the server has no class 'nix'; it has batch, interactive") as told:
            check_known(workload, KNOWN)
        assert told.value.field == field


def test_limits_of_a_class_that_no_request_names_are_told(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="slo: no request is of class 'batch'"):
        check_used(Workload(requests=1, slo={"": LIMIT, "batch": LIMIT}))
    for workload in (
        Workload(requests=1, slo={"batch": LIMIT}, principals=Principals(classes={"batch": 1.0})),
        Workload(requests=1, slo={"batch": LIMIT}, principals=Principals((Tenant("a", traffic_class="batch"),))),
        Workload(trace=trace(tmp_path, "batch"), slo={"batch": LIMIT}),
        Workload(requests=1, slo={"": LIMIT}),
    ):
        check_used(workload)
        check_known(workload, KNOWN)
