from scheduler.claims import Claims


def test_the_first_address_keeps_the_worker_until_it_lets_go() -> None:
    claims = Claims()
    assert claims.claim("w", "a") == "a"
    assert claims.claim("w", "a") == "a"
    assert claims.claim("w", "b") == "a"
    assert not claims.free("w")
    claims.release("b")
    assert not claims.free("w")
    claims.release("a")
    assert claims.free("w")
    assert claims.claim("w", "b") == "b"


def test_an_address_has_one_worker() -> None:
    claims = Claims()
    claims.claim("old", "a")
    claims.claim("new", "a")
    assert claims.free("old")
    assert claims.claim("old", "b") == "b"
