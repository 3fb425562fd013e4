"""Former names."""  # moved: delete after the merge

from palmette.metrics import SHOWN, Report, Row

__all__ = ["SHOWN", "Report", "Row"]
