"""What people look at: live table, summary, plots, videos, comparisons, traces."""
