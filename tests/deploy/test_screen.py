"""What the client's image starts, with a real virtual screen that a VNC viewer looks at."""

# covers R21

import os
import shutil
import socket
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from support.cluster import ROOT, Cluster, accepts, find_free_port, wait_until

SCRIPT = ROOT / "deploy" / "gym-client.sh"
# The environment's own background; the empty screen is black.
WHITE = 255


@pytest.fixture(autouse=True)
def needs_a_screen() -> None:
    missing = [tool for tool in ("Xvfb", "x11vnc") if shutil.which(tool) is None]
    if missing:
        message = f"{', '.join(missing)} missing (apt-get install xvfb x11vnc)"
        assert os.environ.get("RELAAX_REQUIRE_XVFB") != "1", message
        pytest.skip(message)


class Viewer:
    """A VNC viewer of RFC 6143: version 3.8, no password, raw pixels.

    Attributes:
      size: of the screen, height and width.
    """

    def __init__(self, port: int):
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        version = self._read(12)
        assert version.startswith(b"RFB 003.")
        self._socket.sendall(b"RFB 003.008\n")
        (kinds,) = self._read(1)
        assert 1 in self._read(kinds), "it asks for a password"
        self._socket.sendall(b"\x01")
        assert self._read(4) == bytes(4)
        self._socket.sendall(b"\x01")  # beside other viewers
        width, height, bits = struct.unpack("!HHB", self._read(5))
        assert bits == 32
        (length,) = struct.unpack("!15xI", self._read(19))
        self._read(length)
        self.size = height, width

    def look(self) -> np.ndarray:
        """Returns the screen, `[height, width, 4] uint8`."""
        height, width = self.size
        self._socket.sendall(struct.pack("!BBHHHH", 3, 0, 0, 0, width, height))
        screen = np.zeros((height, width, 4), np.uint8)
        while (kind := self._read(1)) != b"\x00":
            if kind == b"\x03":  # text of the clipboard, which can come at any time
                (length,) = struct.unpack("!3xI", self._read(7))
                self._read(length)
            else:
                assert kind == b"\x02", kind  # a bell
        (parts,) = struct.unpack("!xH", self._read(3))
        for _ in range(parts):
            x, y, w, h, encoding = struct.unpack("!HHHHi", self._read(12))
            assert encoding == 0
            pixels = np.frombuffer(self._read(w * h * 4), np.uint8)
            screen[y : y + h, x : x + w] = pixels.reshape(h, w, 4)
        return screen

    def close(self) -> None:
        self._socket.close()

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            assert part, "the server hung up"
            data += part
        return data


def make_xvfb(folder: Path, script: str) -> str:
    """Returns a search path on which `Xvfb` is a script."""
    program = folder / "bin" / "Xvfb"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return os.pathsep.join(
        [str(program.parent), str(Path(sys.executable).parent), os.environ["PATH"]]
    )


def test_a_viewer_sees_the_environment_while_its_client_trains(tmp_path: Path) -> None:
    """The client waits for a screen that starts slowly."""
    path = make_xvfb(tmp_path, f'sleep 6\nexec {shutil.which("Xvfb")} "$@"')
    with Cluster(tmp_path) as cluster:
        cluster.start_both_servers()
        port = find_free_port()
        client = cluster.start(
            "client",
            [SCRIPT, f"localhost:{cluster.rlx_port}", "CartPole-v1", "display"],
            DISPLAY_NUMBER=f":{port}",
            VNC_PORT=str(port),
            PATH=path,
        )
        wait_until(lambda: accepts(port), client)
        viewer = Viewer(port)
        assert viewer.size == (768, 1024)

        def show() -> int:
            return int((viewer.look()[..., :3] == WHITE).all(axis=-1).sum())

        # 600 x 400, most of them background.
        wait_until(lambda: show() > 200_000, client)
        cluster.wait_steps(20)
        viewer.close()
        assert client.alive


def test_without_a_screen_it_ends_with_the_reason(tmp_path: Path) -> None:
    path = make_xvfb(tmp_path, "echo no shared memory >&2\nexit 1")
    with Cluster(tmp_path) as cluster:
        port = find_free_port()
        client = cluster.start(
            "client",
            [SCRIPT, "localhost:1", "CartPole-v1", "display"],
            DISPLAY_NUMBER=f":{port}",
            VNC_PORT=str(port),
            PATH=path,
        )
        assert client.wait() == 1
        assert "no shared memory" in client.output
        assert f"there is no screen :{port}, because Xvfb has ended" in client.output
