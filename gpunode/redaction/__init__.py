"""Removes secrets from text and configuration and, on request, everything that identifies the machine."""
