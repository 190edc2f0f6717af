#!/usr/bin/env bash
# Finds CANN on this machine and brings it into a shell. To be sourced; it changes nothing by itself.
#
# It looks, in this order, into ASCEND_TOOLKIT_HOME, ASCEND_HOME_PATH, ASCEND_INSTALL_PATH, /usr/local/Ascend, ~/Ascend
# and /opt/Ascend. Below each: ascend-toolkit, cann (the name since
# CANN 8.5), latest, cann-<version> (the newest).

# Print a text in English, or in Chinese where the locale is Chinese.
ascend_say() { # english chinese
    local locale="${LC_ALL:-${LC_MESSAGES:-${LANG:-}}}"
    if [[ "${locale,,}" == zh* ]]; then
        printf '%s\n' "$2"
    else
        printf '%s\n' "$1"
    fi
}

# Print the path of every set_env.sh that was found, the one to use first.
ascend_find_cann() {
    local home root file versions=() found=()
    for home in "${ASCEND_TOOLKIT_HOME:-}" "${ASCEND_HOME_PATH:-}"; do
        [[ -n "$home" ]] || continue
        for file in "$home/set_env.sh" "$home/../set_env.sh"; do
            [[ ! -r "$file" ]] || found+=("$(readlink -f "$file")")
        done
    done
    for root in "${ASCEND_INSTALL_PATH:-}" /usr/local/Ascend ~/Ascend /opt/Ascend; do
        [[ -n "$root" && -d "$root" ]] || continue
        mapfile -t versions < <(compgen -G "$root/cann-*/set_env.sh" | sort -rV)
        for file in "$root/set_env.sh" "$root/ascend-toolkit/set_env.sh" "$root/cann/set_env.sh" \
            "$root/latest/set_env.sh" "$root/ascend-toolkit/latest/set_env.sh" "${versions[@]}"; do
            [[ ! -r "$file" ]] || found+=("$file")
        done
    done
    [[ ${#found[@]} -gt 0 ]] || return 1
    printf '%s\n' "${found[@]}" | awk '!seen[$0]++'
}

# Return 0 where CANN's environment is set and its folder exists.
ascend_is_sourced() {
    local home="${ASCEND_TOOLKIT_HOME:-${ASCEND_HOME_PATH:-}}"
    [[ -n "$home" && -d "$home" && ":${LD_LIBRARY_PATH:-}:" == *":$home/"* ]]
}

# Bring CANN's environment into this shell, once. Return 1 with an error that lists the folders where there is none.
ascend_source() {
    local file flags=$- status=0
    ascend_is_sourced && return 0
    if ! file="$(ascend_find_cann | head -n 1)" || [[ -z "$file" ]]; then
        ascend_say "error: CANN was not found in ASCEND_INSTALL_PATH, /usr/local/Ascend, ~/Ascend or /opt/Ascend: install its toolkit and kernels, or start the container from an image that has them" \
            "错误：在 ASCEND_INSTALL_PATH、/usr/local/Ascend、~/Ascend 和 /opt/Ascend 中没有找到 CANN：请安装其 toolkit 和 kernels，或使用带有它们的镜像启动容器" >&2
        return 1
    fi
    # The vendor's script reads variables that may be unset, and may end with a test that fails.
    set +eu
    # shellcheck disable=SC1090  # found at run time
    source "$file" || status=$?
    [[ "$flags" != *e* ]] || set -e
    [[ "$flags" != *u* ]] || set -u
    ascend_add_driver
    if ! ascend_is_sourced; then
        ascend_say "error: $file was sourced (status $status) and did not set ASCEND_TOOLKIT_HOME or ASCEND_HOME_PATH with its libraries: this CANN is not installed completely" \
            "错误：已 source ${file}（状态 ${status}），但它没有设置 ASCEND_TOOLKIT_HOME 或 ASCEND_HOME_PATH 及其库：这个 CANN 没有安装完整" >&2
        return 1
    fi
}

# Add the driver's libraries: CANN's script leaves them to the system's configuration, which containers often lack.
ascend_add_driver() {
    local root="${ASCEND_DRIVER_PATH:-/usr/local/Ascend/driver}" folder
    for folder in "$root/lib64/common" "$root/lib64/driver"; do
        [[ -d "$folder" && ":${LD_LIBRARY_PATH:-}:" != *":$folder:"* ]] || continue
        export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder"
    done
}

# Return 0 where this machine shows an NPU.
ascend_has_device() { compgen -G "${ASCEND_DEVICE_FILES:-/dev/davinci[0-9]*}" >/dev/null; }
