"""The values that travel through palmette: documents in, hits and explanations out."""

from palmette.types.citations import CITATION as CITATION
from palmette.types.citations import CITED_BY as CITED_BY
from palmette.types.citations import PLACE as PLACE
from palmette.types.citations import PLACES as PLACES
from palmette.types.citations import Citation as Citation
from palmette.types.citations import cite as cite
from palmette.types.citations import join_numbered as join_numbered
from palmette.types.citations import numbered as numbered
from palmette.types.documents import LINE_END as LINE_END
from palmette.types.documents import LONGEST_DOCUMENT as LONGEST_DOCUMENT
from palmette.types.documents import LONGEST_ID as LONGEST_ID
from palmette.types.documents import Document as Document
from palmette.types.documents import Metadata as Metadata
from palmette.types.documents import Pair as Pair
from palmette.types.documents import Passage as Passage
from palmette.types.documents import content_digest as content_digest
from palmette.types.documents import table_heads as table_heads
from palmette.types.hits import Explanation as Explanation
from palmette.types.hits import Highlights as Highlights
from palmette.types.hits import Hit as Hit
from palmette.types.hits import Part as Part
from palmette.types.hits import SentenceVectors as SentenceVectors
