"""The version, in a file of its own that can be read without importing anything."""

__version__ = "0.1.0"
