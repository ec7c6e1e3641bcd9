import pytest
from support.bridge import make_backend
from support.rlx import RawClient, serve_rlx


@pytest.fixture
def backend():
    with make_backend() as server:
        yield server


@pytest.fixture
def port(backend):
    with serve_rlx(backend) as port:
        yield port


@pytest.fixture
def client(port):
    with RawClient(port) as client:
        yield client
