"""`relaax`: run, train, resume, eval, record, serve, export, examples, keys, gym, plot, ..."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from relaax_like import __version__
from relaax_like.cli import base
from relaax_like.cli.jobs import app as jobs_app
from relaax_like.cli.keys import KeysCommand, show_keys
from relaax_like.cli.options import (
    OwnPolicyOption,
    SetOption,
    TraceOption,
    command,
    make_app,
    to_overrides,
)
from relaax_like.config.keys import flags_to_overrides
from relaax_like.config.loader import load_experiment
from relaax_like.config.models import Experiment
from relaax_like.config.run_folder import find_experiment
from relaax_like.runs.folders.modes import LogMode, XAxis
from relaax_like.runs.processes.process import setup_logging
from relaax_like.wire.errors import VERBOSE, ConfigError
from relaax_like.wire.security import ClientSecurity

app = make_app("Train agents over the network, on environments that cannot be imported.")
app.add_typer(jobs_app, name="jobs")

PARAMETER_SERVER = "localhost:7000"
AddressArgument = Annotated[str, typer.Argument(help="HOST:PORT of the parameter server.")]
# An option that a command does not know can be a key of the file.
KEYS_AS_FLAGS = {"allow_extra_args": True, "ignore_unknown_options": True}
ConfigArgument = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG", help="The experiment's YAML file, or a name listed by `relaax examples`."
    ),
]
RunArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="A run's folder, an experiment's YAML file, or a name listed by `relaax examples`.",
    ),
]
RunsArgument = Annotated[
    list[Path],
    typer.Argument(metavar="RUN...", help="Folders of runs, or the config.yaml in each."),
]
VersionOption = Annotated[
    str,
    typer.Option(
        metavar="latest|best|N",
        help="Snapshot: the newest; the one with the highest mean return; or that of version N.",
    ),
]
BindOption = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Where clients connect; default: the run's rlx server."),
]
WorkersRayOption = Annotated[
    str | None,
    typer.Option(
        "--ray",
        "--redis",
        metavar="HOST:PORT|local",
        help="Run the workers (--workers) on the machines of this Ray cluster; local: start Ray "
        "here. --redis is OSU PPO's name for it.",
    ),
]
AcceptLossOption = Annotated[
    bool,
    typer.Option(
        "--accept-loss",
        help="Start a run that had begun, although its folder of checkpoints is empty: from its "
        "newest copy in mirror_url, or else from scratch.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ForceOption = Annotated[
    bool,
    typer.Option("--force", help="Move an older run in the folder to NAME.old-N."),
]
LogOption = Annotated[
    LogMode,
    typer.Option(
        help="auto: a live table in a terminal, otherwise lines; plain: lines; json: JSON."
    ),
]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Print the traceback of an error.")
    ] = False,
) -> None:
    if verbose:
        os.environ[VERBOSE] = "1"


@command(app, cls=KeysCommand, context_settings=KEYS_AS_FLAGS)
def run(
    context: typer.Context,
    config: ConfigArgument,
    overrides: list[str],
    trace: TraceOption = False,
    force: ForceOption = False,
    topology: Annotated[
        bool,
        typer.Option("--topology", help="Print the processes of the run as JSON, and start none."),
    ] = False,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT|local",
            help="Place the processes on the machines of this Ray cluster; local: start Ray here.",
        ),
    ] = None,
    accept_loss: AcceptLossOption = False,
) -> int:
    """Run the experiment as several processes, and restart those that die.

    The run ends when it reaches its target or its budget, or with Ctrl-C.
    `relaax resume` continues it. Keys of the file are also flags: --learning-rate 3e-4.
    """
    from relaax_like.cli.training import begin, print_topology

    sets = [*flags_to_overrides(config, context.args), *overrides]
    if topology:
        return print_topology(config, sets)
    return begin(config, sets, trace, force, None, ray, accept_loss)


@command(app, cls=KeysCommand, context_settings=KEYS_AS_FLAGS)
def collect(
    context: typer.Context,
    config: ConfigArgument,
    address: Annotated[
        str,
        typer.Argument(
            metavar="HOST:PORT",
            help="Address of the run's rlx server, or with --own-policy of its parameter server.",
        ),
    ],
    overrides: list[str],
    own_policy: OwnPolicyOption = False,
) -> int:
    """Play for a run whose servers run elsewhere: start the environments of CONFIG.

    After SIGHUP, they end with their next episodes.
    """
    from relaax_like.cli.training import play

    sets = [*flags_to_overrides(config, context.args), *overrides]
    return play(config, sets, address, own_policy)


@command(app, cls=KeysCommand, context_settings=KEYS_AS_FLAGS)
def train(
    context: typer.Context,
    config: ConfigArgument,
    overrides: list[str],
    trace: TraceOption = False,
    force: ForceOption = False,
    log: LogOption = LogMode.AUTO,
    ray: WorkersRayOption = None,
    accept_loss: AcceptLossOption = False,
) -> int:
    """Train in one process, without a network; with --workers, environments run in others.

    After Ctrl-C, `relaax resume` continues as if the run had never been interrupted; with --workers
    or with environments or agents whose state cannot be saved, it starts new episodes.
    Keys of the file are also flags: --learning-rate 3e-4.
    """
    from relaax_like.cli.training import begin

    sets = [*flags_to_overrides(config, context.args), *overrides]
    return begin(config, sets, trace, force, log, ray, accept_loss)


@command(app, cls=KeysCommand, context_settings=KEYS_AS_FLAGS)
def resume(
    context: typer.Context,
    folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="The run's folder, or the config.yaml in it.")
    ],
    overrides: list[str],
    trace: TraceOption = False,
    log: LogOption = LogMode.AUTO,
    ray: WorkersRayOption = None,
    accept_loss: AcceptLossOption = False,
) -> int:
    """Continue a run, in one process or several, as it was started.

    Settings are those of the folder's config.yaml.
    Keys can be changed as in `relaax train`: --max-global-step 2e6.
    """
    from relaax_like.cli.training import resume

    return resume(folder, context.args, overrides, trace, log, ray, accept_loss)


@command(app, name="eval")
def evaluate(
    run: RunArgument,
    overrides: list[str],
    episodes: Annotated[int, typer.Option(min=1, help="Number of episodes to play.")] = 100,
    version: VersionOption = "latest",
    video: Annotated[
        Path | None, typer.Option(help="Also record episodes to this .mp4 or .gif file.")
    ] = None,
    video_episodes: Annotated[
        int, typer.Option(min=1, help="Number of episodes in the video.")
    ] = 1,
    timeout: Annotated[
        float,
        typer.Option(
            min=0.001,
            help="Without an environment section: seconds to wait without any client's message.",
        ),
    ] = 60.0,
    bind: BindOption = None,
    as_json: JsonOption = False,
) -> int:
    """Play greedily with a snapshot, and print the mean return and its confidence interval.

    Without an environment section, clients play: start them as for training.
    """
    overrides = to_overrides("relaax-rlx-server", {"bind": bind}, overrides)
    experiment = _load_run(run, overrides, several=True)
    level = "WARNING" if experiment.environment else experiment.rlx_server.log_level
    setup_logging(level, sys.stderr if as_json else None)
    if video is not None and experiment.environment is None:
        raise ConfigError(
            f"{experiment.file}: --video needs an `environment` section, because the environment "
            "is drawn in this process; add one, or omit --video"
        )
    from relaax_like.launch import evaluation

    if experiment.environment is None:
        from relaax_like.launch.client_evaluation import evaluate_with_clients

        results = {"": evaluate_with_clients(experiment, episodes, version, timeout)}
    else:
        wish = None if video is None else evaluation.Video(path=video, episodes=video_episodes)
        results = evaluation.evaluate_policies(experiment, episodes, version, wish)
    if as_json:
        numbers = {name: evaluation.evaluation_to_dict(one) for name, one in results.items()}
        print(json.dumps(numbers.get("", numbers)))
    else:
        print("\n".join(evaluation.format_evaluations(results)))
    return 0


@command(app)
def record(
    run: RunArgument,
    steps: Annotated[
        int, typer.Option(min=1, help="Environment steps to record, of all slots together.")
    ],
    output: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder to write to; it is created.")
    ],
    policy: Annotated[
        str,
        typer.Option(
            metavar="sampled|greedy|random",
            help="Actions: drawn as in training; the best ones; or uniform ones, without a "
            "snapshot.",
        ),
    ] = "sampled",
    version: VersionOption = "latest",
    append: Annotated[
        bool,
        typer.Option("--append", help="Add to the recordings that FOLDER already contains."),
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="Seed of environments and actions; default: the run's.")
    ] = None,
    sets: SetOption = [],  # noqa: B006 - typer wants a list
) -> int:
    """Play with a run's policy, or at random, and write the steps to files to learn from.

    `relaax train FILE --offline FOLDER` learns from them, with an algorithm that supports it.
    After Ctrl-C, the files that were written can be used; --append adds new episodes.
    """
    experiment = _load_run(run, [*sets, *([] if seed is None else [f"seed={seed}"])])
    setup_logging("INFO")
    from relaax_like.launch.recording import record

    recorded = record(experiment, output, steps, policy, version, append)
    print(f"recorded {recorded} to {output}")
    return 0


@command(app)
def serve(
    run: RunArgument,
    overrides: list[str],
    version: VersionOption = "latest",
    bind: BindOption = None,
) -> int:
    """Answer clients with the best actions of a run's policy, without training.

    The run's folder is only read, so this also works beside a running training, on another port:
    --bind localhost:7011. Ctrl-C ends it.
    """
    experiment = _load_run(run, to_overrides("relaax-rlx-server", {"bind": bind}, overrides))
    setup_logging(experiment.rlx_server.log_level)
    from relaax_like.launch.serving import run_policy_server

    return run_policy_server(experiment, version)


@command(app)
def export(
    run: RunArgument,
    to: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder to write to; default: RUN/export/VERSION."),
    ] = None,
    version: VersionOption = "latest",
    sets: SetOption = [],  # noqa: B006 - typer wants a list
) -> int:
    """Write a run's greedy policy as ONNX and as a TensorFlow SavedModel, and compare them with it.

    The files run without relaax_like. Observations are normalised in them; the memory of a
    recurrent policy is an input and an output.
    """
    experiment = _load_run(run, sets)
    setup_logging("WARNING")
    from relaax_like.launch.export import export_policy

    exported = export_policy(experiment, version, to)
    print(f"policy of step {exported.global_t:,}, version {exported.version:,}:")
    for kind, path in exported.files.items():
        print(f"  {path}  ({kind})")
    print("  inputs   " + "; ".join(exported.inputs))
    print("  outputs  " + "; ".join(exported.outputs))
    for kind, error in exported.errors.items():
        print(
            f"{kind} computes the same as the run's own agents: {exported.compared:,} random "
            f"inputs, largest difference {error:.1e}"
        )
    return 0


def _load_run(run: Path, overrides: Sequence[str], several: bool = False) -> Experiment:
    """Loads the experiment of a run's folder, a YAML file, or a shipped experiment's name.

    Args:
      run: its folder, or a file.
      overrides: of keys of the file.
      several: see `load_experiment`.

    Raises:
      ConfigError: see `find_experiment` and `load_experiment`.
    """
    file, folders = find_experiment(run)
    return load_experiment(file, [*folders, *overrides], several=several)


@command(app)
def examples(
    copy: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Copy all of them to DIR; existing files are never overwritten."
        ),
    ] = None,
) -> int:
    """List the experiments, algorithms and environments that come with this package."""
    from relaax_like.cli.examples import copy_examples, list_examples

    return list_examples() if copy is None else copy_examples(copy)


@command(app)
def new(
    folder: Annotated[Path, typer.Argument(metavar="NAME", help="The folder to make.")],
    language: Annotated[
        str,
        typer.Option(
            help="python, js, csharp, cpp, c, gdscript, or json: lines of JSON without a library."
        ),
    ] = "python",
    observation: Annotated[
        str, typer.Option(metavar="SPACE", help='Such as {"box": [4]}; see docs/json.md.')
    ] = '{"box": [4]}',
    action: Annotated[
        str, typer.Option(metavar="SPACE", help='Such as {"discrete": 2} or {"box": [2]}.')
    ] = '{"discrete": 2}',
) -> int:
    """Write the folder of an environment of your own, in a language, which runs at once."""
    from relaax_like.cli.new import write_environment

    return write_environment(folder, language, observation, action)


@command(app)
def keys(config: ConfigArgument) -> int:
    """List every key of an experiment's file with its type, default and meaning."""
    return show_keys(config)


