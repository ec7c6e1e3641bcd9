"""The sections of an experiment's YAML file, typed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    JsonValue,
    PlainSerializer,
    PlainValidator,
    field_validator,
)

from relaax_like.config.address import Address, parse_address
from relaax_like.config.algorithm import AlgorithmConfig
from relaax_like.config.base import Settings
from relaax_like.config.combine import CombineConfig
from relaax_like.config.optimizer import OptimizerConfig

PARAMETER_SERVER_PORT = 7000
RLX_SERVER_PORT = 7001
METRICS_SERVER_PORT = 7002
PROMETHEUS_PORT = 7003


def _make_address_validator(default_port: int) -> PlainValidator:
    def to_address(value: Any) -> Address:
        if isinstance(value, Address):
            return value
        if not isinstance(value, str):
            raise ValueError(
                f"{value!r} came, expected an address such as localhost:{default_port}"
            )
        return parse_address(value, default_port)

    return PlainValidator(to_address)


_TEXT = PlainSerializer(str, return_type=str)
ParameterServerAddress = Annotated[Address, _make_address_validator(PARAMETER_SERVER_PORT), _TEXT]
RlxServerAddress = Annotated[Address, _make_address_validator(RLX_SERVER_PORT), _TEXT]
PrometheusAddress = Annotated[Address, _make_address_validator(PROMETHEUS_PORT), _TEXT]
MetricsServerAddress = Annotated[Address, _make_address_validator(METRICS_SERVER_PORT), _TEXT]


def _to_upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


LogLevel = Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(_to_upper)]
Seconds = Annotated[float, Field(gt=0, le=1e9)]


class TopConfig(Settings):
    """The keys that stand in no section."""

    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed from which those of all random generators are derived."""
    run_dir: Path
    """Folder of all that the run writes, relative to where the command is started; default: runs/
    and the name of the YAML file."""
    logdir: Path | None = None
    """Instead of run_dir: each start of `relaax train` or `relaax run` makes a folder of its own,
    LOGDIR/ENVIRONMENT/RUN_NAME/TIMESTAMP."""
    run_name: str | None = Field(default=None, pattern=r"^[^/.][^/]*$")
    """Name of the run in logdir; null: a hash of all settings but seed, folders and addresses, and
    the seed."""


class ParameterServerConfig(Settings):
    """Section `relaax-parameter-server`."""

    bind: ParameterServerAddress = Address("localhost", PARAMETER_SERVER_PORT)
    """HOST:PORT to listen on; port 0: any free one."""
    checkpoint_dir: Path
    """Folder of the snapshots; default: RUN_DIR/checkpoints."""
    checkpoint_time_interval: Seconds | None = 60.0
    """Seconds between snapshots; null: none by time."""
    checkpoint_global_step_interval: int | None = Field(default=None, ge=1)
    """Environment steps between snapshots; null: none by steps."""
    checkpoints_to_keep: int = Field(default=3, ge=1)
    """Newest snapshots that stay."""
    best_checkpoints_to_keep: int = Field(default=1, ge=0)
    """Older snapshots that stay as well, those with the largest mean return of a full window of
    episodes."""
    mirror_url: str | None = None
    """A copy of each snapshot elsewhere, as an fsspec URL such as s3://bucket/run; null: none. Keys
    come from the store's own environment variables. An empty checkpoint_dir is filled from
    there."""
    durability: Literal["journal", "snapshot"] = "journal"
    """What a crash costs: journal: nothing acknowledged, as each push is written down first;
    snapshot: the updates since the newest snapshot."""
    journal_max_mb_per_sec: float = Field(default=100.0, gt=0)
    """Bound of the journal: more megabytes of gradients per second, and durability is
    "snapshot"."""
    journal_strict: bool = False
    """Sync each push to the disk before it is acknowledged, so that a power cut costs nothing,
    either. Otherwise it costs a second at most."""
    metrics_dir: Path
    """Folder of the curves; default: RUN_DIR/metrics."""
    initial_values: Path | None = None
    """An .npz to start from, instead of the algorithm's make_initial_values; relative to the
    file."""
    optimizers: dict[str, OptimizerConfig] | None = None
    """Optimizer per variable group; null: the algorithm's."""
    combine: CombineConfig = CombineConfig()
    """How gradients of several clients are combined."""
    prometheus_bind: PrometheusAddress | None = None
    """Where `http://HOST:PORT/metrics` shows the numbers of `relaax status` to Prometheus; null:
    nowhere. Nothing protects that page."""
    progress_interval_sec: Seconds = 5.0
    """Seconds between progress lines."""
    log_level: LogLevel = "INFO"
    """Lowest level of log lines that are printed."""


