"""`relaax trace`: shows where a run's time went, for people and for Perfetto."""

from pathlib import Path

from relaax_like.reports.chrome_trace import write_chrome_trace
from relaax_like.reports.trace import (
    compute_report,
    find_bottleneck,
    find_trace_folder,
    format_report,
    load_traces,
)


def show_trace(run_dir: Path, output: Path | None) -> int:
    """Merges a run's traces into one file, and prints a table of times and what limits the run.

    Args:
      run_dir: the run's folder, or the folder with its traces.
      output: file to write; None: trace.json.gz next to the traces.

    Raises:
      ConfigError: see `find_trace_folder`, `load_traces` and `write_chrome_trace`.
    """
    folder = find_trace_folder(run_dir)
    traces, skipped = load_traces(folder)
    for line in skipped:
        print(f"skipped {line}")
    output = output or folder / "trace.json.gz"
    events = write_chrome_trace(traces, output)
    report = compute_report(traces)
    processes = "1 process" if len(traces) == 1 else f"{len(traces)} processes"
    what = "during which" if report.is_common else "in total; there was no time when"
    print(f"{processes}, {report.window_sec:.1f} s {what} all roles were running")
    for trace in traces:
        if trace.overwritten:
            print(
                f"{trace.path.name}: its oldest {trace.overwritten:,} spans were overwritten "
                f"by newer ones; {len(trace.spans):,} remain"
            )
    print(f"{events:,} events in {output}: open it in https://ui.perfetto.dev")
    print(f"\n{format_report(report)}\n\n{find_bottleneck(report)}")
    return 0
