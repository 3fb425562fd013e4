"""Quality on judged queries: of models and indexes, beside BM25 and the untrained encoder; of two indexes."""

from palmette.evaluation.judged import BM25 as BM25
from palmette.evaluation.judged import Report as Report
from palmette.evaluation.judged import Row as Row
from palmette.evaluation.judged import evaluate as evaluate
from palmette.evaluation.judged import evaluate_index as evaluate_index
