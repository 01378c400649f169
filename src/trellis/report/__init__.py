"""The report of a run, report.html, and comparison plots of models."""
