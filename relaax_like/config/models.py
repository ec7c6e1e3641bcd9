"""The sections of an experiment's YAML file, typed."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    BeforeValidator,
    Field,
    JsonValue,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
    field_validator,
)

from relaax_like.config.address import Address, parse_address
from relaax_like.config.algorithm import AlgorithmConfig
from relaax_like.config.algorithm_folder import resolve_path
from relaax_like.config.base import IN_JOBS, Settings
from relaax_like.config.combine import CombineConfig
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.config.origin import NULL, normalise_origin
from relaax_like.config.plan import Placement
from relaax_like.config.problems import describe_value
from relaax_like.config.sources import Sources

# Names of the sections.
PARAMETER_SERVER = "relaax-parameter-server"
RLX_SERVER = "relaax-rlx-server"
METRICS_SERVER = "relaax-metrics-server"
WANDB = "wandb"
SECURITY = "security"
LEARNER = "learner"
ALGORITHM = "algorithm"
ENVIRONMENT = "environment"
OPTIONAL = (METRICS_SERVER, WANDB, ENVIRONMENT)

PARAMETER_SERVER_PORT = 7000
RLX_SERVER_PORT = 7001
METRICS_SERVER_PORT = 7002
PROMETHEUS_PORT = 7003
COORDINATOR_PORT = 7004
LEARNER_PORT = 7005


def _make_address_validator(default_port: int) -> PlainValidator:
    def to_address(value: Any) -> Address:
        if isinstance(value, Address):
            return value
        if not isinstance(value, str):
            raise ValueError(
                f"expected an address such as localhost:{default_port}, got {describe_value(value)}"
            )
        return parse_address(value, default_port)

    return PlainValidator(to_address)


_TEXT = PlainSerializer(str, return_type=str)
LearnerAddress = Annotated[Address, _make_address_validator(LEARNER_PORT), _TEXT]
ParameterServerAddress = Annotated[Address, _make_address_validator(PARAMETER_SERVER_PORT), _TEXT]
RlxServerAddress = Annotated[Address, _make_address_validator(RLX_SERVER_PORT), _TEXT]
PrometheusAddress = Annotated[Address, _make_address_validator(PROMETHEUS_PORT), _TEXT]
MetricsServerAddress = Annotated[Address, _make_address_validator(METRICS_SERVER_PORT), _TEXT]
OriginText = Annotated[str, BeforeValidator(lambda value: normalise_origin(value or NULL))]


def _to_upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


def _resolve(path: Path, info: ValidationInfo) -> Path:
    """Makes a path relative to the YAML file absolute; the file's folder is the context."""
    return path if info.context is None else resolve_path(info.context / path)


def _require_file(path: Path) -> Path:
    if not os.path.isfile(path):  # Path's method raises other errors
        raise ValueError(
            f"{path}: no such file, or no access to it; correct the path, or remove the key"
        )
    return path


# A path in the file is relative to it.
FilePath = Annotated[Path, AfterValidator(_resolve)]
LogLevel = Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(_to_upper)]
Seconds = Annotated[float, Field(gt=0, le=1e9)]