class RlxServerConfig(Settings):
    """Section `relaax-rlx-server`."""

    bind: RlxServerAddress = Address("localhost", RLX_SERVER_PORT)
    """HOST:PORT to listen on; port 0: any free one."""
    parameter_server: ParameterServerAddress = Address("localhost", PARAMETER_SERVER_PORT)
    """HOST:PORT of the parameter server; default: where it binds."""
    max_clients: int = Field(default=256, ge=1)
    """Clients that are connected at a time."""
    max_slots_per_client: int = Field(default=64, ge=1)
    """Environments that one client steps together."""
    max_message_bytes: int = Field(default=64 * 1024 * 1024, ge=1024, le=1 << 30)
    """Longest message that is read, in bytes; 1 KiB to 1 GiB."""
    hello_timeout_sec: Seconds = 10.0
    """Seconds within which a client must say hello, or it is dropped."""
    idle_timeout_sec: Seconds = 600.0
    """Seconds of silence after which a client is dropped."""
    session_timeout_sec: Seconds | None = None
    """Seconds after which a client is dropped at its next episode's end, so that a load balancer
    can move it; null: never."""
    min_free_memory_mb: int = Field(default=256, ge=0)
    """New clients are refused while less memory than this is free."""
    score_lines: bool = False
    """Log one line per finished episode."""
    log_level: LogLevel = "INFO"
    """Lowest level of log lines that are printed."""


class MetricsServerConfig(Settings):
    """Section `relaax-metrics-server`. When it is there, metrics go to that process."""

    bind: MetricsServerAddress = Address("localhost", METRICS_SERVER_PORT)
    """HOST:PORT to listen on; port 0: any free one."""
    metrics_dir: Path
    """Folder of the curves; default: RUN_DIR/metrics."""
    log_level: LogLevel = "INFO"
    """Lowest level of log lines that are printed."""


class WandbConfig(Settings):
    """Section `wandb`. When it is there, the curves go to Weights & Biases, too.

    Whoever is not logged in there, or cannot reach it, gets an offline run in RUN/wandb, which
    `wandb sync` sends later. Its environment variables, such as WANDB_MODE and WANDB_ENTITY, count.
    """

    project: str = Field(default="relaax_like", min_length=1, max_length=128)
    """Project that the run belongs to."""
    group: str | None = Field(default=None, min_length=1)
    """Group within which runs are shown together, such as the seeds of an experiment."""
    name: str | None = Field(default=None, min_length=1)
    """Name of the run there; null: the last two names of the run's folder."""

    @field_validator("project")
    @classmethod
    def _refuse_what_wandb_refuses(cls, value: str) -> str:
        if set(value) & set("/\\#?%:"):
            raise ValueError(f"{value!r} came, expected a name without / \\ # ? % and :")
        return value


class SecurityConfig(Settings):
    """Section `security`: what all connections of the run ask for and show. docs/security.md."""

    tls_cert: Path | None = None
    """Certificate of the servers, a PEM file relative to the YAML file. tls_cert, tls_key and
    tls_ca are set together; without them connections are in the clear."""
    tls_key: Path | None = None
    """Key of tls_cert, a PEM file relative to the YAML file."""
    tls_ca: Path | None = None
    """Certificate that has signed tls_cert, a PEM file relative to the YAML file."""
    tls_client_cert_required: bool = False
    """Clients, too, must have a certificate that tls_ca has signed. The run's own show tls_cert."""
    tokens_file: Path | None = None
    """File with lines "ROLE TOKEN", the tokens that servers accept; null: they ask for none."""
    token_file: Path | None = None
    """File with the token that the run's own clients show: rlx server, learner, environments."""
    insecure: bool = False
    """Bind beyond this machine without TLS and tokens."""


