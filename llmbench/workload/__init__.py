"""What is sent: lengths, prompts, traces, and fitting text to a length without a tokenizer."""
