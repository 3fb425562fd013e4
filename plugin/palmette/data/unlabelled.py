"""Former names."""  # moved: delete after the merge

from palmette.data.synthetic import UNSPACED, sentences, title_of

__all__ = ["UNSPACED", "sentences", "title_of"]
