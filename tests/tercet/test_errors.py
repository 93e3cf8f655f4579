import inspect

import grpc
import pytest

from tercet import errors

CONCRETE = sorted(errors.request_error_types().values(), key=lambda cls: cls.reason)


def _tree(cls: type) -> list[type]:
    return [cls, *(item for sub in cls.__subclasses__() for item in _tree(sub))]


@pytest.mark.parametrize("cls", CONCRETE, ids=lambda cls: cls.reason)
def test_every_request_error_goes_in_band_and_back(cls):
    back = errors.from_reason(cls.reason, "m", {"k": "v"}, 0.5)
    assert type(back) is cls
    assert (back.message, back.metadata, back.retry_after_s) == ("m", {"k": "v"}, 0.5)


def test_nothing_is_unmapped():
    """By reflection: each class below RequestError has a reason of its own and a code that is an error."""
    below = [
        cls
        for cls in _tree(errors.RequestError)
        if cls is not errors.RequestError and cls.__module__ == errors.__name__
    ]
    public = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, errors.RequestError)]
    assert set(public) - {errors.RequestError} == set(below)
    assert len({cls.reason for cls in below}) == len(below)
    for cls in below:
        assert "reason" in vars(cls), f"{cls.__name__} inherits the reason of its parent"
        assert cls.code is not grpc.StatusCode.OK
        assert cls.reason == cls.reason.upper()
        assert errors.request_error_types()[cls.reason] is cls


def test_the_tree_in_the_docstring_is_the_tree():
    documented = errors.__doc__
    for cls in _tree(errors.TercetError):
        if cls.__module__ == errors.__name__:
            assert cls.__name__ in documented
    for cls in CONCRETE:
        assert cls.reason in documented
        assert cls.code.name in documented


def test_an_unknown_reason_is_an_engine_fault_that_keeps_it():
    error = errors.from_reason("FROM_THE_FUTURE", "hm", {"k": "v"})
    assert isinstance(error, errors.EngineFaultError)
    assert error.metadata == {"k": "v", "unknown_reason": "FROM_THE_FUTURE"}


def test_config_error_names_its_key():
    error = errors.ConfigError("worker.port", "is odd")
    assert error.key == "worker.port"
    assert str(error) == "worker.port: is odd"
