#!/usr/bin/env bash
# Downloads FineWeb-Edu, or another dataset of the Hugging Face hub; sets up the environment first if necessary.
#
#   bash data_tools/download_fineweb_data.sh [DATASET] [--config NAME] [--num-files N] [--output FOLDER] ...
#
# Call it again after an interruption: it continues. All options, after the set-up: efficientbench-data download --help
set -euo pipefail

folder="$(cd "$(dirname "${BASH_SOURCE[0]}")/../launchers" && pwd -P)"
if [[ " $* " == *" -h "* || " $* " == *" --help "* ]]; then
    # shellcheck source=launchers/environment/ascend_env.sh
    source "$folder/environment/ascend_env.sh"
    ascend_say "$(sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}")" \
        "下载 FineWeb-Edu，或 Hugging Face hub 上的其他数据集；如有必要，先安装环境。

  bash data_tools/download_fineweb_data.sh [DATASET] [--config NAME] [--num-files N] [--output FOLDER] ...

中断后再次执行即可继续。全部选项（安装之后）：efficientbench-data download --help"
    exit 0
fi
# shellcheck source=launchers/bootstrap.sh
source "$folder/bootstrap.sh"
bootstrap
exec efficientbench-data download "$@"