@command(app, name="check-client", context_settings={"allow_interspersed_args": False})
def check_client(
    program: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- PROGRAM ARGS...]",
            help="Starts the client; it also gets --rlx-server and --name. Without it, start the "
            "client when asked to.",
        ),
    ] = None,
    bind: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Listen there; default: any port, or localhost:7001."
        ),
    ] = None,
    as_json: JsonOption = False,
    show_list: Annotated[bool, typer.Option("--list", help="List the checks; make none.")] = False,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The token that the client must send.")
    ] = None,
    silence: Annotated[
        float,
        typer.Option(
            min=0.0,
            metavar="SEC",
            help="Check that the client gives up a silent server after this time; 0: do not.",
        ),
    ] = 0.0,
) -> int:
    """Check a client in any language: play its server, in usual and in unusual ways."""
    from relaax_like.cli.check_client import list_checks, show_client_checks

    if show_list:
        return list_checks()
    return show_client_checks(program or [], bind, token_file, silence, as_json)


@command(app, name="check-algorithm")
def check_algorithm(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FOLDER|CONFIG",
            help="Name of an algorithm, its folder, or an experiment's file to check it with.",
        ),
    ],
    learn_sec: Annotated[
        float, typer.Option(min=1.0, help="Seconds of processor time to learn in.")
    ] = 30.0,
    only: Annotated[
        list[str],
        typer.Option(metavar="CHECK", help="Run only this check; can be repeated."),
    ] = [],  # noqa: B006 - typer wants a list
    sets: SetOption = [],  # noqa: B006 - typer wants a list
) -> int:
    """Check an algorithm's folder: specs, NumPy and TensorFlow, resume, export, learning, ..."""
    from relaax_like.cli.check_algorithm import show_checks

    setup_logging("WARNING")
    return show_checks(name, sets, learn_sec, only)


