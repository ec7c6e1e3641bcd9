"""`relaax`: run, train, resume, eval, record, serve, export, examples, keys, gym, plot, ..."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from relaax_like import __version__
from relaax_like.cli import base
from relaax_like.cli.jobs import app as jobs_app
from relaax_like.cli.keys import KeysCommand, show_keys
from relaax_like.cli.options import (
    AcceptLossOption,
    AddressArgument,
    InsecureOption,
    RayOption,
    SetOption,
    TraceOption,
    WorkersRayOption,
    allow_insecure,
    command,
    make_app,
    to_overrides,
)
from relaax_like.config.keys import flags_to_overrides
from relaax_like.config.loader import load_experiment
from relaax_like.reports.modes import LogMode, XAxis
from relaax_like.supervision.process import setup_logging
from relaax_like.wire.errors import VERBOSE
from relaax_like.wire.security import ClientSecurity

app = make_app("Train agents over the network, on environments that cannot be imported.")
app.add_typer(jobs_app, name="jobs")

PARAMETER_SERVER = "localhost:7000"
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
    insecure: InsecureOption = False,
    trace: TraceOption = False,
    force: ForceOption = False,
    topology: Annotated[
        bool,
        typer.Option("--topology", help="Print the processes of the run as JSON, and start none."),
    ] = False,
    ray: RayOption = None,
    accept_loss: AcceptLossOption = False,
    sets: SetOption = [],  # noqa: B006 - typer wants a list
) -> int:
    """Run the experiment as several processes, and restart those that die.

    The run ends when it reaches its target or its budget, or with Ctrl-C.
    `relaax resume` continues it. Keys of the file are also flags: --learning-rate 3e-4.
    """
    from relaax_like.cli.training import begin_processes, print_topology

    overrides = allow_insecure(insecure, [*flags_to_overrides(config, context.args), *sets])
    if topology:
        return print_topology(config, overrides)
    return begin_processes(config, overrides, trace, force, ray, accept_loss)


@command(app, cls=KeysCommand, context_settings=KEYS_AS_FLAGS)
def train(
    context: typer.Context,
    config: ConfigArgument,
    trace: TraceOption = False,
    force: ForceOption = False,
    log: LogOption = LogMode.AUTO,
    ray: WorkersRayOption = None,
    accept_loss: AcceptLossOption = False,
    insecure: InsecureOption = False,
    sets: SetOption = [],  # noqa: B006 - typer wants a list
) -> int:
    """Train in one process, without a network; with --workers, environments run in others.

    After Ctrl-C, `relaax resume` continues as if the run had never been interrupted; with --workers
    or with environments or agents whose state cannot be saved, it starts new episodes.
    Keys of the file are also flags: --learning-rate 3e-4.
    """
    from relaax_like.cli.training import begin_training

    overrides = allow_insecure(insecure, [*flags_to_overrides(config, context.args), *sets])
    return begin_training(config, overrides, trace, force, log, ray, accept_loss)


@command(app, cls=KeysCommand, context_settings=KEYS_AS_FLAGS)
def resume(
    context: typer.Context,
    folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="The run's folder, or the config.yaml in it.")
    ],
    trace: TraceOption = False,
    log: LogOption = LogMode.AUTO,
    ray: WorkersRayOption = None,
    accept_loss: AcceptLossOption = False,
    insecure: InsecureOption = False,
    sets: SetOption = [],  # noqa: B006 - typer wants a list
) -> int:
    """Continue a run, in one process or several, as it was started.

    Settings are those of the folder's config.yaml.
    Keys can be changed as in `relaax train`: --max-global-step 2e6.
    """
    from relaax_like.cli.training import resume

    overrides = allow_insecure(insecure, sets)
    return resume(folder, context.args, overrides, trace, log, ray, accept_loss)


@command(app, name="eval")
def evaluate(
    config: RunArgument,
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
    bind: Annotated[
        str | None,
        typer.Option(help="Without an environment section: HOST:PORT that clients connect to."),
    ] = None,
    insecure: InsecureOption = False,
    as_json: JsonOption = False,
    sets: SetOption = [],  # noqa: B006 - typer wants a list
) -> int:
    """Play greedily with a snapshot, and print the mean return and its confidence interval.

    Without an environment section, clients play: start them as for training.
    """
    from relaax_like.config.run_folder import find_experiment

    file, folders = find_experiment(config)
    flags = to_overrides("relaax-rlx-server", {"bind": bind}, allow_insecure(insecure, sets))
    experiment = load_experiment(file, [*folders, *flags])
    level = "WARNING" if experiment.environment else experiment.rlx_server.log_level
    setup_logging(level, sys.stderr if as_json else None)
    from relaax_like.cli.evaluation import show_evaluation
    from relaax_like.launch.evaluation import Video

    wish = None if video is None else Video(path=video, episodes=video_episodes)
    return show_evaluation(experiment, episodes, version, wish, timeout, as_json)


@command(app)
def record(
    config: RunArgument,
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
    from relaax_like.config.run_folder import find_experiment

    file, folders = find_experiment(config)
    seeds = [] if seed is None else [f"seed={seed}"]
    experiment = load_experiment(file, [*folders, *sets, *seeds])
    setup_logging("INFO")
    from relaax_like.launch.recording import record

    recorded = record(experiment, output, steps, policy, version, append)
    print(f"recorded {recorded} to {output}")
    return 0


@command(app)
def serve(
    run: RunArgument,
    version: VersionOption = "latest",
    bind: Annotated[
        str | None,
        typer.Option(help="HOST:PORT to listen on; default: that of the run's rlx server."),
    ] = None,
    insecure: InsecureOption = False,
    sets: SetOption = [],  # noqa: B006 - typer wants a list
) -> int:
    """Answer clients with the best actions of a run's policy, without training.

    The run's folder is only read, so this also works beside a running training, on another port:
    --bind localhost:7011. Ctrl-C ends it.
    """
    from relaax_like.cli.serving import serve_run

    flags = to_overrides("relaax-rlx-server", {"bind": bind}, allow_insecure(insecure, sets))
    return serve_run(run, version, flags)


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
    from relaax_like.cli.export import export_run

    return export_run(run, version, to, sets)


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
    from relaax_like.cli.plot import list_curves, show_plot

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
    from relaax_like.cli.compare import show_comparison

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
    from relaax_like.cli.control import save_snapshot

    return save_snapshot(address, security)


@command(app, token_role="agent or operator")
def stop(
    security: ClientSecurity,
    address: AddressArgument = PARAMETER_SERVER,
) -> int:
    """Tell a parameter server to save and exit; the next start continues from there."""
    from relaax_like.cli.control import stop_server

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
    from relaax_like.cli.trace import show_trace

    return show_trace(folder, output)


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
