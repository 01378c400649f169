"""A run on one page, report.html, and models side by side in one picture; both self-contained."""
