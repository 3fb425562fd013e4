"""Former place of ``lexical/analyser.py``."""

from palmette.lexical.analyser import *  # noqa: F403  moved: delete after the merge
