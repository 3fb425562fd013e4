"""Former names."""  # moved: delete after the merge

from palmette.data.files import existing, is_jsonl, located, read_jsonl, read_lines

__all__ = ["existing", "is_jsonl", "located", "read_jsonl", "read_lines"]
