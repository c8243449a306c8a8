"""Run folders to figures."""
