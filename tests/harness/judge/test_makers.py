from harness.judge.builders import DidNotEnd, build_claim
from reproductions.makers import Claims, Exhibits


def test_what_is_declared_stands_also_if_no_run_ended():
    exhibits, claims = Exhibits(), Claims()

    @exhibits.table("x.table", "Rates", ())
    @claims.declare("x.claim", (), "Rates fall with staleness.", "section 2")
    def content(subject, runs):
        raise DidNotEnd
        yield

    claim = build_claim(claims[0], None, {})
    assert (claim.id, claim.statement) == ("x.claim", "Rates fall with staleness.")
    assert (claim.where, claim.verdict) == ("section 2", "unclear")
