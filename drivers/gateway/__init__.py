"""An OpenAI-compatible router over the trio driver: `kvcore serve`. Extra `gateway`."""
