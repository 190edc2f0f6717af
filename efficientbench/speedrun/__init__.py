"""From text to a chat model: the commands of all stages, in their order; complete steps are skipped."""
