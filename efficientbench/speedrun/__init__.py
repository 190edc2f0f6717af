"""From text to a chat model: the commands of all stages, in their order, with what is complete left out."""
