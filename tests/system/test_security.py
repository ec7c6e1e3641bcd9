"""Clusters with TLS and tokens, and with names that would like to be paths."""

import signal
import sys
from pathlib import Path

import pytest
from support.certificates import (
    AGENT,
    ALL_TOKENS,
    ENVIRONMENT,
    OPERATOR,
    Authority,
    write_private,
    write_tokens,
)
from support.cluster import (
    GYM_MAIN,
    ROOT,
    TRACE,
    Cluster,
    Program,
    find_command,
    find_free_port,
    wait_until,
)
from support.event_files import read_scalars
from support.here import refuse_here, run_here

from relaax_like.bridge.control import BridgeControl
from relaax_like.cli.servers import APPS
from relaax_like.metrics.recorder import TensorBoardRecorder
from relaax_like.wire.errors import NotAllowedError


class SecureCluster(Cluster):
    """A cluster with all that there is: mutual TLS, tokens, and a metrics server."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.authority = Authority(folder)
        write_tokens(folder / "tokens")
        write_private(folder / "token", f"{AGENT}\n")
        self.environment_token = write_private(folder / "environment-token", ENVIRONMENT)
        self.operator_token = write_private(folder / "operator-token", OPERATOR)
        self.security = self.authority.client(AGENT, certificate=True)
        self.metrics_port = find_free_port()
        with self.config.open("a") as file:
            file.write(
                f"relaax-metrics-server: {{bind: 'localhost:{self.metrics_port}'}}\n"
                "security:\n"
                "  tls_cert: own-cert.pem\n  tls_key: own-key.pem\n  tls_ca: own-ca.pem\n"
                "  tls_client_cert_required: true\n"
                "  tokens_file: tokens\n  token_file: token\n"
            )

    @property
    def tls_flags(self) -> list[object]:
        """What any program needs to get through to a server."""
        authority = self.authority
        return [
            *("--tls-ca", authority.ca),
            *("--tls-cert", authority.client_cert),
            *("--tls-key", authority.client_key),
        ]

    def start_metrics_server(self) -> Program:
        """Starts `relaax-metrics-server`."""
        return self._start_server("relaax-metrics-server", ())


@pytest.fixture
def cluster(tmp_path: Path):
    with SecureCluster(tmp_path) as cluster:
        yield cluster


def find_secrets(folder: Path) -> list[str]:
    """Returns the files below a folder that hold a token, but for those that are there for it."""
    return [
        str(path)
        for path in folder.rglob("*")
        if path.is_file() and path.stat().st_size < 1 << 24
        if not path.name.endswith("token") and path.name != "tokens"
        if any(token.encode() in path.read_bytes() for token in ALL_TOKENS)
    ]


def test_a_cluster_trains_over_mutual_tls_with_tokens(cluster: SecureCluster) -> None:
    metrics = cluster.start_metrics_server()
    metrics.wait_for("metrics server on")
    everywhere = f"relaax-parameter-server.bind='0.0.0.0:{cluster.ps_port}'"
    ps = cluster.start_parameter_server(everywhere)
    ps.wait_for(f"parameter server on 0.0.0.0:{cluster.ps_port}")
    assert "other machines" not in ps.output
    rlx = cluster.start_rlx_server()
    token = ("--token-file", cluster.environment_token)
    client = cluster.start_paced_client("right", *token, *cluster.tls_flags)
    traced = cluster.start(
        "traced",
        [
            *(sys.executable, GYM_MAIN, "--rlx-server", f"localhost:{cluster.rlx_port}"),
            *("--env", "support.paced_envs:PacedCartPole-v0"),
            *("--token", ENVIRONMENT, *cluster.tls_flags),
        ],
        PYTHONPATH=str(ROOT / "tests"),
        RELAAX_TRACE=str(cluster.folder / "traces"),
    )
    cluster.wait_steps(50)
    traced.wait_for("Score = ")

    # Without a token, with none of the tokens, and with TLS on one side only.
    strangers = {
        "no token was sent": cluster.tls_flags,
        "not known to this server": [
            *("--token-file", write_private(cluster.folder / "bad-token", "x" * 20)),
            *cluster.tls_flags,
        ],
        "this server uses TLS": token,
    }
    for number, (want, flags) in enumerate(strangers.items()):
        stranger = cluster.start_client(f"stranger{number}", *flags)
        assert stranger.wait() == 2, stranger
        assert want in stranger.output
        assert TRACE not in stranger.output

    # An environment's token does not reach the parameter server.
    address = f"localhost:{cluster.ps_port}"
    as_environment = cluster.authority.client(ENVIRONMENT, certificate=True)
    with BridgeControl().connect(address, as_environment) as link:
        with pytest.raises(NotAllowedError, match="role environment, but role agent is required"):
            link.status()
    status = ("status", address, *cluster.tls_flags)
    assert run_here(*status, "--token-file", cluster.operator_token)[0] == 0
    assert "no token was sent" in refuse_here(*status)

    cluster.wait_steps(20)  # nobody was disturbed
    wait_until(lambda: list((cluster.folder / "run" / "metrics").glob("events.*")), metrics)
    for program in (traced, client, rlx, ps, metrics):
        program.stop()
        assert TRACE not in program.output, program
    assert list((cluster.folder / "traces").iterdir())
    # Neither in a log, nor in the run folder, its resolved configuration and its traces.
    for program in cluster.started:
        for secret in ALL_TOKENS:
            assert secret not in program.output
    assert (cluster.folder / "run" / "config.yaml").is_file()
    assert find_secrets(cluster.folder) == []


def test_tokens_and_certificates_are_checked_and_replaced_while_a_cluster_runs(
    cluster: SecureCluster,
) -> None:
    cluster.start_metrics_server()
    ps, rlx = cluster.start_both_servers()
    token = ("--token-file", cluster.environment_token)
    client = cluster.start_paced_client("client", *token, *cluster.tls_flags)
    cluster.wait_steps(20)
    new = "agent-token-of-tomorrow"
    tokens = cluster.folder / "tokens"
    write_private(tokens, tokens.read_text() + f"agent {new}\n")  # both count
    ps.wait_for("reloaded after a change: .*/tokens$")
    write_private(cluster.folder / "token", new)
    rlx.wait_for("reloaded after a change: .*/token$")
    seen = len(ps.lines)
    write_private(tokens, f"environment {ENVIRONMENT}\nagent {new}\n")
    ps.wait_for("reloaded after a change: .*/tokens$", after=seen)
    cluster.authority.issue()
    rlx.wait_for("reloaded after a change: .*/own-cert.pem")
    cluster.security = cluster.authority.client(new, certificate=True)
    cluster.wait_steps(20)
    assert client.alive

    # One whose token is not accepted ends with the reason.
    wrong = write_private(cluster.folder / "wrong-token", ENVIRONMENT)
    other = cluster.start_rlx_server(
        f"security.token_file={wrong}", f"relaax-rlx-server.bind=localhost:{find_free_port()}"
    )
    assert other.wait() == 2, other
    assert "the token has role environment, but role agent is required" in other.output
    assert ps.alive
    assert TRACE not in ps.output + rlx.output + client.output + other.output


def test_relaax_run_hands_everything_to_its_processes(cluster: SecureCluster) -> None:
    run = cluster.start(
        "run",
        [
            *(find_command("relaax"), "run", cluster.config),
            *("--set", "algorithm.max_global_step=300", "--set", "environment.clients=1"),
        ],
    )
    assert run.wait() == 0, run
    run.wait_for("finished: budget of 300 env steps used up")
    assert TRACE not in run.output
    assert "died" not in run.output
    for secret in ALL_TOKENS:
        assert secret not in run.output


@pytest.mark.parametrize("server", ["parameter-server", "rlx-server", "metrics-server"])
def test_a_server_beyond_loopback_needs_tls_and_tokens_or_the_word(
    server: str, tmp_path: Path
) -> None:
    with Cluster(tmp_path) as cluster:
        with cluster.config.open("a") as file:
            file.write("relaax-metrics-server: {bind: 'localhost:0'}\n")
        flags = ("--config", cluster.config, "--bind", "0.0.0.0:0")
        refused = refuse_here(*flags, app=APPS[server.replace("-", "_")])
        assert ".bind: 0.0.0.0:0 can be reached from other machines" in refused
        assert "--insecure" in refused
        allowed = cluster.start(server, [find_command(f"relaax-{server}"), *flags, "--insecure"])
        allowed.wait_for("server on 0.0.0.0:")
        assert "without TLS and tokens" in allowed.output
        allowed.stop(signal.SIGINT)


# Names become no paths.

HOSTILE = ["../../../evil", "/tmp/relaax-evil", "..", "~/evil", "evil\\..\\evil", "a/../../evil"]


def test_names_from_the_wire_become_no_paths(tmp_path: Path) -> None:
    """Clients, their processes, curves and views of the parameter server, with traces on."""
    folder = tmp_path / "a" / "b" / "c"
    folder.mkdir(parents=True)
    with Cluster(folder) as cluster:
        cluster.start_both_servers()
        for name in HOSTILE:
            client = cluster.start(
                "hostile",
                [
                    *(sys.executable, GYM_MAIN, "--rlx-server", f"localhost:{cluster.rlx_port}"),
                    *("--env", "CartPole-v0", "--name", name, "--episodes", 2),
                ],
                RELAAX_TRACE=str(folder / "traces"),
            )
            assert client.wait() == 0, client
        with BridgeControl().connect(f"localhost:{cluster.ps_port}") as link:
            for name in HOSTILE:
                with link.parameter_server_stub(name) as client:
                    client.increment_global_t(1)
                    client.push_pull()
                    client.metrics().scalar(name, 1.0)
        for program in reversed(cluster.started):
            if program.alive:
                program.stop()
    assert [p for p in tmp_path.rglob("*") if "evil" in p.name] == []
    assert not Path("/tmp/relaax-evil").exists()
    assert not Path("~/evil").expanduser().exists()
    assert len(list((folder / "traces").iterdir())) == len(HOSTILE)
    # Nothing lies beside the cluster's folder.
    assert [p.name for p in folder.parent.iterdir()] == ["c"]


def test_a_curve_with_a_hostile_name_is_a_curve(tmp_path: Path) -> None:
    with TensorBoardRecorder(tmp_path / "metrics") as recorder:
        for name in HOSTILE:
            recorder.scalar(name, 1.0, 1.0)
    assert set(read_scalars(tmp_path / "metrics")) == set(HOSTILE)
    assert [p.name for p in tmp_path.iterdir()] == ["metrics"]
    assert all(p.name.startswith("events.out.tfevents.") for p in (tmp_path / "metrics").iterdir())
