"""Checkpoints: how a trained model lies on disk, and how it travels through the Hugging Face Hub.

A checkpoint is data, never code: JSON and safetensors, with a manifest of sizes and SHA-256 sums that every load
checks, because neither the disk nor the Hub's client does.
"""

from palmette.hub.card import render_card
from palmette.hub.checkpoint import LAYOUT, Checkpoint, check_target, save_checkpoint
from palmette.hub.remote import open_checkpoint, pull, push_checkpoint

__all__ = [
    "LAYOUT",
    "Checkpoint",
    "check_target",
    "open_checkpoint",
    "pull",
    "push_checkpoint",
    "render_card",
    "save_checkpoint",
]
