"""`relaax save` and `relaax stop`: an operator's commands to a parameter server."""

from relaax_like.bridge.control import BridgeControl
from relaax_like.config.address import parse_address
from relaax_like.config.models import PARAMETER_SERVER_PORT
from relaax_like.wire.security import ClientSecurity


def save_snapshot(text: str, security: ClientSecurity) -> int:
    """Makes the parameter server write a snapshot; prints its path.

    Returns 1 if the server does not keep snapshots, else 0.

    Args:
      text: HOST:PORT or HOST of the parameter server.
      security: token and certificates.

    Raises:
      ConfigError: `text` is not an address, or a file that `security` names cannot be used.
      RelaaxError: see `Link.request_save`.
    """
    address = str(parse_address(text, PARAMETER_SERVER_PORT))
    with BridgeControl().connect(address, security) as link:
        path = link.request_save()
    print(path or f"the parameter server at {address} does not keep snapshots")
    return 0 if path else 1


def stop_server(text: str, security: ClientSecurity) -> int:
    """Tells the parameter server to save and exit.

    Args:
      text: HOST:PORT or HOST of the parameter server.
      security: token and certificates.

    Raises:
      ConfigError: `text` is not an address, or a file that `security` names cannot be used.
      RelaaxError: see `Link.request_stop`.
    """
    address = str(parse_address(text, PARAMETER_SERVER_PORT))
    with BridgeControl().connect(address, security) as link:
        link.request_stop()
    print(f"the parameter server at {address} is saving and will then exit")
    return 0
