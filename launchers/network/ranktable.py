"""HCCL's rank table: the file that RANK_TABLE_FILE names, in which a cluster lists its servers and their NPUs.

Format: HCCL User Guide, "rank table": version 1.0 (A2, and Atlas training series) and 1.2 (A3, with super pods).
"""

from __future__ import annotations

import ipaddress
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from efficientbench.launchers.errors import LaunchError

VERSIONS = ("1.0", "1.2")


@dataclass(frozen=True)
class Server:
    """One node: the ranks of its NPUs in the order of the table, and its address where the table gives it."""

    server_id: str
    host_ip: str | None
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class RankTable:
    """A table that HCCL can use."""

    path: Path
    servers: tuple[Server, ...]

    def check_ranks(self, nodes: int, ranks_per_node: int) -> None:
        """Raises LaunchError where the run's ranks are not those of the table."""
        if (len(self.servers), {len(server.ranks) for server in self.servers}) != (nodes, {ranks_per_node}):
            told = ", ".join(f"{server.server_id} {len(server.ranks)}" for server in self.servers)
            raise LaunchError(
                f"{self.path}: lists {len(self.servers)} servers ({told} NPUs), and the run has {nodes} nodes with "
                f"{ranks_per_node} ranks each: make the table for this run, or unset RANK_TABLE_FILE"
            )
        for node in range(nodes):
            wanted = set(range(node * ranks_per_node, (node + 1) * ranks_per_node))
            if not any(set(server.ranks) == wanted for server in self.servers):
                raise LaunchError(
                    f"{self.path}: no server has the ranks {min(wanted)} to {max(wanted)}, which are those of node "
                    f"{node}: number rank_id through one server after the other"
                )


def read_rank_table(path: Path) -> RankTable:
    """Raises LaunchError with all that is wrong with the table: file, key, what would be right."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LaunchError(f"RANK_TABLE_FILE: {path} cannot be read as JSON: {error}") from None
    if not isinstance(table, dict) or "server_list" not in table:
        older = (
            " (it is of the older form with group_list)" if isinstance(table, dict) and "group_list" in table else ""
        )
        raise LaunchError(f"{path}: has no server_list{older}")
    problems: list[str] = []
    if table.get("status") != "completed":
        problems.append(f"status is {table.get('status')!r}: HCCL takes a table that is 'completed'")
    if str(table.get("version")) not in VERSIONS:
        problems.append(f"version is {table.get('version')!r}: {' or '.join(VERSIONS)}")
    entries = table["server_list"]
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise LaunchError(f"{path}: server_list is no list of servers")
    if str(table.get("server_count")) != str(len(entries)):
        problems.append(f"server_count is {table.get('server_count')!r}, and server_list has {len(entries)}")
    servers = tuple(_server(entry, index, len(entries) > 1, problems) for index, entry in enumerate(entries))
    _check_numbers(servers, problems)
    if problems:
        raise LaunchError(f"{path}: " + "; ".join(problems))
    return RankTable(path, servers)


def _server(entry: dict[str, Any], index: int, several: bool, problems: list[str]) -> Server:
    where = f"server_list[{index}]"
    server_id = str(entry.get("server_id", ""))
    if not server_id or len(server_id) > 64:
        problems.append(f"{where}.server_id is {server_id!r}: a name of 1 to 64 characters")
    devices = entry.get("device")
    if not isinstance(devices, list) or not devices or not all(isinstance(device, dict) for device in devices):
        problems.append(f"{where}.device is no list of NPUs")
        devices = []
    for number, device in enumerate(devices):
        address = device.get("device_ip")
        if address is None and several and not device.get("super_device_id"):
            problems.append(f"{where}.device[{number}].device_ip is missing, which several servers need")
        elif address is not None and not _is_address(address):
            problems.append(f"{where}.device[{number}].device_ip is {address!r}: an IP address")
    host_ip = entry.get("host_ip")
    if host_ip is not None and not _is_address(host_ip):
        problems.append(f"{where}.host_ip is {host_ip!r}: an IP address")
    ranks = [_whole(device.get("rank_id")) for device in devices]
    if None in ranks:
        problems.append(f"{where}: every NPU needs a rank_id, a whole number")
    return Server(server_id, host_ip, tuple(rank for rank in ranks if rank is not None))


def _check_numbers(servers: tuple[Server, ...], problems: list[str]) -> None:
    ranks = sorted(rank for server in servers for rank in server.ranks)
    if ranks != list(range(len(ranks))):
        problems.append(f"rank_id: {ranks} are not the numbers from 0 to {len(ranks) - 1}, each once")
    names = [server.server_id for server in servers]
    if len(set(names)) < len(names):
        problems.append(f"server_id: {', '.join(names)} are not all different")


def _whole(value: object) -> int | None:
    text = str(value)
    return int(text) if text.isdecimal() else None


def _is_address(value: object) -> bool:
    try:
        ipaddress.ip_address(str(value))
    except ValueError:
        return False
    return True
