"""A run on one page: report.html, self-contained."""

from trellis.report.page import write_report

__all__ = ["write_report"]
