"""Checkpoints: how a trained model lies on disk, and how it travels through the Hugging Face Hub.

A checkpoint is data, never code: JSON and safetensors, with a manifest of sizes and SHA-256 sums that every
load checks, because neither the disk nor the Hub's client does. This package knows no method; it stores what
a model hands it.

    layout.py      the names of the files, the manifest, and the check
    folder.py      writing a folder so that a kill leaves the old checkpoint or the new one
    checkpoint.py  Checkpoint, save_checkpoint, open_folder
    remote.py      open_checkpoint, push_checkpoint, pull
    failures.py    the Hub client's errors in palmette's words
    card.py        the model card, from the template card.md
"""

from palmette.hub.card import render_card
from palmette.hub.checkpoint import Checkpoint, fingerprint_of, save_checkpoint
from palmette.hub.folder import check_target
from palmette.hub.layout import LAYOUT, Layout
from palmette.hub.remote import open_checkpoint, pull, push_checkpoint

__all__ = [
    "LAYOUT",
    "Checkpoint",
    "Layout",
    "check_target",
    "fingerprint_of",
    "open_checkpoint",
    "pull",
    "push_checkpoint",
    "render_card",
    "save_checkpoint",
]