class LearnerConfig(Settings):
    """Section `learner`."""

    placement: Literal["agent", "server"] | None = None
    """Where the learner runs: agent, in the rlx server, beside its agents; server, in the parameter
    server, which gets experience instead of gradients; null: where the algorithm can learn."""
    max_rollouts_ahead: int | None = Field(default=None, ge=0, le=16)
    """Rollouts that an agent may have under way while it acts on, over the network. 0: it waits
    until each has been learned from, or is known not to complete an iteration; null: 1 with
    placement agent, 0 with server."""
    target_return: float | None = None
    """Training ends when the mean return of the last target_episodes episodes reaches it."""
    target_episodes: int = Field(default=100, ge=1)
    """Newest episodes in the mean return that is compared with target_return."""
    eval_freq: int = Field(default=0, ge=0)
    """Placement server: iterations between two tests with greedy episodes; 0: none. The best policy
    so far is kept as a snapshot: by its tests, or without them by its training returns."""
    num_eval_eps: int = Field(default=10, ge=1)
    """Episodes in one greedy test."""
    workers: int = Field(default=0, ge=0, le=1024)
    """`relaax train` with placement server: processes that sample whole trajectories, each in
    environment.slots environments. 0: none, and rollouts of one length."""
    max_traj_len: int = Field(default=300, ge=1)
    """Steps after which a trajectory of a worker is cut off."""
    backprop_workers: int = Field(default=1, ge=-1, le=1024)
    """Placement server: threads that compute an update; -1: as many as are quickest, which is
    measured when the run begins."""
    save_freq: int = Field(default=-1, ge=-1)
    """Placement server: iterations between two copies of policy and optimizers in RUN/ckpt; -1:
    none."""
    collect_traj: bool = False
    """Placement server: also write what is learned from to RUN/trajectories, one file for each
    iteration."""
    collect_traj_max_mb: float = Field(default=1000.0, gt=0)
    """Megabytes of trajectory files, above which nothing more is written; a warning tells."""
    offline: Path | None = None
    """`relaax train`: a folder of trajectory files to learn from, instead of playing; for
    algorithms that can. Relative to where the command is started."""
    previous: Path | None = None
    """A run's folder whose newest weights this one starts from; it stays as it is. Relative to
    where the command is started."""
    hook: dict[str, JsonValue] = Field(default_factory=dict)
    """Hooks of a learner in the server; see config/base_learner.py."""

    @property
    def rollouts_ahead(self) -> int:
        """What `max_rollouts_ahead` comes to."""
        if self.max_rollouts_ahead is not None:
            return self.max_rollouts_ahead
        return 0 if self.placement == "server" else 1

    @field_validator("backprop_workers")
    @classmethod
    def _refuse_none(cls, value: int) -> int:
        if not value:
            raise ValueError("0 came, expected 1 or more, or -1 (as many as are quickest)")
        return value

    @field_validator("placement", mode="before")
    @classmethod
    def _refuse_what_is_not_built(cls, value: Any) -> Any:
        if value == "standalone":
            raise ValueError(f"{value!r} is not built yet, only agent and server are")
        return value


class EnvironmentConfig(Settings):
    """Section `environment`: what `relaax run` and `relaax train` start as clients."""

    program: str | None = None
    """Name of a shipped environment, a folder of environments/; exactly one of program and path is
    set."""
    path: str | None = None
    """The user's own program, or a folder with main or slots.py; relative to the YAML file."""
    env: str | None = None
    """Name of the environment, handed to the program as --env."""
    clients: int = Field(default=1, ge=1)
    """Processes that `relaax run` starts."""
    slots: int = Field(default=1, ge=1)
    """Environments that each process steps together."""
    actrep: int = Field(default=1, ge=1)
    """Steps of the environment per action, rewards added up. All that is counted in environment
    steps (global_t, limit, rnd, episode lengths) counts actions."""
    rnd: int = Field(default=0, ge=0)
    """Random actions at the start of each episode."""
    limit: int | None = Field(default=None, ge=1)
    """Environment steps after which an episode is cut off; null: the environment's own limit."""
    args: dict[str, JsonValue] = Field(default_factory=dict)
    """Arguments of the environment's constructor."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One YAML file, validated whole; every default is filled in.

    Attributes:
      file: the YAML file.
      seed: see `config.seeds.derive_seed`.
      run_dir: folder of all that the run writes.
      metrics_server: None when the file has no such section.
      wandb: None when the file has no such section.
      security: its paths are absolute; whether the files exist shows when they are used.
      algorithm: an instance of the algorithm folder's own `Config`.
      algorithm_folder: absolute; for `config.algorithm_folder.load_algorithm_module`.
      environment: None when the file has no such section.
      environment_program: the file to start, or slots.py where that is all; None without an
        environment.
    """

    file: Path
    seed: int
    run_dir: Path
    parameter_server: ParameterServerConfig
    rlx_server: RlxServerConfig
    metrics_server: MetricsServerConfig | None
    wandb: WandbConfig | None
    security: SecurityConfig
    learner: LearnerConfig
    algorithm: AlgorithmConfig
    algorithm_folder: Path
    environment: EnvironmentConfig | None
    environment_program: Path | None

    @property
    def optimizers(self) -> dict[str, OptimizerConfig]:
        """The optimizer of each variable group: the parameter server's, else the algorithm's."""
        own = self.parameter_server.optimizers
        return self.algorithm.optimizers if own is None else own
