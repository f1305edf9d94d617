"""Every failure a user can meet, as a value with a stable code.

Rules
- A failure is a `Kind` in `catalogue.py`; it is raised with `KIND.error(...)` and nowhere built by hand.
- The first line is what is wrong in the user's words, with file and line where there is one.
- `why` and `fix` of the kind are the long form, printed by `penstock explain-error CODE` and in docs/errors.md.
- A hint given at the place of the failure beats the general `fix`.
"""

from penstock.errors.base import ExitCode, Kind, Location, PenstockError
from penstock.errors.suggest import did_you_mean

__all__ = ["ExitCode", "Kind", "Location", "PenstockError", "did_you_mean"]
