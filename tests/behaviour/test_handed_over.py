"""What an end gives back goes to the next call of the lane only if that one needs no more than that."""

from tests.drive import Drive


def test_the_end_of_a_call_lets_no_dearer_one_of_its_lane_in(drive: Drive) -> None:
    drive.key("api", concurrency=2)
    drive.key("tenant")
    drive.send("api", "tenant")
    (other,) = drive.take()
    _, second = drive.send_many(2, "api")
    dear = drive.send(costs={"api": 2})
    (run,) = drive.take()
    (run,) = drive.take(ends=[run])
    assert run.call == second.id
    assert drive.take(ends=[run]) == []
    (run,) = drive.take(ends=[other])
    assert (run.call, drive.held(run)) == (dear.id, {"api": 2})


def test_a_lowered_limit_of_another_key_lets_no_call_follow_the_one_that_ended(drive: Drive) -> None:
    drive.key("api", concurrency=1)
    drive.key("tenant", concurrency=2)
    _, second = drive.send_many(2, "api", "tenant")
    drive.send("tenant")
    run, other = drive.take(3)
    drive.limit("tenant", concurrency=1)
    assert drive.take(ends=[run]) == []
    assert [each.call for each in drive.take(ends=[other])] == [second.id]
