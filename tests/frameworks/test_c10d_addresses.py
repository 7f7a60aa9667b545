"""Which network the engine of a torch.distributed group takes between hosts."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch.distributed as dist

from rabit.errors import InvalidArgument
from rabit.rendezvous import addresses, own_address
from rabit_torch.distributed import _StoreBoard

ROUTES = {"10.9.0.1": "10.9.0.7", "192.0.2.1": "172.16.0.7", "node1": "127.0.1.1"}


@pytest.fixture
def routes(monkeypatch):
    """A host with the routes that the test leaves here."""
    known = dict(ROUTES)

    def route(host, port=9):
        if host not in known:
            raise InvalidArgument(f"there is no route to {host!r}")
        return known[host]

    monkeypatch.setattr(addresses, "route_address", route)
    return known


def test_the_network_of_the_store_is_taken_where_there_is_no_default_route(routes):
    del routes["192.0.2.1"]

    assert own_address.reachable_address({}, towards="10.9.0.1") == "10.9.0.7"


def test_the_network_of_the_store_goes_before_the_default_route(routes):
    assert own_address.reachable_address({}, towards="10.9.0.1") == "10.9.0.7"


@pytest.mark.parametrize("towards", ["", "node1", "unknown"])
def test_a_store_that_says_nothing_leaves_the_default_route(routes, towards):
    assert own_address.reachable_address({}, towards=towards) == "172.16.0.7"


def test_an_address_that_is_given_goes_first(routes):
    environ = {"RABIT_BIND_ADDRESS": "10.1.1.1"}

    assert own_address.reachable_address(environ, towards="10.9.0.1") == "10.1.1.1"


def test_a_board_knows_the_host_of_a_tcp_store(tmp_path):
    limit = timedelta(seconds=10)
    tcp = dist.TCPStore("127.0.0.1", 0, 1, True, timeout=limit)
    prefixed = dist.PrefixStore("a", dist.PrefixStore("b", tcp))

    assert _StoreBoard(prefixed, limit).host() == "127.0.0.1"
    assert _StoreBoard(dist.FileStore(str(tmp_path / "store"), 1), limit).host() == ""
