"""Which words name a group of texts? Four weights of terms, judged by titles and by how well words go together.

    PALMETTE_DATA=DATA python benchmarks/topics.py

Texts of collections with titles (vectors in DATA/encodings) are clustered by k-means. *title*: share of the words of a
cluster's most frequent title that are among its eight terms; the texts do not contain the titles. *npmi*: coherence of
its first five words in the collection itself.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.cluster import KMeans

from common import command_line, number, parse_with_data
from palmette.arrays import unit_rows
from palmette.lexical.terms import add_counts, count_terms, divergence, top_terms
from quality import WORDS, coherence

SETS = {"squad": (12, 64), "fairytaleqa": (12, 64), "medquad": (12, 64), "scifact": (12,)}
LISTED = 8
Weight = Callable[[Any, Any, Any, int], Any]


def log_odds(count: Any, texts: Any, total: Any, all_texts: int) -> Any:
    """Log-odds against the rest, in standard errors (Monroe, Colaresi and Quinn, 2008)."""
    usual = 10.0 * total / all_texts
    inside, outside = count + usual, total - count + usual
    odds = inside / (texts + 10.0 - inside) / (outside / (all_texts - texts + 10.0 - outside))
    weight = np.log(odds) / np.sqrt(1 / inside + 1 / outside)
    return np.where(weight > 2.0, weight, 0.0)


def mutual_information(count: Any, texts: Any, total: Any, all_texts: int) -> Any:
    """Normalised pointwise mutual information (Bouma, 2009), with one text less than there is."""
    together = np.maximum(count - 1, 0.1) / all_texts
    return np.log(together * all_texts**2 / (texts * total)) / -np.log(together)


def class_tf_idf(count: Any, texts: Any, total: Any, all_texts: int) -> Any:
    """Class-based TF-IDF, over texts."""
    return count / texts * np.log(1 + count.sum() / len(np.unique(texts)) / total)


WEIGHTS: dict[str, Weight] = {
    "log-odds": log_odds,
    "NPMI": mutual_information,
    "class-TF-IDF": class_tf_idf,
    "divergence": divergence,
}


def words_of(title: str) -> set[str]:
    """Words of three letters and more, without a plural's s."""
    found = re.findall(r"[^\W\d_]{3,}", title.lower())
    return {word.removesuffix("s") for word in found} - {"the", "and", "for", "with"}


def named(texts: list[str], cluster: Any, weight: Weight, most: int) -> dict[int, list[str]]:
    """Terms of each cluster."""
    spelled, text, term = count_terms(texts)
    totals, sizes = np.bincount(term, minlength=len(spelled)), np.bincount(cluster)
    group, term, count = add_counts(cluster[text], term, np.ones(len(term), np.int64), len(spelled))
    values = weight(count, sizes[group], totals[term], len(texts))
    return {g: [word for word, _ in best] for g, best in top_terms(group, term, values, spelled, most)}


def main() -> None:
    args = parse_with_data(command_line(__doc__, "topics.md"), None)
    print("| set | clusters | " + " | ".join(f"{name}: title | npmi" for name in WEIGHTS) + " |")
    print("|---|---:|" + "---:|---:|" * len(WEIGHTS))
    table: list[list[float]] = []
    for name, sizes in SETS.items():
        with gzip.open(args.data / name / "corpus.jsonl.gz", "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        texts, titles = [row["text"] for row in rows], [row["title"] for row in rows]
        vectors = unit_rows(np.load(args.data / f"encodings/{name}.npz")["docs"].astype(np.float32))
        for clusters in sizes:
            cluster = KMeans(clusters, n_init=1, random_state=0).fit(vectors).labels_.astype(np.int64)
            cells: list[float] = []
            for weight in WEIGHTS.values():
                terms, shares = named(texts, cluster, weight, 4 * LISTED), []
                for group in range(clusters):
                    title = words_of(
                        Counter(titles[row] for row in np.flatnonzero(cluster == group)).most_common(1)[0][0]
                    )
                    held = words_of(" ".join(terms.get(group, [])[:LISTED]))
                    shares += [len(title & held) / len(title)] if title else []
                single = [[word for word in listed if " " not in word][:WORDS] for listed in terms.values()]
                together = coherence([listed for listed in single if len(listed) > 1], texts)
                cells += [float(np.mean(shares)), together]
            table.append(cells)
            print(f"| {name} | {clusters} | {' | '.join(map(number, cells))} |", flush=True)
    print(f"| mean | | {' | '.join(map(number, np.mean(table, axis=0)))} |")


if __name__ == "__main__":
    main()
