#!/usr/bin/env bash
# Downloads FineWeb-Edu, or another dataset of the Hugging Face hub; sets up the environment first if necessary.
#
#   bash data_tools/download_fineweb_data.sh [DATASET] [--config NAME] [--num-files N] [--output FOLDER] ...
#
# Call it again after an interruption: it continues. `--help` lists all options.
set -euo pipefail

# shellcheck source=launchers/bootstrap.sh
source "$(dirname "${BASH_SOURCE[0]}")/../launchers/bootstrap.sh"
bootstrap
exec python3 -m efficientbench.data_tools download "$@"
