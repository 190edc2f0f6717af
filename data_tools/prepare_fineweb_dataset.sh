#!/usr/bin/env bash
# Downloads FineWeb-Edu (or another dataset of the Hugging Face hub), tokenizes it and shows its statistics; sets up
# the environment first if necessary.
#
#   bash data_tools/prepare_fineweb_dataset.sh [DATASET] [--config NAME] [--num-files N] [--tokenizer NAME] [--to-jsonl] ...
#
# Call it again after an interruption: it continues. `--help` lists all options.
set -euo pipefail

# shellcheck source=launchers/bootstrap.sh
source "$(dirname "${BASH_SOURCE[0]}")/../launchers/bootstrap.sh"
bootstrap
exec python3 -m efficientbench.data_tools prepare "$@"
