"""A stand-in for Qwen3: a checkpoint with Qwen's own tokenizer whose weights recite given answers.

What it says is in `answers.py`, how weights are set so that it does in `weights.py`. It is chosen by one word of the
last user message, by whether tools are shown, and by whether a tool's result has come since.
"""
