"""Train every method at its paper's scale on the data sets of a machine, search with FAISS on the GPU, write one page.

    PALMETTE_DATA=FOLDER python benchmarks/gpu_paper.py --work WORK [--steps 20]

FOLDER has BEIR folders; without it, the sample data (the standard library) is used. Searches on the GPU need faiss-gpu
in place of faiss-cpu. What is trained stays in WORK, so that a run that was broken off goes on with the next model; the
page is WORK/results.md.
"""

from __future__ import annotations

import argparse
import os
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from palmette import Index, RetrievalData, load_data, load_encoder
from palmette.errors import InputError
from palmette.evaluation import evaluate_index
from palmette.machine.devices import auto_precision, check_device
from palmette.methods import model_class, names
from palmette.sample import sample_data
from recording import append, table, write_part

COLUMNS = ["data", "method", "trained, s", "indexed, s", "nDCG@10", "recall@100", "exact, ms", "faiss, ms"]
COLUMNS += ["memory, GB"]


def one(method: str, data: RetrievalData, args: argparse.Namespace) -> dict[str, Any]:
    """Train, index, search."""
    cls, encoder = model_class(method), load_encoder(args.encoder, device=args.device)
    line: dict[str, Any] = {"data": data.name, "method": method}
    saved, start = args.work / f"{data.name}-{method}-{args.preset}", time.perf_counter()
    options: dict[str, Any] = {"steps": args.steps} if args.steps else {}
    if args.preset in cls.config_class.presets:
        options["preset"] = args.preset
    if not saved.exists():
        try:
            model = cls.fit(data, encoder=encoder, progress=False, **options)
        except InputError:  # pairs without a hierarchy have no far matches, which the taxonomy's recipe draws
            model = cls.fit(data, encoder=encoder, progress=False, **options | {"preset": None})
            line["method"] += ", defaults"
        model.save_pretrained(saved)
    line["trained, s"] = time.perf_counter() - start
    model, start = cls.from_pretrained(saved, encoder=encoder), time.perf_counter()
    index = Index.build(data.corpus, model, args.work / f"{saved.name}-index", progress=False)
    line["indexed, s"] = time.perf_counter() - start
    row = evaluate_index(index, data.queries, data.qrels["test" if data.qrels.get("test") else "dev"])
    line |= {"nDCG@10": row.metrics["ndcg@10"], "recall@100": row.metrics["recall@100"]}
    asked = list(data.queries.values())[:200]
    for name in ("exact", "faiss"):
        try:
            with Index.open(index.path, model, engine=name, verify=False) as opened:  # type: ignore[arg-type]
                opened.rank(asked[:8], 10, lexical=0, sentences=False)
                start = time.perf_counter()
                opened.rank(asked, 10, lexical=0, sentences=False)
                line[f"{name}, ms"] = 1000 * (time.perf_counter() - start) / len(asked)
        except Exception as error:  # FAISS is not installed, or a method has no use for it
            line[f"{name}, ms"] = f"{type(error).__name__}"
    if torch.cuda.is_available():
        line["memory, GB"] = torch.cuda.max_memory_allocated() / 1e9
        torch.cuda.reset_peak_memory_stats()
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--encoder", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--device", default=None)
    parser.add_argument("--steps", type=int, help="a short run, to see that all works")
    parser.add_argument("--preset", default="paper", help="the paper's settings, or 'defaults'")
    parser.add_argument("--methods", nargs="*", default=names(), choices=names())
    args = parser.parse_args()
    device, lines = check_device(args.device), []
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    folders = sorted(Path(os.environ["PALMETTE_DATA"]).iterdir()) if "PALMETTE_DATA" in os.environ else []
    for data in map(load_data, folders) if folders else [sample_data()]:
        for method in args.methods:
            try:
                line = one(method, data, args)
            except Exception:  # a data set without fields, or a taxonomy: the others go on
                traceback.print_exc()
                line = {"data": data.name, "method": method, "nDCG@10": traceback.format_exc(limit=0).strip()[:80]}
            lines.append(append(args.work / "results.jsonl", line))
            print(line, flush=True)
            cells = [[f"{v:.3g}" if isinstance(v := x.get(c, ""), float) else str(v) for c in COLUMNS] for x in lines]
            told = f"{name}, torch {torch.__version__}, {auto_precision(device)}."
            write_part(args.work / "results.md", args.preset, f"{told}\n\n{table(COLUMNS, cells)}")


if __name__ == "__main__":
    main()
