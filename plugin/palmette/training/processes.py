"""Moved."""  # moved: delete after the merge

from palmette.devices import SingleProcess as Processes
from palmette.devices import finish, main_process, processes
from palmette.devices import main_process_first as main_first

__all__ = ["Processes", "finish", "main_first", "main_process", "processes"]
