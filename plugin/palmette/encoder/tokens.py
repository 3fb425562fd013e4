"""Tokenizers that threads may share."""

from __future__ import annotations

from typing import Any


def without_limits(tokenizer: Any) -> Any:
    """Copy a tokenizer of the library ``tokenizers``, to count all tokens of texts.

    The library keeps padding and truncation in the tokenizer. A copy that has neither, and that nobody sets, serves any
    number of threads without a lock.
    """
    from tokenizers import Tokenizer

    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_padding()
    copy.no_truncation()
    copy.encode_special_tokens = tokenizer.encode_special_tokens  # which is not in the text
    return copy
