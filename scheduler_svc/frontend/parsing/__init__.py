"""What a model wrote, taken apart as it comes: its thought, its content and its calls of tools. Pure."""
