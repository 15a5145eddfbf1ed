"""Where each prompt token went: one cause for each, in spans that tile the prompt."""
