"""SmolTalk: conversations on many subjects (arXiv 2502.02737), in the edition for small models."""

from __future__ import annotations

from efficientbench.data_tools.chat.task import HubFiles
from efficientbench.data_tools.chat.tasks.messages import Messages


class SmolTalk(Messages):
    """Reads rows with `messages`."""

    name = "smoltalk"
    about = "conversations on many subjects"
    hub = HubFiles("HuggingFaceTB/smol-smoltalk", split="train")