@app.command(
    name="gym",
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def run_gym(context: typer.Context) -> None:
    """Run a Gymnasium environment as a client of an rlx server; see `relaax gym --help`."""
    base.run_gym(context.args)


@command(app)
def plot(
    runs: RunsArgument,
    curve: Annotated[
        str | None,
        typer.Option(help="Name of the curve; default: the mean return, or the episode rewards."),
    ] = None,
    x: Annotated[XAxis, typer.Option("--x", help="Environment steps or seconds.")] = XAxis.STEPS,
    smooth: Annotated[
        int, typer.Option(min=1, help="Number of points averaged into each plotted point.")
    ] = 1,
    out: Annotated[Path, typer.Option(help="File to write: .png, .pdf or .svg.")] = Path(
        "curves.png"
    ),
    list_: Annotated[
        bool, typer.Option("--list", help="List the names of the curves instead.")
    ] = False,
) -> int:
    """Plot a curve of runs; runs that differ only in their seed become a mean with a band."""
    from relaax_like.cli.runs import list_curves, show_plot

    return list_curves(runs) if list_ else show_plot(runs, curve, x, smooth, out)


@command(app)
def compare(
    runs: RunsArgument,
    target: Annotated[
        float | None,
        typer.Option(help="Mean return; also print the steps and seconds needed to reach it."),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Compare the results of runs, and list the settings in which they differ."""
    from relaax_like.cli.runs import show_comparison

    return show_comparison(runs, target, as_json)


@command(app, token_role="agent or operator")
def status(
    security: ClientSecurity,
    address: AddressArgument = PARAMETER_SERVER,
    watch: Annotated[bool, typer.Option(help="Refresh every second until Ctrl-C.")] = False,
) -> int:
    """Show the progress of a training run."""
    from relaax_like.cli.status import show_status

    return show_status(address, watch, security)


@command(app, token_role="agent or operator")
def save(
    security: ClientSecurity,
    address: AddressArgument = PARAMETER_SERVER,
) -> int:
    """Tell a parameter server to write a snapshot now, and print its path on that machine."""
    from relaax_like.cli.status import save_snapshot

    return save_snapshot(address, security)


@command(app, token_role="agent or operator")
def stop(
    security: ClientSecurity,
    address: AddressArgument = PARAMETER_SERVER,
) -> int:
    """Tell a parameter server to save and exit; the next start continues from there."""
    from relaax_like.cli.status import stop_server

    return stop_server(address, security)


@command(app, name="trace")
def explain_trace(
    folder: Annotated[
        Path,
        typer.Argument(metavar="RUN_DIR", help="The run's folder, or the folder with its traces."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(help="File for the merged trace; default: trace.json.gz next to the traces."),
    ] = None,
) -> int:
    """Show where the time of a traced run went, and merge its traces for ui.perfetto.dev."""
    from relaax_like.runs.folders import trace
    from relaax_like.runs.folders.chrome_trace import write_chrome_trace

    traced = trace.find_trace_folder(folder)
    traces, skipped = trace.load_traces(traced)
    for line in skipped:
        print(f"skipped {line}")
    output = output or traced / "trace.json.gz"
    events = write_chrome_trace(traces, output)
    report = trace.compute_report(traces)
    processes = "1 process" if len(traces) == 1 else f"{len(traces)} processes"
    what = "during which" if report.is_common else "in total; there was no time when"
    print(f"{processes}, {report.window_sec:.1f} s {what} all roles were running")
    for one in traces:
        if one.overwritten:
            print(
                f"{one.path.name}: its oldest {one.overwritten:,} spans were overwritten by newer "
                f"ones; {len(one.spans):,} remain"
            )
    print(f"{events:,} events in {output}: open it in https://ui.perfetto.dev")
    print(f"\n{trace.format_report(report)}\n\n{trace.find_bottleneck(report)}")
    return 0


@command(app)
def fsck(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="The run's folder, or its checkpoint folder.")
    ],
    to_last_good: Annotated[
        bool,
        typer.Option("--to-last-good", help="Move everything after the first damage aside."),
    ] = False,
) -> int:
    """Check a run's snapshots and journals; first stop the run's servers and learner."""
    from relaax_like.cli.fsck import check_folder

    return check_folder(folder, to_last_good)


@command(app)
def diagnose(
    path: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="The run's folder, or its training_error.npz.")
    ],
) -> int:
    """Explain why a training run stopped with numbers that are not finite."""
    from relaax_like.cli.diagnose import show_diagnosis

    return show_diagnosis(path)


@command(app)
def doctor() -> int:
    """Check this installation: libraries, compiled kernels, ports, display."""
    from relaax_like.cli.doctor import run_checks

    return run_checks()


if __name__ == "__main__":
    app()
