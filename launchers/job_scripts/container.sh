#!/usr/bin/env bash
# Starts a command in a container on this node, which sees the node's accelerators, network and some of its folders.
#
#   bash launchers/job_scripts/container.sh docker|apptainer IMAGE FOLDER MOUNT... -- COMMAND...
#
# COMMAND begins in FOLDER. Each MOUNT has its own path in the container. The command is the user's own, not root's.
set -euo pipefail

# Variables that a container gets of this environment; apptainer passes all of them.
_container_variables='MASTER_ADDR|MASTER_PORT|LOCAL_ADDR|NNODES|NODE_RANK|USER|LOGNAME|HOME|TZ|LANG|LC_.*'
_container_variables+='|(EFFICIENTBENCH|HF|MODELSCOPE|NCCL|GLOO|HCCL|TORCH|PYTORCH|TRITON|OMP|MKL)_.*|.*_(proxy|PROXY)'
_container_variables+='|CUDA_VISIBLE_DEVICES|ASCEND_(RT_)?VISIBLE_DEVICES|SLURM_(ARRAY_)?(JOB|TASK)_ID'

# What Huawei's driver shares with containers, besides its devices.
_container_ascend=(/usr/local/Ascend/driver /usr/local/dcmi /usr/local/bin/npu-smi /etc/ascend_install.info)

# Fill the array `options` with those that give an engine this node's accelerators.
container_devices() { # engine folder_of_device_files
    local engine="$1" dev="$2" file mount=--volume
    [[ "$engine" == docker ]] || mount=--bind
    if [[ -e "$dev/davinci_manager" ]]; then
        for file in "$dev"/davinci* "$dev/devmm_svm" "$dev/hisi_hdc"; do
            # apptainer shows all of /dev.
            [[ "$engine" != docker || ! -e "$file" ]] || options+=(--device "$file")
        done
        for file in "${_container_ascend[@]}"; do
            [[ ! -e "$file" ]] || options+=("$mount" "$file:$file:ro")
        done
    elif [[ -e "$dev/nvidiactl" && "$engine" == docker ]]; then
        options+=(--gpus all)
    elif [[ -e "$dev/nvidiactl" ]]; then
        options+=(--nv)
    fi
    [[ "$engine" != docker || ! -e "$dev/infiniband" ]] || options+=(--device "$dev/infiniband")
}

container_docker() { # image folder mount... -- command...
    local image="$1" folder="$2" options=() name group mounted=" "
    shift 2
    while [[ "$1" != "--" ]]; do
        options+=(--volume "$1:$1")
        mounted+="$1 "
        shift
    done
    shift
    # Caches of the hub and of compilers outlive the container.
    [[ ! -d "${HOME:-}" || "$HOME" == / || "$mounted" == *" $HOME "* ]] || options+=(--volume "$HOME:$HOME")
    while read -r name; do
        # Without a value, which would show in the list of processes.
        [[ ! "$name" =~ ^($_container_variables)$ ]] || options+=(--env "$name")
    done < <(compgen -e)
    for group in $(id -G); do
        options+=(--group-add "$group")
    done
    container_devices docker /dev
    exec docker run --rm --init --network host --ipc host --ulimit memlock=-1 --user "$(id -u):$(id -g)" \
        --workdir "$folder" "${options[@]}" "$image" "$@"
}

container_apptainer() { # image folder mount... -- command...
    local image="$1" folder="$2" options=() program=apptainer
    shift 2
    while [[ "$1" != "--" ]]; do
        options+=(--bind "$1:$1")
        shift
    done
    shift
    container_devices apptainer /dev
    # The name before 2021, which some clusters keep.
    command -v apptainer >/dev/null || program=singularity
    exec "$program" exec --pwd "$folder" "${options[@]}" "$image" "$@"
}

if [[ "${BASH_SOURCE[0]}" == "$0" ]]; then
    engine="$1"
    shift
    if [[ "$engine" != docker && "$engine" != apptainer ]]; then
        echo "error: container.sh: unknown engine '$engine': docker or apptainer" >&2
        exit 2
    fi
    if ! command -v "$engine" >/dev/null && [[ "$engine" == docker || -z "$(command -v singularity)" ]]; then
        echo "error: $engine is not on the PATH of node $(uname -n): load its module (launch --module NAME), or" \
            "choose another engine (--engine)" >&2
        exit 2
    fi
    "container_$engine" "$@"
fi
