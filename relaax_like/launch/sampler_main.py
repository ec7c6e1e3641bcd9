"""`python -m ...`: an AlgoSampler in a process of its own, for `launch.samplers`.

Its argument is the file descriptor of its end of a pair of sockets (see `bridge.pair`). It exits
when the other end is closed.
"""

import contextlib
import os
import socket
import sys

from relaax_like.bridge.pair import Pair
from relaax_like.launch.samplers import SamplerHost, to_chunk
from relaax_like.runs.processes.process import end_now, run_main


def main() -> int:
    """Answers requests until the other end is closed, and then ends the process."""
    number = int(sys.argv[1])
    os.set_inheritable(number, False)  # what an environment starts must not keep it open
    pair, host = Pair(socket.socket(fileno=number)), SamplerHost()
    with contextlib.closing(host), contextlib.suppress(OSError):  # the other end was killed
        while (request := pair.receive()) is not None:
            pair.send(memoryview(host.answer(to_chunk(request))))
    end_now(0)


if __name__ == "__main__":
    run_main(main)
