"""Tells findings on standard error as they come."""

import sys

from kvikk.audit.findings import Finding
from kvikk.audit.report import story


class Printer:
    """Numbers them. Those that missed nothing are left to the report."""

    def __init__(self) -> None:
        self._number = 0

    def __call__(self, finding: Finding) -> None:
        """Print one."""
        if finding.missed_tokens:
            self._number += 1
            print("\n".join(story(finding, self._number)), file=sys.stderr, flush=True)
