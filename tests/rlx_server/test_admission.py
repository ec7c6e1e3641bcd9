"""Places and memory of those who have not said who they are; by accounting, without sockets."""

import threading
from dataclasses import dataclass, field

import pytest

from relaax_like.rlx_server.admission import Admission
from relaax_like.wire.errors import ProtocolError


@dataclass(eq=False)
class Visitor:
    address: str
    errors: list[ProtocolError] = field(default_factory=list)

    def turn_away(self, error: ProtocolError) -> None:
        self.errors.append(error)


def arrive(admission: Admission, *addresses: str) -> list[Visitor]:
    visitors = [Visitor(address) for address in addresses]
    for visitor in visitors:
        admission.arrive(visitor)
    return visitors


def test_unknown_connections_take_no_client_place() -> None:
    admission = Admission(1, 0, max_unknown=3)
    visitors = arrive(admission, "a", "a", "b")
    admission.admit(visitors[2])
    assert (admission.clients, admission.unknown) == (1, 2)
    with pytest.raises(ProtocolError, match="1 client is connected, which is the") as caught:
        admission.admit(visitors[0])
    assert caught.value.code == "OVERLOADED"
    admission.leave(visitors[2])
    admission.admit(visitors[0])


def test_the_address_with_most_unknown_connections_loses_its_oldest() -> None:
    admission = Admission(1, 0, max_unknown=3)
    honest, first, second = arrive(admission, "honest", "crowd", "crowd")
    (third,) = arrive(admission, "crowd")
    assert [len(one.errors) for one in (honest, first, second, third)] == [0, 1, 0, 0]
    (other,) = arrive(admission, "other")
    assert [len(one.errors) for one in (honest, first, second, third)] == [0, 1, 1, 0]
    assert first.errors[0].code == "OVERLOADED"
    assert not other.errors
    assert admission.unknown == 3


def test_bytes_of_unfinished_hellos_stay_within_their_budget() -> None:
    admission = Admission(1, 0, hello_bytes=100)
    honest, small, large = arrive(admission, "honest", "crowd", "crowd")
    admission.reserve(honest, 45)
    admission.reserve(small, 20)
    admission.reserve(large, 30)
    assert sum(admission._unknown.values()) == 95
    admission.reserve(small, 6)
    # "crowd" holds 56 of the 101, and of it the large one most.
    assert [len(one.errors) for one in (honest, small, large)] == [0, 0, 1]
    assert sum(admission._unknown.values()) == 71
    admission.reserve(small, 1000)
    assert [len(one.errors) for one in (honest, small, large)] == [0, 1, 1]
    assert sum(admission._unknown.values()) == 45


def test_a_client_holds_no_bytes_of_the_budget() -> None:
    admission = Admission(1, 0, hello_bytes=100)
    (client,) = arrive(admission, "a")
    admission.reserve(client, 90)
    admission.admit(client)
    admission.reserve(client, 1000)
    assert sum(admission._unknown.values()) == 0
    assert not client.errors


def test_a_connection_that_was_turned_away_is_not_admitted() -> None:
    admission = Admission(5, 0, max_unknown=1)
    first, _ = arrive(admission, "a", "a")
    with pytest.raises(ProtocolError):
        admission.admit(first)
    admission.leave(first)
    admission.leave(first)
    assert (admission.clients, admission.unknown) == (0, 1)


def test_no_more_clients_are_admitted_than_there_are_places_from_many_threads() -> None:
    admission = Admission(10, 0)
    visitors = arrive(admission, *["a"] * 50)
    refused = []

    def admit(visitor: Visitor) -> None:
        try:
            admission.admit(visitor)
        except ProtocolError:
            refused.append(visitor)

    threads = [threading.Thread(target=admit, args=(visitor,)) for visitor in visitors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (admission.clients, len(refused)) == (10, 40)
