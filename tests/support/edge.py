"""The engine in this process behind the calls of Qdrant's client that palmette makes: real searches, a real log."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import qdrant_edge as edge
from pydantic import BaseModel

from palmette_qdrant.client import EMBEDDED

GRAPHS: Any = None
"""The engine's settings of graphs for new collections; without them every vector is compared."""
RENAMED = {"Range": "RangeFloat", "IdfCorpusParams": "IdfParams"}


def convert(value: Any) -> Any:
    """A client's model as the engine's own class."""
    if isinstance(value, list):
        return [convert(one) for one in value]
    if not isinstance(value, BaseModel):
        return value
    given = {name: convert(one) for name, one in value if one is not None}
    name = type(value).__name__
    if name == "HasIdCondition":
        return edge.HasIdCondition(set(given["has_id"]))
    if name == "Filter":
        given = {part: one if isinstance(one, list) else [one] for part, one in given.items()}
    if name == "MatchValue":
        return edge.MatchValue(given["value"])
    return getattr(edge, RENAMED.get(name, name))(**given)


class EdgeClient:
    """A folder with a folder for each collection."""

    indexes = True

    def __init__(self, folder: str) -> None:
        self.folder, self.shards = Path(folder), dict[str, Any]()

    def _shard(self, name: str) -> Any:
        if name not in self.shards:
            self.shards[name] = edge.EdgeShard.load(str(self.folder / name))
        return self.shards[name]

    def _update(self, name: str, operation: str, *given: Any) -> None:
        self._shard(name).update(getattr(edge.UpdateOperation, operation)(*given))

    def collection_exists(self, name: str) -> bool:
        return (self.folder / name).is_dir()

    def create_collection(self, name: str, vectors_config: Any, sparse_vectors_config: Any) -> None:
        (self.folder / name).mkdir(parents=True)
        half = edge.VectorStorageDatatype.Float16
        dense = {
            n: edge.EdgeVectorParams(v.size, getattr(edge.Distance, v.distance.value), datatype=half)
            for n, v in vectors_config.items()
        }
        words = dict.fromkeys(sparse_vectors_config, edge.EdgeSparseVectorParams(modifier=edge.Modifier.Idf))
        config = edge.EdgeConfig(vectors=dense, sparse_vectors=words, hnsw_config=GRAPHS)
        self.shards[name] = edge.EdgeShard.create(str(self.folder / name), config)

    def optimize(self, name: str) -> None:
        """Build the graphs."""
        self._shard(name).optimize()

    def create_payload_index(self, name: str, field: str, schema: Any) -> None:
        kind = schema if isinstance(schema, str) else schema.type.value
        self._update(name, "create_field_index", field, getattr(edge.PayloadSchemaType, kind.capitalize()))

    def upsert(self, name: str, points: list[Any], update_mode: Any = None) -> None:
        made = [edge.Point(p.id, {n: convert(v) for n, v in p.vector.items()}, p.payload) for p in points]
        mode = edge.UpdateMode.Upsert if update_mode is None else edge.UpdateMode.InsertOnly
        self._update(name, "upsert_points", made, None, mode)

    def retrieve(self, name: str, ids: list[int], with_payload: Any = True) -> Any:
        return self._shard(name).retrieve(ids, with_payload=with_payload, with_vector=False)

    def scroll(self, name: str, where: Any, *, limit: int, offset: Any, with_payload: list[str]) -> Any:
        request = edge.ScrollRequest(offset, limit, convert(where), with_payload)
        return self._shard(name).scroll(request)

    def count(self, name: str, where: Any) -> Any:
        return SimpleNamespace(count=self._shard(name).count(edge.CountRequest(filter=convert(where))))

    def facet(self, name: str, field: str, *, facet_filter: Any, limit: int, exact: bool) -> Any:
        return self._shard(name).facet(edge.FacetRequest(field, limit, exact, convert(facet_filter)))

    def query_batch_points(self, name: str, requests: list[Any]) -> Any:
        def request(one: Any) -> Any:
            nearest = edge.Query.Nearest(convert(one.query), using=one.using)
            how = {"with_payload": one.with_payload, "filter": convert(one.filter), "params": convert(one.params)}
            return edge.QueryRequest(one.limit, query=nearest, **how)

        batch = edge.QueryBatchRequest([request(one) for one in requests])
        return [SimpleNamespace(points=found) for found in self._shard(name).query_batch(batch)]

    def set_payload(self, name: str, payload: dict[str, Any], points: Any) -> None:
        if isinstance(points, list):
            self._update(name, "set_payload", points, payload)
        else:
            self._update(name, "set_payload_by_filter", convert(points), payload)

    def delete_payload(self, name: str, keys: list[str], points: Any) -> None:
        self._update(name, "delete_payload_by_filter", convert(points), keys)

    def delete(self, name: str, points: Any) -> None:
        if isinstance(points, list):
            self._update(name, "delete_points", points)
        else:
            self._update(name, "delete_points_by_filter", convert(points))

    def delete_collection(self, name: str) -> None:
        self.shards.pop(name).close()
        shutil.rmtree(self.folder / name)

    def close(self) -> None:
        for shard in self.shards.values():
            shard.close()
        self.shards.clear()


EMBEDDED["qdrant+edge"] = EdgeClient