class TopConfig(Settings):
    """The top-level keys."""

    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed from which the seeds of all random generators are derived."""
    run_dir: Path
    """Folder for everything that the run writes, relative to the working directory; default: runs/
    followed by the name of the YAML file."""
    logdir: Path | None = None
    """Replaces run_dir: each start of `relaax train` or `relaax run` creates a new folder
    LOGDIR/ENVIRONMENT/RUN_NAME/TIMESTAMP."""
    run_name: str | None = None
    """Name of the run in logdir; null: a hash of the settings (without the seed, the folders that
    the run writes, the servers' addresses and keys that only concern logs), followed by the
    seed."""
    compile_cache: Literal["auto"] | Path | None = "auto"
    """Folder, relative to the working directory, in which compiled functions are kept, so that
    later processes need not compile them again; auto: relaax-like/compiled in your folder for
    caches (~/.cache); null: nothing is kept."""

    @field_validator("run_name")
    @classmethod
    def _refuse_paths(cls, value: str | None) -> str | None:
        if value is not None and (not value or "/" in value or value.startswith(".")):
            raise ValueError(
                "expected one or more characters without /, the first of them not a period, "
                f"got {value!r}"
            )
        return value


class ParameterServerConfig(Settings):
    """Section `relaax-parameter-server`."""

    bind: ParameterServerAddress = Address("localhost", PARAMETER_SERVER_PORT)
    """HOST:PORT to listen on; port 0: any free port."""
    checkpoint_dir: Path
    """Folder of the snapshots; default: RUN_DIR/checkpoints."""
    checkpoint_time_interval: Seconds | None = 60.0
    """Seconds between snapshots; null: no time-based snapshots."""
    checkpoint_global_step_interval: int | None = Field(default=None, ge=1)
    """Environment steps between snapshots; null: no step-based snapshots."""
    checkpoints_to_keep: int = Field(default=3, ge=1)
    """Number of newest snapshots that are kept."""
    best_checkpoints_to_keep: int = Field(default=1, ge=0)
    """Number of older snapshots to keep in addition: those with the highest mean return, of their
    evaluations (learner.eval_freq) or of a full window of training episodes."""
    mirror_url: str | None = None
    """fsspec URL, such as s3://bucket/run, to which new snapshots are copied; null: no copies.
    Credentials come from the store's own environment variables. An empty checkpoint_dir is restored
    from there."""
    durability: Literal["journal", "snapshot"] = "journal"
    """What a crash loses. journal: nothing that was acknowledged, since each push, or each rollout
    of a replay table, is logged first; snapshot: the pushes since the newest snapshot, and the
    replay table. With placements server and standalone, each publication of the learner is written
    in either case; without a replay table, rollouts that it has not learned from are lost."""
    journal_max_mb_per_sec: float = Field(default=100.0, gt=0)
    """Limit of the journal in MB/s; if gradients arrive faster, durability falls back to
    "snapshot"."""
    journal_strict: bool = False
    """Sync each push, or rollout of a replay table, to disk before it is acknowledged, so that a
    power failure loses nothing either. Otherwise a power failure loses about the last second."""
    metrics_dir: Path
    """Folder of the curves; default: RUN_DIR/metrics."""
    initial_values: Annotated[FilePath, AfterValidator(_require_file)] | None = None
    """An .npz file with the initial values, instead of the algorithm's make_initial_values;
    relative to the YAML file."""
    optimizers: dict[str, OptimizerConfig] | None = None
    """Optimizer of each variable group; null: the algorithm's defaults."""
    combine: CombineConfig = CombineConfig()
    """How the gradients of several clients are combined."""
    prometheus_bind: PrometheusAddress | None = None
    """Address at which `http://HOST:PORT/metrics` exports the numbers of `relaax status` to
    Prometheus; null: no export. That page has no access control."""
    progress_interval_sec: Seconds = 5.0
    """Seconds between progress lines."""
    log_level: LogLevel = "INFO"
    """Lowest level of log messages that are printed."""


class RlxServerConfig(Settings):
    """Section `relaax-rlx-server`."""

    bind: RlxServerAddress = Address("localhost", RLX_SERVER_PORT)
    """HOST:PORT to listen on; port 0: any free port."""
    parameter_server: ParameterServerAddress = Address("localhost", PARAMETER_SERVER_PORT)
    """HOST:PORT of the parameter server; default: the address it listens on."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where agents act whose model NumPy cannot run; see learner.device."""
    max_clients: int = Field(default=256, ge=1)
    """Maximum number of clients connected at the same time."""
    max_slots_per_client: int = Field(default=4096, ge=1)
    """Maximum number of environments that one client steps together; by default 4096, or
    environment.slots if that is more."""
    max_message_bytes: int = Field(default=64 * 1024 * 1024, ge=1024, le=1 << 30)
    """Size limit of a message in bytes, from 1 KiB to 1 GiB."""
    hello_timeout_sec: Seconds = 10.0
    """Seconds within which a client must send its hello; otherwise it is disconnected."""
    idle_timeout_sec: Seconds = 600.0
    """Seconds of silence after which a client is disconnected."""
    session_timeout_sec: Seconds | None = Field(
        default=None, validation_alias=AliasChoices("session_timeout_sec", "timeout")
    )
    """Seconds after which a client is disconnected at its next end of an episode, so that a load
    balancer can move it; null: never."""
    min_free_memory_mb: int = Field(default=256, ge=0)
    """Refuse new clients while less than this much memory is free."""
    allowed_origins: tuple[OriginText, ...] = ()
    """Web pages that can connect by WebSocket, such as https://example.org; pages of this machine,
    as http://localhost:8000, need no entry. null allows pages without an origin, as of files."""
    score_lines: bool = False
    """Log one line for each finished episode."""
    log_level: LogLevel = "INFO"
    """Lowest level of log messages that are printed."""


class MetricsServerConfig(Settings):
    """Section `relaax-metrics-server`. If it is present, metrics are sent to that process."""

    bind: MetricsServerAddress = Address("localhost", METRICS_SERVER_PORT)
    """HOST:PORT to listen on; port 0: any free port."""
    metrics_dir: Path
    """Folder of the curves; default: RUN_DIR/metrics."""
    log_level: LogLevel = "INFO"
    """Lowest level of log messages that are printed."""


class WandbConfig(Settings):
    """Section `wandb`. If it is present, the curves are also sent to Weights & Biases.

    Without a login or a connection, the run is stored offline in RUN/wandb; `wandb sync` sends it
    later. W&B's environment variables apply, such as WANDB_MODE and WANDB_ENTITY.
    """

    project: str = Field(default="relaax_like", min_length=1, max_length=128)
    """Project of the run."""
    group: str | None = Field(default=None, min_length=1)
    """Group in which runs are shown together, such as the seeds of an experiment."""
    name: str | None = Field(default=None, min_length=1)
    """Name of the run in W&B; null: the last two components of the run folder's path."""

    @field_validator("project")
    @classmethod
    def _refuse_what_wandb_refuses(cls, value: str) -> str:
        if set(value) & set("/\\#?%:"):
            raise ValueError(f"expected a name without / \\ # ? % or :, got {value!r}")
        return value


TLS_KEYS = ("tls_cert", "tls_key", "tls_ca")


class SecurityConfig(Settings):
    """Section `security`: certificates and tokens of all connections. See docs/security.md."""

    tls_cert: FilePath | None = None
    """Certificate of the servers, as a PEM file relative to the YAML file. Set tls_cert, tls_key
    and tls_ca together; without them, connections are not encrypted."""
    tls_key: FilePath | None = None
    """Private key of tls_cert, as a PEM file relative to the YAML file."""
    tls_ca: FilePath | None = None
    """CA certificates that the run trusts, among them the one that signed tls_cert, as a PEM file
    relative to the YAML file."""
    tls_client_cert_required: bool = False
    """Require clients to present a certificate signed by tls_ca. The run's own clients present
    tls_cert."""
    tokens_file: FilePath | None = None
    """File with the tokens that servers accept, one "ROLE TOKEN" per line; null: no tokens
    required."""
    token_file: FilePath | None = None
    """File with the token that the run's own clients send (rlx server, learner, environments)."""
    insecure: bool = False
    """Allow listening on addresses that other machines can reach without TLS and tokens."""


class LearnerConfig(Settings):
    """Section `learner`."""

    placement: Placement | None = None
    """Where the learner runs: agent, in a process beside the agents of each rlx server; server, in
    the parameter server, which then receives experience instead of gradients; standalone, in a
    process of its own, which receives the experience and publishes to the parameter server (in
    `relaax train` the same as server); null: server for algorithms whose iterations have a fixed
    size or that have a replay table, and for learning from recordings; agent for the others, and
    with combine.method sync."""
    bind: LearnerAddress = Address("localhost", LEARNER_PORT)
    """Placement standalone: HOST:PORT where the learner takes experience; port 0: any."""
    advertise: LearnerAddress | None = None
    """Placement standalone: HOST:PORT under which rlx servers reach the learner; null: that of
    bind."""
    max_rollouts_ahead: int | None = Field(default=None, ge=0, le=16)
    """Number of unacknowledged rollouts with which an agent keeps acting, over the network. 0: it
    waits until each rollout has been learned from, or is known not to complete an iteration; null:
    8 for algorithms with a replay table, 1 with placement agent for other algorithms whose
    iterations have no fixed size, else 0."""
    max_segment_sec: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Longest time in seconds, over the network, from the first step of a rollout to its
    submission, for plans of kind OnPolicy without overlap: a slow environment then sends what it
    has, in rollouts of fewer steps; null: no limit."""
    max_lag: int | None = Field(default=None, ge=0)
    """Placement agent: number of versions that the oldest step of an iteration can be behind the
    values that learn from it; older iterations are dropped, and counted. null: no limit."""
    target_return: float | None = None
    """Training ends when the mean return of the last target_episodes episodes reaches this
    value."""
    target_episodes: int = Field(default=100, ge=1)
    """Number of most recent episodes whose mean return is compared with target_return: the same
    number of each slot that plays, so rounded up to a multiple of the number of slots."""
    max_episodes: int | None = Field(default=None, ge=1)
    """Training ends after this number of training episodes; null: no limit."""
    eval_freq: int = Field(default=0, ge=0)
    """Iterations (placement agent: versions) between two evaluations with greedy episodes; 0: no
    evaluations. The best policy so far is kept as a snapshot, judged by its evaluations, or by its
    training returns if there are none."""
    num_eval_eps: int = Field(default=10, ge=1)
    """Episodes per evaluation."""
    target_eval_return: float | None = Field(default=None, allow_inf_nan=False)
    """Training ends when the mean return of an evaluation (eval_freq) reaches this value."""
    workers: int = Field(default=0, ge=0, le=1024)
    """`relaax train`: number of processes that play, each in environment.slots environments. 0: the
    process that learns also plays."""
    backprop_workers: int = Field(default=1, ge=-1, le=1024)
    """Placements server and standalone: threads that compute an update; -1: the fastest number,
    which is measured when the run starts."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where updates are computed; auto: on a GPU if TensorFlow finds one. gpu is refused where
    there is none."""
    save_freq: int = Field(default=-1, ge=-1)
    """Iterations (placement agent: versions) between two copies of policy and optimizers in
    RUN/ckpt, which are kept; -1: no copies."""
    collect_traj: bool = False
    """Also write the training data to RUN/trajectories: with placements server and standalone one
    file per iteration; with placement agent each learner writes a file per about 4096 steps."""
    collect_traj_max_mb: float = Field(default=1000.0, gt=0)
    """Megabytes of trajectory files after which a learner writes no more; a warning is logged."""
    offline: Sources | None = None
    """`relaax train`: recordings to learn from instead of playing, for algorithms that support it:
    one source, or a list of several. Folders of trajectory files, relative to the working
    directory; `minari:ID` or `minari:FOLDER`, a local Minari data set."""
    previous: Annotated[Path, AfterValidator(Path.absolute)] | None = None
    """Folder of the run whose newest weights this run starts from; that run is not changed.
    Relative to the working directory."""
    hook: dict[str, JsonValue] = Field(default_factory=dict)
    """Hooks of the learner; see config/base_learner.py. With placement agent, each rlx server's
    or worker's learner has them, except those of checkpoints."""

    @field_validator("backprop_workers")
    @classmethod
    def _refuse_none(cls, value: int) -> int:
        if not value:
            raise ValueError("expected 1 or more, or -1 (the fastest number), got 0")
        return value

    @property
    def publishes(self) -> bool:
        """Whether the run learns in one place, from which complete values are published."""
        return self.placement in ("server", "standalone")


_ENV = AliasChoices("env", "env_name")
_REPEAT = AliasChoices("action_repeat", "actrep")
_RANDOM = AliasChoices("random_steps", "rnd")
_LIMIT = AliasChoices("max_episode_steps", "limit", "max_traj_len")


class EnvironmentConfig(Settings):
    """Section `environment`: the environment of a run.

    `relaax run` starts it as clients; `relaax train` steps those of all clients together in its own
    process, or `slots` in each worker; other commands step `slots` of them.
    """

    program: Annotated[str | None, IN_JOBS] = None
    """Name of a shipped environment (a folder in environments/); set exactly one of program and
    path. By default OpenAI_Gym, if env is set and path is not."""
    path: str | None = None
    """Your own program, or a folder with main or slots.py in it, relative to the YAML file."""
    env: Annotated[str | None, IN_JOBS] = Field(default=None, validation_alias=_ENV)
    """Name of the environment, passed to the program as --env."""
    clients: int = Field(default=1, ge=0)
    """Number of processes that `relaax run` starts; 0: only servers, and others play.
    `relaax train` steps the environments of all of them in one process."""
    slots: int = Field(default=1, ge=1)
    """Environments that each client steps together."""
    action_repeat: int = Field(default=1, ge=1, validation_alias=_REPEAT)
    """Number of times each action is repeated in the environment, with rewards summed. Everything
    that is counted in environment steps (global_t, max_episode_steps, random_steps, episode
    lengths) counts actions, not repeats."""
    random_steps: int = Field(default=0, ge=0, validation_alias=_RANDOM)
    """Number of random actions at the start of each episode."""
    max_episode_steps: int | None = Field(default=None, ge=1, validation_alias=_LIMIT)
    """Environment steps after which an episode is truncated; null: only the environment's own limit
    counts."""
    seed_resets: bool = False
    """Pass a new seed, drawn from each slot's own stream, to every reset; for environments whose
    later episodes do not continue the stream of the first seed."""
    masks: Annotated[str, IN_JOBS] = "auto"
    """Where environments of Gymnasium say which actions are legal: a leaf of a Dict observation or
    an entry of info, bool, True for each legal choice; auto: `action_mask`, if there is one; off:
    nowhere."""
    args: dict[str, JsonValue] = Field(default_factory=dict)
    """Arguments of the environment's constructor."""
    versions: Literal["on", "off"] = "on"
    """Whether the run notes the versions of the environment's packages, in RUN/versions.json."""


SECTION_MODELS: dict[str, type[Settings]] = {
    PARAMETER_SERVER: ParameterServerConfig,
    RLX_SERVER: RlxServerConfig,
    METRICS_SERVER: MetricsServerConfig,
    WANDB: WandbConfig,
    SECURITY: SecurityConfig,
    LEARNER: LearnerConfig,
    ALGORITHM: AlgorithmConfig,  # the base class; the algorithm's folder has the actual one
    ENVIRONMENT: EnvironmentConfig,
}
SECTIONS = tuple(SECTION_MODELS)


def to_attribute(section: str) -> str:
    """Returns the attribute of an `Experiment` that holds a section."""
    return section.removeprefix("relaax-").replace("-", "_")


@dataclass(frozen=True, kw_only=True)
class PolicyRun:
    """One of several policies of a run.

    Attributes:
      agents: names and patterns of its agents; see `config.policies.map_agents`.
      trains: whether it learns; otherwise it plays with the values that its run has.
      experiment: its own run.
    """

    agents: tuple[str, ...]
    trains: bool
    experiment: "Experiment"


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One YAML file, fully validated; every default is filled in.

    Attributes:
      file: the YAML file.
      seed: see `config.seeds.derive_seed`.
      run_dir: folder of everything that the run writes.
      compile_cache: see `nn.compiling.use_compile_cache`.
      parameter_server: its section.
      rlx_server: its section.
      metrics_server: None when the file has no such section.
      wandb: None when the file has no such section.
      security: its paths are absolute; whether the files exist is checked when they are used.
      learner: its section; `placement` and `max_rollouts_ahead` are never None.
      algorithm: an instance of the algorithm folder's own `Config`.
      algorithm_folder: absolute; for `config.algorithm_folder.load_algorithm_module`.
      environment: None when the file has no such section.
      environment_program: the file to start, or slots.py if there is no program; None without an
        environment.
      policies: name -> one of several policies, each with a run of its own; {}: this is the run of
        one policy. With several, the sections of which policies have their own are those of the
        first one.
      policy: its name, if this is the run of one of several policies.
    """

    file: Path
    seed: int
    run_dir: Path
    compile_cache: Path | str | None
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
    policies: Mapping[str, PolicyRun] = field(default_factory=dict)
    policy: str = ""

    @property
    def runs(self) -> "list[Experiment]":
        """The runs of its policies; without several, only itself."""
        return [policy.experiment for policy in self.policies.values()] or [self]

    @property
    def sections(self) -> dict[str, Settings | None]:
        """Name of each section -> the section."""
        return {name: getattr(self, to_attribute(name)) for name in SECTIONS}

    @property
    def optimizers(self) -> dict[str, OptimizerConfig]:
        """Variable group -> optimizer; the parameter server's setting, else the algorithm's."""
        own = self.parameter_server.optimizers
        return self.algorithm.optimizers if own is None else own
