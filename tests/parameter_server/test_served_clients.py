"""Reports of rlx servers about their clients."""

from relaax_like.core.records import MAX_SERVED_CLIENTS, ClientsReport, ServedClient
from relaax_like.parameter_server.served_clients import ServedClients


def make_report(server_id: str, *late: int, num_clients: int = 0, stall: str = "") -> ClientsReport:
    clients = tuple(
        ServedClient(name=f"{server_id}-{n}", session="s", slots=1, late=n, stall=stall)
        for n in late
    )
    return ClientsReport(
        server_id=server_id, clients=clients, num_clients=num_clients or len(clients)
    )


def test_the_newest_report_of_each_server_counts_for_ten_seconds() -> None:
    now = [0.0]
    served = ServedClients(lambda: now[0])
    served.take(make_report("a", 1, 2))
    served.take(make_report("b", 3))
    now[0] = 6.0
    served.take(make_report("b", 7))
    clients, number = served.find()
    assert [client.late for client in clients] == [7, 2, 1]
    assert number == 3
    now[0] = 10.5
    assert [client.late for client in served.find()[0]] == [7]
    now[0] = 17.0
    assert served.find() == ((), 0)


def test_the_silent_and_the_latest_come_first_and_no_more_than_a_hundred() -> None:
    served = ServedClients()
    served.take(make_report("a", *range(MAX_SERVED_CLIENTS), num_clients=8192))
    served.take(make_report("b", 0, stall="the client has been silent for 12 s"))
    clients, number = served.find()
    assert len(clients) == MAX_SERVED_CLIENTS
    assert clients[0].name == "b-0"
    assert clients[1].late == MAX_SERVED_CLIENTS - 1
    assert number == 8193
