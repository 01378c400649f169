"""A run on one page, report.html, and models side by side in one picture; both self-contained."""

from trellis.report.comparison import write_comparison
from trellis.report.page import write_report

__all__ = ["write_comparison", "write_report"]
