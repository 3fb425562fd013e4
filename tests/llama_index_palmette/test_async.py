import asyncio
import threading

from llama_index.retrievers.palmette import PalmetteQuery, TreeRetriever

QUESTIONS = [
    f"the {animal} in the {place}"
    for animal in ("cat", "dog", "owl", "fox")
    for place in ("garden", "forest")
]


async def test_async_equals_sync(retriever):
    for query in (QUESTIONS[0], PalmetteQuery(QUESTIONS[1], top_k=1, level=2)):
        assert await retriever.aretrieve(query) == retriever.retrieve(
            query
        )  # also sync inside a running loop
    assert await retriever.aretrieve_batch(QUESTIONS) == retriever.retrieve_batch(QUESTIONS)


async def test_the_loop_stays_free(retriever, model, monkeypatch):
    entered, released = threading.Semaphore(0), threading.Event()
    encode = type(model).encode_queries

    def wait(self, texts, options):
        entered.release()
        assert released.wait(30)
        return encode(self, texts, options)

    monkeypatch.setattr(type(model), "encode_queries", wait)
    running = asyncio.create_task(retriever.aretrieve(QUESTIONS[0]))
    batch = asyncio.create_task(retriever.aretrieve_batch(QUESTIONS))
    for _ in (running, batch):  # both have begun, on threads of their own
        assert await asyncio.to_thread(entered.acquire, timeout=30)
    assert not running.done()
    assert not batch.done()
    released.set()  # a blocked loop would never come here
    assert len(await running) == 3
    assert len(await batch) == len(QUESTIONS)


async def test_an_unpickled_retriever_is_opened_once(on_disk, monkeypatch):
    import pickle

    from palmette.index import Index

    opened, real = [], Index.open.__func__
    monkeypatch.setattr(
        Index, "open", classmethod(lambda cls, *a, **o: opened.append(a) or real(cls, *a, **o))
    )
    again = pickle.loads(pickle.dumps(on_disk))
    await asyncio.gather(*(again.aretrieve(question) for question in QUESTIONS))
    assert len(opened) == 1
    assert isinstance(again, TreeRetriever)
    again.index.close()
