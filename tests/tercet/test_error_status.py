import pytest
from google.rpc import error_details_pb2, status_pb2
from hypothesis import example, given
from hypothesis import strategies as st

from tercet import error_status, errors

CONCRETE = sorted(errors.request_error_types().values(), key=lambda cls: cls.reason)


@pytest.mark.parametrize("cls", CONCRETE, ids=lambda cls: cls.reason)
def test_every_request_error_goes_over_the_wire_and_back(cls):
    sent = cls("what happened", metadata={"one": "1", "field": "stop.strings"}, retry_after_s=2.25)
    status = status_pb2.Status.FromString(error_status.to_status(sent).SerializeToString())
    back = error_status.from_status(status)
    assert type(back) is cls
    assert (back.message, back.metadata, back.retry_after_s) == (sent.message, sent.metadata, 2.25)
    assert status.code == cls.code.value[0]


def test_a_status_of_someone_else_is_none():
    assert error_status.from_status(status_pb2.Status(code=3, message="plain")) is None
    foreign = status_pb2.Status(code=3)
    foreign.details.add().Pack(error_details_pb2.ErrorInfo(reason="QUEUE_FULL", domain="example.com"))
    assert error_status.from_status(foreign) is None


@given(
    st.sampled_from(CONCRETE),
    st.text(max_size=6000),
    st.dictionaries(st.text(max_size=40), st.text(max_size=5000), max_size=6),
    st.none() | st.floats(min_value=-1, max_value=1e6),
)
@example(errors.InvalidFieldError, "😀" * 5000, {}, 1.0)
@example(errors.KvNeverFitsError, "\ud800" * 5000, {f"key {i}": "é" * 300 for i in range(40)}, 1.0)
@example(errors.ModelNotFoundError, "m" * 1024, {"k" * 9000: "v" * 9000, "model": "x" * 9000}, 1.0)
def test_details_stay_under_4_kb_and_keep_the_reason(cls, message, metadata, retry):
    status = error_status.to_status(cls(message, metadata=metadata, retry_after_s=retry))
    assert status.ByteSize() <= error_status.MAX_DETAIL_BYTES
    assert type(error_status.from_status(status)) is cls
    kinds = [detail.type_url for detail in status.details]
    assert len(kinds) == len(set(kinds))


def test_a_field_error_names_its_field_twice_for_two_kinds_of_clients():
    status = error_status.to_status(errors.InvalidFieldError("must be positive", field="sampling.top_p"))
    bad = error_details_pb2.BadRequest()
    assert any(detail.Unpack(bad) for detail in status.details if detail.Is(bad.DESCRIPTOR))
    assert bad.field_violations[0].field == "sampling.top_p"
    assert error_status.from_status(status).metadata["field"] == "sampling.top_p"


@pytest.mark.parametrize(("seconds", "milliseconds"), [(0.0, 0), (-1.0, 0), (2.251, 2251), (0.0000001, 1), (0.0011, 2)])
def test_nobody_is_told_to_come_back_too_early(seconds, milliseconds):
    error = errors.QueueFullError("full", retry_after_s=seconds)
    assert error.retry_after_ms == milliseconds
    back = error_status.from_status(error_status.to_status(error))
    assert back.retry_after_s == milliseconds / 1000
    assert back.retry_after_ms == milliseconds
