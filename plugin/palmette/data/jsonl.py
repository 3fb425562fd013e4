"""Former names."""  # moved: delete after the merge
# ruff: noqa: F401

from palmette.data.files import existing, is_jsonl, located, read_jsonl, read_lines
