"""palmette beside LlamaIndex's and LangChain's own PostgreSQL stores: the same server, texts, vectors and questions.

    pip install llama-index-vector-stores-postgres langchain-postgres     # in an environment of its own
    PALMETTE_DATA=DATA python benchmarks/postgres_peers.py cosqa squad scifact

DATA holds collections as BEIR folders, and all-MiniLM-L6-v2's vectors as ``encodings/NAME.npz``. Each store searches by
words and vectors as its documentation advises: LlamaIndex's hybrid mode, and its two searches joined by reciprocal
ranks (``QueryFusionRetriever``, twenty of each); LangChain's ``HybridSearchConfig`` with its default sum, and with
reciprocal ranks, twenty of each. palmette is untrained, and searches by its defaults. nDCG@10 of at most 300 test
questions, milliseconds of one after the other without encoding, seconds to load, megabytes with indexes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from common import command_line, parse_with_data, sampled
from curve import Recorded
from palmette import Index, RetrievalData, SpaceModel, load_data
from palmette.data.metrics import score_run
from recording import table, write_part

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from support import postgres

K, DEPTH, MOST = 10, 20, 300
Ask = Callable[[str], list[str]]
Loaded = tuple[dict[str, Ask], float, str]
"""Ways of asking, seconds to load, and the schema or table that was loaded."""


def sqlalchemy_url(driver: str) -> str:
    """URL of the server for a driver."""
    given = postgres.conninfo()
    return f"postgresql+{driver}://{given['user']}@/{given['dbname']}?host={given['host']}"


def palmette(data: RetrievalData, encoder: Any) -> Loaded:
    """An index in a schema."""
    url, began = postgres.new_url(index=f"palmette_{data.name}"), time.perf_counter()
    index = Index.create(url, SpaceModel.untrained(encoder), passages=None)
    index.add(list(data.corpus))
    took = time.perf_counter() - began
    return {"palmette": lambda text: [hit.id for hit in index.search(text, K)]}, took, f"palmette_{data.name}"


def llama_index(data: RetrievalData, encoder: Any) -> Loaded:
    """PGVectorStore with its column of words."""
    from llama_index.core import VectorStoreIndex
    from llama_index.core.embeddings import MockEmbedding
    from llama_index.core.llms import MockLLM
    from llama_index.core.retrievers import QueryFusionRetriever
    from llama_index.core.schema import QueryBundle, TextNode
    from llama_index.vector_stores.postgres import PGVectorStore

    store = PGVectorStore.from_params(
        connection_string=sqlalchemy_url("psycopg2"), async_connection_string=sqlalchemy_url("asyncpg"),
        table_name=data.name, schema_name="llama", embed_dim=encoder.dimension, hybrid_search=True,
        hnsw_kwargs={"hnsw_m": 16, "hnsw_ef_construction": 64, "hnsw_ef_search": 40},
    )  # fmt: skip
    texts, began = [document.content for document in data.corpus], time.perf_counter()
    vectors = encoder.encode(texts).tolist()
    for start in range(0, len(texts), 1000):
        some = slice(start, start + 1000)
        rows = zip(data.corpus[some], texts[some], vectors[some], strict=True)
        store.add([TextNode(id_=one.key, text=text, embedding=vector) for one, text, vector in rows])
    took = time.perf_counter() - began
    index = VectorStoreIndex.from_vector_store(store, embed_model=MockEmbedding(encoder.dimension))

    def retriever(mode: str, k: int) -> Any:
        return index.as_retriever(vector_store_query_mode=mode, similarity_top_k=k, sparse_top_k=k)

    hybrid = retriever("hybrid", K)
    fused = QueryFusionRetriever(
        [retriever("default", DEPTH), retriever("sparse", DEPTH)], similarity_top_k=K, num_queries=1,
        mode="reciprocal_rerank", use_async=False, llm=MockLLM(),
    )  # fmt: skip

    def asked(by: Any) -> Ask:
        def ask(text: str) -> list[str]:
            bundle = QueryBundle(text, embedding=encoder.encode_queries([text])[0].tolist())
            return [found.node.node_id for found in by.retrieve(bundle)][:K]

        return ask

    return {"LlamaIndex, hybrid": asked(hybrid), "LlamaIndex, fused": asked(fused)}, took, f"llama.data_{data.name}"


def langchain(data: RetrievalData, encoder: Any) -> Loaded:
    """PGVectorStore with its column of words and both indexes."""
    from langchain_core.embeddings import Embeddings
    from langchain_postgres import PGEngine, PGVectorStore
    from langchain_postgres.v2.hybrid_search_config import (
        HybridSearchConfig,
        reciprocal_rank_fusion,
        weighted_sum_ranking,
    )
    from langchain_postgres.v2.indexes import HNSWIndex

    class Given(Embeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return encoder.encode(texts).tolist()

        def embed_query(self, text: str) -> list[float]:
            return encoder.encode_queries([text])[0].tolist()

    def config(fusion: Any) -> Any:  # one for each question, whose words it would keep
        return HybridSearchConfig(
            tsv_column="tsv", tsv_lang="pg_catalog.english", fusion_function=fusion, primary_top_k=DEPTH,
            secondary_top_k=DEPTH, index_name=f"tsv_{data.name}",
        )  # fmt: skip

    engine, name, plain = PGEngine.from_connection_string(sqlalchemy_url("psycopg")), f"chain_{data.name}", Given()
    engine.init_vectorstore_table(
        name, encoder.dimension, id_column={"name": "langchain_id", "data_type": "TEXT", "nullable": False},
        hybrid_search_config=config(weighted_sum_ranking),
    )  # fmt: skip
    store = PGVectorStore.create_sync(engine, plain, name, hybrid_search_config=config(weighted_sum_ranking))
    began = time.perf_counter()
    store.add_texts([document.content for document in data.corpus], ids=[document.key for document in data.corpus])
    store.apply_vector_index(HNSWIndex())
    postgres.run(f"CREATE INDEX ON {name} USING gin (tsv)")
    took = time.perf_counter() - began

    def asked(fusion: Any) -> Ask:
        return lambda text: [
            str(found.id) for found in store.similarity_search(text, k=K, hybrid_search_config=config(fusion))
        ]

    ways = {"LangChain, sum": asked(weighted_sum_ranking), "LangChain, fused": asked(reciprocal_rank_fusion)}
    return ways, took, f"public.{name}"


def megabytes(place: str) -> float:
    """Size of a schema, or of a table, with its indexes."""
    schema, _, name = place.partition(".")
    only = f" AND relname = '{name}'" if name else ""
    sizes = "SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class WHERE relkind = 'r' AND "
    return float(postgres.run(f"{sizes} relnamespace = '{schema}'::regnamespace{only}")[0][0]) / 1e6


def main() -> None:
    parser = command_line(__doc__, "postgres.md")
    parser.add_argument("sets", nargs="+")
    args = parse_with_data(parser, None)
    postgres.server()
    postgres.run("CREATE EXTENSION IF NOT EXISTS vector")
    lines: dict[str, list[str]] = {}
    for name in args.sets:
        data = load_data(args.data / name, dev_fraction=0.0)
        encoder = Recorded(data, np.load(args.data / "encodings" / f"{name}.npz"))
        drawn = sampled(data, "test", encoder.known, MOST)
        judged = {data.queries[query]: data.qrels["test"][query] for query in drawn}
        asked = list(judged)
        for system in (palmette, llama_index, langchain):
            ways, loading, place = system(data, encoder)
            for way, ask in ways.items():
                took, run = [], {}
                for text in [*asked[:3], *judged]:
                    began = time.perf_counter()
                    run[text] = ask(text)
                    took.append(1000 * (time.perf_counter() - began))
                scored = score_run({text: run[text] for text in judged}, judged, ks=(K,))[f"ndcg@{K}"]
                cell = (
                    f"{scored:.3f}".lstrip("0"),
                    f"{np.median(took[3:]):.0f} ms",
                    f"{loading:.0f} s",
                    f"{megabytes(place):.0f} MB",
                )
                lines.setdefault(way, []).append(" / ".join(cell))
                print(name, len(judged), way, *cell, flush=True)
    write_part(
        args.out,
        "peers",
        table(["nDCG@10 / a question / to load / size", *args.sets], [[way, *cells] for way, cells in lines.items()]),
    )


if __name__ == "__main__":
    main()
