#!/usr/bin/env bash
# Every method at paper scale on this machine's GPU, and one page of results: WORK/results.md.
#
#     PALMETTE_DATA=FOLDER tests/gpu/run.sh [WORK] [options of paper.py, such as --steps 20]
#
# FOLDER has BEIR folders; without it, the sample data (the standard library) is used. Run from a checkout with `make install`
# done; install faiss-gpu in place of faiss-cpu for searches on the GPU.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python)}
work=${1:-build/gpu}
[ $# -gt 0 ] && shift
data=()
[ -n "${PALMETTE_DATA:-}" ] && data=("$PALMETTE_DATA"/*/)
exec "$python" tests/gpu/paper.py "${data[@]%/}" --work "$work" "$@"
