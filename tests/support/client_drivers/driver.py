"""Makes the calls of a test with the client in Python; see support/drivers.py.

python driver.py ADDRESS [CA]      calls come as lines on standard input
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from relaax_like.client import ClientSecurity, RlxClient
from relaax_like.rlx_server.json_spaces import read_spaces
from relaax_like.wire.errors import NotAllowedError, RelaaxError

SUCCESS = {True: 1, False: 0, None: -1}


class Caller:
    """A client, and its spaces."""

    def __init__(self, hello: dict[str, Any], address: str, ca: str = ""):
        self.spaces, given = {}, []
        for name in ("observation", "action"):
            leaves, is_plain = read_spaces(hello[name], name)
            self.spaces[name] = leaves, is_plain
            given.append(leaves[name] if is_plain else leaves)
        security = ClientSecurity(token=hello.get("token", ""), tls_ca=Path(ca) if ca else None)
        self.client = RlxClient(
            address,
            *given,
            slots=hello["slots"],
            name=hello["name"],
            exploit=hello.get("mode") == "exploit",
            security=security,
            timeout_sec=4.0,
            max_wait_ms=hello.get("max_wait_ms"),
            versions=hello.get("versions"),
        )

    def call(self, kind: str, content: Any) -> dict[str, Any] | None:
        if kind == "ping":
            return self.client.ping()
        if kind == "scalars":
            return self.client.scalar(content[0]["name"], content[0]["y"])
        found = self.client.step(
            self._read("observation", content.get("observation")),
            content.get("reward"),
            content.get("terminated"),
            content.get("truncated"),
            self._read("observation", content.get("final_observation")),
            content.get("success") and [SUCCESS[one] for one in content["success"]],
            present=content.get("present"),
            executed=self._read("action", content.get("executed")),
            overridden=content.get("overridden"),
        )
        answer: dict[str, Any] = {"version": found.version}
        answer["episodes"] = [vars(episode) for episode in found.episodes]
        if found.finished:
            answer["finished"] = found.finished
        elif isinstance(found.actions, dict):
            answer["action"] = {name: leaf.tolist() for name, leaf in found.actions.items()}
        elif found.actions is not None:
            answer["action"] = found.actions.tolist()
        return answer

    def _read(self, name: str, value: Any) -> Any:
        if value is None:
            return None
        leaves, is_plain = self.spaces[name]
        if is_plain:
            return np.array(value, leaves[name].dtype)
        return {leaf: np.array(value[leaf], space.dtype) for leaf, space in leaves.items()}


def main() -> None:
    caller: Caller | None = None
    for line in sys.stdin:
        ((kind, content),) = json.loads(line).items()
        answer: dict[str, Any] | None
        try:
            if caller is None:
                caller = Caller(content, *sys.argv[1:])
                answer = {"ready": {"features": sorted(caller.client.features)}}
            else:
                answer = caller.call(kind, content)
        except RelaaxError as error:
            code = "UNAUTHENTICATED" if isinstance(error, NotAllowedError) else "LOST"
            answer = {"error": {"code": getattr(error, "code", code), "message": str(error)}}
        if answer is not None:
            print(json.dumps(answer), flush=True)
    if caller is not None:
        caller.client.close()


if __name__ == "__main__":
    main()
