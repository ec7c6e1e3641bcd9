"""The page in which CartPole learns: served, and played by a real Chromium. covers R18, X13

`RELAAX_REQUIRE_CHROMIUM=1` turns a missing Chromium from a skip into a failure.
"""

import http.client
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.certificates import ENVIRONMENT, Authority, write_private, write_tokens
from support.chromium import Chromium
from support.cluster import ROOT, Cluster, Program, find_command, find_free_port
from support.node import Echo, Left, serve

from relaax_like.wire.security import Tokens

MAIN = ROOT / "environments" / "browser" / "main"
EXPERIMENT = ROOT / "algorithms" / "ppo" / "browser.yaml"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as cluster:
        yield cluster


def start_page(cluster: Cluster, *flags: object, address: str = "") -> tuple[str, Program]:
    address = address or f"localhost:{cluster.rlx_port}"
    argv = [sys.executable, MAIN, "--rlx-server", address, *flags]
    program = cluster.start("page", argv)
    return find_url(program), program


def find_url(program: Program) -> str:
    return program.wait_for(r"browser: open (http://127\.0\.0\.1:\d+/)$")[1]


def get(url: str, path: str) -> tuple[int, dict[str, str], bytes]:
    link = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    link.request("GET", path)
    answer = link.getresponse()
    return answer.status, dict(answer.getheaders()), answer.read()


# The program.


def test_it_serves_its_own_files_and_nothing_else(cluster: Cluster) -> None:
    url, program = start_page(cluster, "--num-envs", 3)
    for name in ("", "index.html", "page.css", "page.js", "rlx.js", "cartpole.js", "settings.json"):
        status, headers, body = get(url, f"/{name}")
        assert (status, bool(body)) == (200, True), name
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert f"connect-src 'self' ws://localhost:{cluster.rlx_port};" in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert not re.search(rb"https?://", body), "an external resource"
    assert get(url, "/page.js")[1]["Content-Type"].startswith("text/javascript")
    for path in (
        "/main",
        "/README.md",
        "/../",
        "/../../browser/main",
        "/javascript/rlx.js",
        "/.git",
    ):
        status, headers, body = get(url, path)
        assert (status, body.startswith(b"There is no such page")) == (404, True), path
        assert "Content-Security-Policy" in headers
    host, _, port = urlsplit(url).netloc.partition(":")
    with socket.create_connection((host, int(port)), timeout=20) as link:
        link.sendall(b"GET /\xff/ HTTP/1.0\r\n\r\n")
        assert link.makefile("rb").readline().startswith(b"HTTP/1.0 404")
    assert len(program.lines) == 1


@pytest.mark.parametrize(
    ("flags", "match"),
    [
        (["--env", "CartPole-v1"], "unrecognized arguments: --env"),
        (["--num-envs", "0"], "--num-envs: '0', expected an integer of 1 or more"),
        (["--env-arg", "wheels=4"], "--env-arg: invalid choice: 'wheels=4'"),
        (["--token-file", "/no/such/file"], "/no/such/file"),
        (
            ["--tls-ca", "a.pem", "--tls-cert", "b.pem", "--tls-key", "c.pem"],
            "import it into the browser",
        ),
    ],
)
def test_a_mistake_is_one_clear_line_and_status_2(flags: list[str], match: str) -> None:
    argv = [sys.executable, MAIN, *flags]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert match in done.stderr.splitlines()[-1]


