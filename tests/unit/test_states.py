"""The states and their moves: nothing is missing, and nothing leads nowhere."""

from dispatcher.states import DUE, IN_FLIGHT, MOVES, TERMINAL, WAITING, OnLimit, State, diagram


def test_every_state_has_its_moves_each_once_and_to_another_state() -> None:
    assert set(MOVES) == set(State)
    for state, moves in MOVES.items():
        assert moves
        assert len(set(moves)) == len(moves)
        assert state not in moves


def reachable(start: State) -> set[State]:
    seen, left = set[State](), [start]
    while left:
        state = left.pop()
        if state not in seen:
            seen.add(state)
            left += MOVES[state]
    return seen


def test_every_state_can_be_reached_and_left_for_an_end() -> None:
    from_the_send = set[State]().union(*(reachable(state) for state in WAITING))
    assert from_the_send == set(State)
    for state in State:
        assert reachable(state).issuperset(TERMINAL)


def test_only_a_persons_retry_opens_what_has_ended() -> None:
    for state in TERMINAL:
        assert MOVES[state] == (State.AVAILABLE,)


def test_only_what_waits_in_a_lane_starts_or_is_dispatched() -> None:
    starts_from = [state for state, moves in MOVES.items() if State.ACTIVE in moves]
    assert starts_from == [State.AVAILABLE, State.DISPATCHED]
    assert [state for state, moves in MOVES.items() if State.DISPATCHED in moves] == [State.AVAILABLE]


def test_the_kinds_of_states_do_not_overlap() -> None:
    kinds = [*DUE, *IN_FLIGHT, *TERMINAL, State.AVAILABLE, State.PENDING]
    assert sorted(kinds) == sorted(State)


def test_states_are_stored_as_the_open_job_spec_names_them_and_shown_as_people_know_them() -> None:
    own = {"dispatched"}
    names = {"scheduled", "pending", "available", "active", "retryable", "completed", "cancelled", "discarded"}
    assert {str(state) for state in State} == names | own
    assert {str(action) for action in OnLimit} == {"wait", "reschedule", "drop"}
    assert [state.label for state in (State.AVAILABLE, State.ACTIVE, State.COMPLETED)] == [
        "Waiting",
        "Active",
        "Completed",
    ]


def test_the_diagram_shows_every_move() -> None:
    drawn = diagram()
    for state, moves in MOVES.items():
        assert all(f"{state} --> {after}\n" in drawn for after in moves)
    assert all(f"{state} --> [*]\n" in drawn for state in TERMINAL)
    assert all(f"[*] --> {state}\n" in drawn for state in WAITING)