def test_a_taken_port_is_refused_by_name(cluster: Cluster) -> None:
    port = find_free_port()
    start_page(cluster, "--port", port)
    argv = [sys.executable, MAIN, "--port", str(port)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert (done.returncode, f"--port: {port}: " in done.stderr) == (2, True)


# The page.


def test_it_learns_while_it_draws_and_while_it_is_hidden(
    chromium: Chromium, cluster: Cluster
) -> None:
    """Hidden from its first episodes on: without frames, and with timers of once a second."""
    cluster.config.write_text(
        re.sub(r"localhost:7000", f"localhost:{cluster.ps_port}", EXPERIMENT.read_text())
        .replace("localhost:7001", f"localhost:{cluster.rlx_port}")
        .replace("475 ", "100 ")
    )
    cluster.start_both_servers(f"run_dir={cluster.folder / 'run'}")
    url, _ = start_page(cluster, "--num-envs", 8, "--seed", 1)
    page = chromium.open(url)
    page.wait_for("globalThis.shown && shown.episodes > 0 && shown.frames > 0")
    assert page.evaluate("document.visibilityState") == "visible"
    front = chromium.open("about:blank")
    page.wait_for("document.visibilityState === 'hidden'")
    steps, frames = page.evaluate("[shown.steps, shown.frames]")
    page.wait_for("/^finished: mean return .* reached the target 100/.test(shown.status)")
    now = page.evaluate("[shown.steps, shown.frames, shown.mean]")
    assert now[0] > steps
    assert now[1] <= frames + 2  # of the moment before it was hidden
    assert now[2] > 90  # its own count: the server has also counted the last step
    page.call("Page.bringToFront")
    page.wait_for("document.getElementById('status').textContent.startsWith('finished')")
    assert page.evaluate("document.getElementById('button').textContent") == "Start"
    front.call("Page.close")


def test_one_command_serves_the_page_and_trains(chromium: Chromium, cluster: Cluster) -> None:
    text = cluster.config.read_text()
    section = "environment: {program: browser, slots: 2, max_episode_steps: 50}\n"
    cluster.config.write_text(text[: text.index("environment:")] + section)
    sets = ("--set", "algorithm.max_global_step=1000")
    run = cluster.start("run", [find_command("relaax"), "run", cluster.config, *sets])
    url = run.wait_for(r"env1 +\| browser: open (\S+)")[1]
    page = chromium.open(url)
    run.wait_for(r"rlx +\| .*browser-1: notified of the end")
    page.wait_for("/^finished: .*budget/.test(shown.status)")
    assert run.wait() == 0
    cluster.assert_nothing_left()
    assert page.evaluate("poles.states.length") == 2


def test_stop_and_start_and_a_lost_server(chromium: Chromium, cluster: Cluster) -> None:
    """Also while it waits for a server."""
    url, _ = start_page(cluster)
    page = chromium.open(url)
    button = "document.getElementById('button')"
    page.wait_for("globalThis.shown && /cannot open .* next attempt in/.test(shown.status)")
    page.evaluate(f"{button}.click()")
    page.wait_for("shown.status === 'stopped'")
    with serve(Left, port=cluster.rlx_port):
        page.evaluate(f"{button}.click()")
        page.wait_for("shown.steps > 100")
        page.evaluate(f"{button}.click()")
        page.wait_for("shown.status === 'stopped'")
        page.wait_for(f"{button}.textContent === 'Start'")
        steps = page.evaluate("shown.steps")
        page.evaluate(f"{button}.click()")
        page.wait_for(f"shown.steps > {steps + 100}")
    page.wait_for("/next attempt in/.test(shown.status)")
    steps = page.evaluate("shown.steps")
    with serve(Left, port=cluster.rlx_port):
        page.wait_for(f"shown.steps > {steps + 100}")


def test_a_token_is_pasted_into_the_page(
    chromium: Chromium, cluster: Cluster, tmp_path: Path
) -> None:
    """`main` does not send it: other users of the machine can open the page, too."""
    tokens = Tokens(write_tokens(tmp_path / "tokens"))
    file = write_private(tmp_path / "token", ENVIRONMENT)
    button, field = "document.getElementById('button')", "document.getElementById('token')"
    with serve(Left, tokens=tokens) as address:
        url, program = start_page(cluster, "--token-file", file, address=address)
        program.wait_for(f"paste the token there .*{file}")
        assert ENVIRONMENT.encode() not in get(url, "/settings.json")[2]
        page = chromium.open(url)
        page.wait_for(
            f"globalThis.shown && /^paste the token/.test(shown.status) && !{field}.hidden"
        )
        page.evaluate(f"{button}.click()")
        page.wait_for("shown.status.includes('no token was sent')")
        page.wait_for(f"{button}.textContent === 'Start'")  # no retry
        page.evaluate(f"{field}.value = '{ENVIRONMENT}'; {button}.click()")
        page.wait_for("shown.steps > 10")
        # A program that was not given a token: the page asks for one when the server does.
        page = chromium.open(start_page(cluster, address=address)[0])
        page.wait_for(f"globalThis.shown && {button}.textContent === 'Start' && !{field}.hidden")


def test_tls_makes_it_a_secure_web_socket(
    chromium: Chromium, cluster: Cluster, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    with serve(Left, tls=authority.server_tls()) as address:
        address = address.replace("127.0.0.1", "localhost")
        url, _ = start_page(cluster, "--tls-ca", authority.ca, address=address)
        assert f" wss://{address};" in get(url, "/")[1]["Content-Security-Policy"]
        chromium.open(url).wait_for("globalThis.shown && shown.steps > 10")


BYTES = """
(async () => {
  const space = { box: [2, 3], dtype: "uint8" };
  const spaces = { observation: { image: space, speed: { box: [1] } }, action: { image: space } };
  const client = await rlx.connect({ ...spaces, address: "%s", mode: "exploit", slots: 2 });
  const images = [new Uint8Array([0, 1, 2, 253, 254, 255]), new Uint8ClampedArray(6)];
  const speed = new Float32Array([0.5, 1]);
  return (await client.act({ image: images, speed })).image;
})()
"""


class Look(Echo):
    """Chooses the image that it has observed."""

    def act(self, state):
        return {"image": state["image"]}


def test_typed_arrays_of_a_browser_are_sent_as_bytes(chromium: Chromium, cluster: Cluster) -> None:
    with serve(Look) as address:
        url, _ = start_page(cluster, address=address)
        page = chromium.open(url)
        page.wait_for("globalThis.shown")
        images = page.evaluate(BYTES % address)
        # As a module, too.
        module = "delete globalThis.rlx, import('./rlx.js?again').then(() => typeof rlx.connect)"
        assert page.evaluate(module) == "function"
    assert images == [[[0, 1, 2], [253, 254, 255]], [[0] * 3] * 2]
